// Tests every kernel of every instruction set of this CPU against arithmetic on one element at a time.
#include <algorithm>
#include <array>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/copy.hpp"
#include "check.hpp"
#include "kernels/non_temporal.hpp"
#include "kernels/table.hpp"

using namespace rankwise;

namespace {

// ---- The oracle: it represents an element by its bits in a uint64_t (complex: by one part) ----

bool is_complex(DType dtype) { return dtype == DType::C64 || dtype == DType::C128; }
bool is_integer(DType dtype) { return dtype >= DType::I64 && dtype <= DType::U8; }
bool is_signed(DType dtype) { return dtype >= DType::I64 && dtype <= DType::I8; }

bool has_meaning(DType dtype, ReduceOp op) {
    if (op == ReduceOp::MEAN) return !is_integer(dtype) && dtype != DType::BOOL;
    if (op == ReduceOp::MIN || op == ReduceOp::MAX) return !is_complex(dtype);
    if (op >= ReduceOp::BAND) return is_integer(dtype) || dtype == DType::BOOL;
    return true;
}

// A float narrower than f32. `values` are the values of the non-negative codes up to `top`, the code that an overflow
// yields: infinity, or NaN in the fn formats. The value listed for `top` is the one the next number would have.
struct Small {
    int exponent, mantissa;
    bool ieee;
    unsigned top;
    std::vector<double> values;

    Small(int exponent, int mantissa, bool ieee)
        : exponent(exponent), mantissa(mantissa), ieee(ieee),
          top(ieee ? ((1u << exponent) - 1) << mantissa : (1u << (exponent + mantissa)) - 1) {
        const int bias = (1 << (exponent - 1)) - 1;
        for (unsigned code = 0; code <= top; ++code) {
            const int e = code >> mantissa;
            const int m = code & ((1 << mantissa) - 1);
            values.push_back(e == 0 ? std::ldexp(m, 1 - bias - mantissa)
                                    : std::ldexp(m + (1 << mantissa), e - bias - mantissa));
        }
    }
    unsigned sign() const { return 1u << (exponent + mantissa); }
    float decode(unsigned bits) const {
        const unsigned code = bits & (sign() - 1);
        const double value = code < top ? values[code] : code == top && ieee ? HUGE_VAL : NAN;
        return static_cast<float>(bits & sign() ? -value : value);
    }
    unsigned encode(float x) const {
        const unsigned negative = std::signbit(x) ? sign() : 0;
        if (std::isnan(x)) return negative | (sign() - 1);
        const double value = std::fabs(static_cast<double>(x));
        const auto above = std::lower_bound(values.begin(), values.end(), value);
        if (above == values.end()) return negative | top;
        unsigned code = static_cast<unsigned>(above - values.begin());
        if (*above != value) {
            const double down = value - values[code - 1], up = values[code] - value;
            if (down < up || (down == up && (code - 1) % 2 == 0)) --code;
        }
        return negative | code;
    }
};

const Small& small(DType dtype) {
    static const Small f16(5, 10, true), bf16(8, 7, true), e4m3(4, 3, false), e5m2(5, 2, true);
    return dtype == DType::F16 ? f16 : dtype == DType::BF16 ? bf16 : dtype == DType::FP8E4M3 ? e4m3 : e5m2;
}

float f32_of(DType dtype, uint64_t bits) {
    return dtype == DType::F32 ? std::bit_cast<float>(static_cast<uint32_t>(bits))
                               : small(dtype).decode(static_cast<unsigned>(bits));
}
uint64_t bits_of(DType dtype, float x) {
    return dtype == DType::F32 ? std::bit_cast<uint32_t>(x) : small(dtype).encode(x);
}

template <class T> T floating(ReduceOp op, T a, T b) {
    switch (op) {
    case ReduceOp::PROD: return a * b;
    case ReduceOp::MIN: return std::isnan(a) ? a : std::isnan(b) ? b : std::min(a, b);
    case ReduceOp::MAX: return std::isnan(a) ? a : std::isnan(b) ? b : std::max(a, b);
    default: return a + b;
    }
}

uint64_t integral(DType dtype, ReduceOp op, uint64_t a, uint64_t b) {
    const int unused = 64 - 8 * static_cast<int>(itemsize(dtype));
    const auto below = [&](uint64_t x, uint64_t y) {
        if (!is_signed(dtype)) return x < y;
        return static_cast<int64_t>(x << unused) < static_cast<int64_t>(y << unused);
    };
    switch (op) {
    case ReduceOp::SUM: a += b; break;
    case ReduceOp::PROD: a *= b; break;
    case ReduceOp::MIN: a = below(b, a) ? b : a; break;
    case ReduceOp::MAX: a = below(a, b) ? b : a; break;
    case ReduceOp::BAND: a &= b; break;
    case ReduceOp::BOR: a |= b; break;
    default: a ^= b; break;
    }
    return a << unused >> unused;
}

uint64_t logical(ReduceOp op, bool a, bool b) {
    switch (op) {
    case ReduceOp::PROD:
    case ReduceOp::MIN:
    case ReduceOp::BAND: return a && b;
    case ReduceOp::BXOR: return a != b;
    default: return a || b;
    }
}

template <class T> struct Parts {
    T re, im;
};
template <class T> Parts<T> complex_product(Parts<T> a, Parts<T> b) {
    // volatile: a compiler may otherwise fuse a product with the sum.
    const volatile T rr = a.re * b.re, ii = a.im * b.im, ri = a.re * b.im, ir = a.im * b.re;
    return {rr - ii, ri + ir};
}

uint64_t load(const void* from, size_t size) {
    uint64_t bits = 0;
    std::memcpy(&bits, from, size);  // the kernels run on little-endian CPUs alone
    return bits;
}

// One element of the result, from the same element of each source.
template <class T>
void reduce_complex(ReduceOp op, const std::vector<const char*>& elements, int divisor, char* result) {
    Parts<T> acc, next;
    std::memcpy(&acc, elements[0], sizeof acc);
    for (size_t s = 1; s < elements.size(); ++s) {
        std::memcpy(&next, elements[s], sizeof next);
        acc = op == ReduceOp::PROD ? complex_product(acc, next) : Parts<T>{acc.re + next.re, acc.im + next.im};
    }
    if (op == ReduceOp::MEAN) acc = {acc.re / static_cast<T>(divisor), acc.im / static_cast<T>(divisor)};
    std::memcpy(result, &acc, sizeof acc);
}

void reduce_element(DType dtype, ReduceOp op, const std::vector<const char*>& elements, int divisor, char* result) {
    if (dtype == DType::C64) return reduce_complex<float>(op, elements, divisor, result);
    if (dtype == DType::C128) return reduce_complex<double>(op, elements, divisor, result);
    const size_t size = itemsize(dtype);
    const size_t n = elements.size();
    uint64_t bits = load(elements[0], size);
    if (dtype == DType::F64) {
        double acc = std::bit_cast<double>(bits);
        for (size_t s = 1; s < n; ++s) acc = floating(op, acc, std::bit_cast<double>(load(elements[s], size)));
        bits = std::bit_cast<uint64_t>(op == ReduceOp::MEAN ? acc / divisor : acc);
    } else if (is_integer(dtype)) {
        for (size_t s = 1; s < n; ++s) bits = integral(dtype, op, bits, load(elements[s], size));
    } else if (dtype == DType::BOOL) {
        bits = bits != 0;
        for (size_t s = 1; s < n; ++s) bits = logical(op, bits != 0, load(elements[s], size) != 0);
    } else {
        float acc = f32_of(dtype, bits);
        for (size_t s = 1; s < n; ++s) acc = floating(op, acc, f32_of(dtype, load(elements[s], size)));
        bits = bits_of(dtype, op == ReduceOp::MEAN ? acc / static_cast<float>(divisor) : acc);
    }
    std::memcpy(result, &bits, size);
}

// ---- Comparing ----

// Equal bits, except that any NaN equals any NaN, and that MIN and MAX of two zeros may give either zero.
bool same_part(DType dtype, ReduceOp op, uint64_t a, uint64_t b) {
    if (a == b) return true;
    if (is_integer(dtype) || dtype == DType::BOOL) return false;
    const double x = dtype == DType::F64 ? std::bit_cast<double>(a) : f32_of(dtype, a);
    const double y = dtype == DType::F64 ? std::bit_cast<double>(b) : f32_of(dtype, b);
    return (std::isnan(x) && std::isnan(y)) || ((op == ReduceOp::MIN || op == ReduceOp::MAX) && x == 0 && y == 0);
}

bool same_element(DType dtype, ReduceOp op, const char* a, const char* b) {
    if (!is_complex(dtype)) return same_part(dtype, op, load(a, itemsize(dtype)), load(b, itemsize(dtype)));
    const DType part = dtype == DType::C64 ? DType::F32 : DType::F64;
    const size_t size = itemsize(part);
    return same_part(part, op, load(a, size), load(b, size)) &&
           same_part(part, op, load(a + size, size), load(b + size, size));
}

// ---- Data ----

using Bytes = std::vector<char>;
std::mt19937_64 generator(20240229);

uint64_t random_part(DType dtype) {
    const uint64_t bits = generator();
    const int kind = static_cast<int>(generator() % 4);
    if (is_integer(dtype) || dtype == DType::BOOL) {
        const uint64_t top = 1ull << (8 * itemsize(dtype) - 1);
        const uint64_t extremes[] = {0, 1, ~0ull, top, top - 1};
        return kind == 0 ? extremes[bits % 5] : bits;
    }
    if (kind == 0) return bits;  // any bits: NaN, infinite, subnormal, of any magnitude
    const double extremes[] = {0.0, -0.0, 1.0, -1.0, HUGE_VAL, -HUGE_VAL, NAN, 448, 57344, 65504, 3e38, 1e308, 1e-45};
    std::normal_distribution<double> ordinary(0, kind == 2 ? 1 : 100);
    const double value = kind == 1 ? extremes[bits % 13] : ordinary(generator);
    return dtype == DType::F64 ? std::bit_cast<uint64_t>(value) : bits_of(dtype, static_cast<float>(value));
}

Bytes random_elements(DType dtype, size_t count) {
    const DType part = dtype == DType::C64 ? DType::F32 : dtype == DType::C128 ? DType::F64 : dtype;
    const size_t size = itemsize(part);
    Bytes bytes(count * itemsize(dtype));
    for (size_t at = 0; at < bytes.size(); at += size) {
        const uint64_t bits = random_part(part);
        std::memcpy(&bytes[at], &bits, size);
    }
    return bytes;
}

Bytes expected(DType dtype, ReduceOp op, const std::vector<Bytes>& sources, int divisor) {
    Bytes result(sources[0].size());
    std::vector<const char*> elements(sources.size());
    for (size_t at = 0; at < result.size(); at += itemsize(dtype)) {
        for (size_t s = 0; s < sources.size(); ++s) elements[s] = &sources[s][at];
        reduce_element(dtype, op, elements, divisor, &result[at]);
    }
    return result;
}

// Runs a kernel on the first `count` elements of each source, each copied to `shift` elements behind an aligned
// address. The result goes to source number `in_place`, or if that is -1 to a separate buffer.
void check_kernel(const KernelTable& table, DType dtype, ReduceOp op, const std::vector<Bytes>& sources,
                  const Bytes& want, size_t count, size_t shift, int in_place, int divisor) {
    const size_t size = itemsize(dtype), length = count * size, margin = 64;
    const int n = static_cast<int>(sources.size());
    struct alignas(64) Line {
        char bytes[64];
    };
    const auto margin_byte = [](int s) { return static_cast<char>(17 * (s + 1)); };  // another for each buffer
    std::vector<std::vector<Line>> buffers(n + 1);
    std::vector<char*> data(n + 1);
    for (int s = 0; s <= n; ++s) {
        buffers[s].resize((length + shift * size + 2 * margin) / sizeof(Line) + 1);
        std::memset(buffers[s].data(), margin_byte(s), buffers[s].size() * sizeof(Line));
        data[s] = buffers[s][0].bytes + margin + shift * size;
        if (s < n && length != 0) std::memcpy(data[s], sources[s].data(), length);
    }
    char* const dst = data[in_place < 0 ? n : in_place];
    const std::vector<const void*> from(data.begin(), data.end() - 1);
    table.kernels[static_cast<int>(dtype)][static_cast<int>(op)](dst, from.data(), n, count, divisor);

    const auto where = [&] {
        std::ostringstream text;
        text << table.isa << ' ' << name(dtype) << ' ' << name(op) << ", " << n << " sources of " << count
             << " elements, shift " << shift << ", in place " << in_place << ", divisor " << divisor;
        return text.str();
    };
    for (size_t i = 0; i < count; ++i) {
        if (same_element(dtype, op, dst + i * size, &want[i * size])) continue;
        const auto hex = [&](const char* element) { return load(element, std::min<size_t>(size, 8)); };
        std::ostringstream values;
        for (const Bytes& source : sources) values << std::hex << hex(&source[i * size]) << ' ';
        CHECK(false, where() << ": element " << i << " of " << values.str() << "is " << std::hex << hex(dst + i * size)
                             << ", not " << hex(&want[i * size]));
        break;
    }
    for (int s = 0; s <= n; ++s) {
        const bool written = s == n || data[s] == dst;
        CHECK(written || length == 0 || std::memcmp(data[s], sources[s].data(), length) == 0,
              where() << ": source " << s << " changed");
        const auto untouched = [&](const char* from) {
            return std::all_of(from, from + margin, [&](char byte) { return byte == margin_byte(s); });
        };
        CHECK(untouched(data[s] - margin) && untouched(data[s] + length), where() << ": wrote outside buffer " << s);
    }
}

// ---- Tests ----

void test_every_pair() {
    constexpr size_t kMost = 9001;  // more than a block of the smallest elements
    for (int d = 0; d < kDTypes; ++d) {
        const auto dtype = static_cast<DType>(d);
        std::vector<Bytes> all;
        for (int s = 0; s < 5; ++s) all.push_back(random_elements(dtype, kMost));
        for (int o = 0; o < kReduceOps; ++o) {
            const auto op = static_cast<ReduceOp>(o);
            for (const KernelTable* table : supported_tables()) {
                CHECK((table->kernels[d][o] != nullptr) == has_meaning(dtype, op), name(dtype) << ' ' << name(op));
            }
            if (!has_meaning(dtype, op)) continue;
            for (const int n : {1, 2, 3, 5}) {
                const std::vector<Bytes> sources(all.begin(), all.begin() + n);
                for (const int divisor : {n, 6}) {
                    const Bytes want = expected(dtype, op, sources, divisor);
                    for (const KernelTable* table : supported_tables()) {
                        for (const size_t count : {0, 1, 2, 7, 17, 67, 131}) {
                            for (const size_t shift : {0, 1, 3}) {
                                for (int in_place = -1; in_place < n; ++in_place) {
                                    check_kernel(*table, dtype, op, sources, want, count, shift, in_place, divisor);
                                }
                            }
                        }
                        for (const int in_place : {-1, n - 1}) {
                            check_kernel(*table, dtype, op, sources, want, kMost, 1, in_place, divisor);
                        }
                    }
                    if (op != ReduceOp::MEAN) break;  // only MEAN divides
                }
            }
        }
    }
}

Bytes elements_of(DType dtype, const std::vector<unsigned>& codes) {
    Bytes bytes(codes.size() * itemsize(dtype));
    for (size_t i = 0; i < codes.size(); ++i) std::memcpy(&bytes[i * itemsize(dtype)], &codes[i], itemsize(dtype));
    return bytes;
}

void check_codes(DType dtype, const std::vector<unsigned>& a, const std::vector<unsigned>& b) {
    const std::vector<Bytes> sources = {elements_of(dtype, a), elements_of(dtype, b)};
    for (const ReduceOp op : {ReduceOp::SUM, ReduceOp::PROD, ReduceOp::MIN, ReduceOp::MAX, ReduceOp::MEAN}) {
        const Bytes want = expected(dtype, op, sources, 3);
        for (const KernelTable* table : supported_tables()) {
            check_kernel(*table, dtype, op, sources, want, a.size(), 0, -1, 3);
        }
    }
}

// All pairs of fp8 codes; every f16 and bf16 code with partners that cause ties, carries and overflows.
void test_small_floats() {
    for (const DType dtype : {DType::FP8E4M3, DType::FP8E5M2}) {
        std::vector<unsigned> a, b;
        for (unsigned i = 0; i < 256 * 256; ++i) {
            a.push_back(i / 256);
            b.push_back(i % 256);
        }
        check_codes(dtype, a, b);
    }
    for (const DType dtype : {DType::F16, DType::BF16}) {
        std::vector<unsigned> a, near, one, least;
        for (unsigned i = 0; i < 65536; ++i) {
            a.push_back(i);
            near.push_back((i + 0x0c01 + 0x80 * (i % 16)) % 65536);
            one.push_back(small(dtype).encode(1.0f));
            least.push_back(i % 3);
        }
        for (const auto& b : {near, one, least}) check_codes(dtype, a, b);
    }
}

// Converts every code of a narrow float to f32 and back, and f32 values between the codes to the narrow float. Lengths
// are and are not multiples of a vector.
void test_conversions() {
    for (const DType dtype : {DType::F16, DType::BF16, DType::FP8E4M3, DType::FP8E5M2}) {
        const size_t size = itemsize(dtype), codes = size_t{1} << (8 * size);
        std::vector<unsigned> all(codes);
        for (unsigned i = 0; i < codes; ++i) all[i] = i;
        const Bytes narrow = elements_of(dtype, all);
        std::vector<float> between(codes);
        for (float& x : between) {
            x = std::bit_cast<float>(static_cast<uint32_t>(generator()));
            if (std::isnan(x)) x = HUGE_VALF;  // arithmetic on narrow floats yields only NaNs that they can represent
        }
        for (const KernelTable* table : supported_tables()) {
            const int d = static_cast<int>(dtype);
            std::vector<float> wide(codes);
            Bytes back(narrow.size()), rounded(narrow.size());
            table->widen[d](wide.data(), narrow.data(), codes);
            table->narrow[d](back.data(), wide.data(), codes);
            table->narrow[d](rounded.data(), between.data(), codes - 5);
            for (size_t i = 0; i < codes; ++i) {
                const float want = f32_of(dtype, all[i]);
                CHECK(wide[i] == want || (std::isnan(wide[i]) && std::isnan(want)), name(dtype) << " code " << i);
                CHECK(same_element(dtype, ReduceOp::SUM, &back[i * size], &narrow[i * size]), name(dtype)
                                                                                                  << " code " << i);
                const uint64_t bits = i < codes - 5 ? bits_of(dtype, between[i]) : 0;
                CHECK(same_part(dtype, ReduceOp::SUM, load(&rounded[i * size], size), bits),
                      name(dtype) << " of " << between[i]);
            }
        }
    }
    CHECK(widen_kernel(DType::F32) == nullptr && narrow_kernel(DType::I8) == nullptr);
    CHECK(widen_kernel(DType::F16) == supported_tables().front()->widen[2]);
}

// A few results written out by hand, independent of the oracle.
template <class T> void check_value(DType dtype, ReduceOp op, const std::vector<T>& elements, T want, int divisor = 1) {
    std::vector<const void*> sources;
    for (const T& element : elements) sources.push_back(&element);
    for (const KernelTable* table : supported_tables()) {
        T result{};
        table->kernels[static_cast<int>(dtype)][static_cast<int>(op)](&result, sources.data(),
                                                                      static_cast<int>(elements.size()), 1, divisor);
        CHECK_EQ(result, want);
    }
}

void test_known_values() {
    check_value<float>(DType::F32, ReduceOp::MEAN, {1.0f, 2.0f, 4.0f}, 7.0f / 3.0f, 3);
    check_value<double>(DType::F64, ReduceOp::SUM, {1e308, 1e308}, HUGE_VAL);
    check_value<int8_t>(DType::I8, ReduceOp::SUM, {100, 100}, -56);
    check_value<int32_t>(DType::I32, ReduceOp::SUM, {INT32_MAX, 1}, INT32_MIN);
    check_value<uint16_t>(DType::U16, ReduceOp::PROD, {65535, 65535}, 1);
    check_value<int64_t>(DType::I64, ReduceOp::MIN, {-1, INT64_MIN, 5}, INT64_MIN);
    check_value<uint64_t>(DType::U64, ReduceOp::MAX, {1, UINT64_MAX, 5}, UINT64_MAX);
    check_value<uint8_t>(DType::BOOL, ReduceOp::SUM, {2, 4}, 1);
    check_value<uint8_t>(DType::BOOL, ReduceOp::PROD, {2, 4}, 1);
    check_value<uint8_t>(DType::BOOL, ReduceOp::BXOR, {2, 4}, 0);
    // 2048 + 1 + 1 in f16 and 256 + 1 + 1 in bf16: rounded after each addition, the ones would be lost.
    check_value<uint16_t>(DType::F16, ReduceOp::SUM, {0x6800, 0x3c00, 0x3c00}, 0x6801);
    check_value<uint16_t>(DType::BF16, ReduceOp::SUM, {0x4380, 0x3f80, 0x3f80}, 0x4381);
    // 65504 + 16 is a tie with a value that does not fit, so it becomes infinity. 448 + 16 is a tie too, and 448 is
    // even.
    check_value<uint16_t>(DType::F16, ReduceOp::SUM, {0x7bff, 0x4c00}, 0x7c00);
    check_value<uint8_t>(DType::FP8E4M3, ReduceOp::SUM, {0x7e, 0x58}, 0x7e);
    check_value<uint8_t>(DType::FP8E4M3, ReduceOp::SUM, {0x7e, 0x60}, 0x7f);
    check_value<uint8_t>(DType::FP8E5M2, ReduceOp::SUM, {0x7b, 0x7b}, 0x7c);
}

// The bits do not depend on how the thread rounds or what it does with subnormal numbers, and that stays as it was.
void test_modes_of_the_program() {
    const auto check = [] {
        const uint64_t one = std::bit_cast<uint64_t>(1.0), little = std::bit_cast<uint64_t>(1e-17);
        check_value<uint64_t>(DType::F64, ReduceOp::SUM, {one, little, little}, one);
        check_value<uint64_t>(DType::F64, ReduceOp::SUM, {3, 4}, 7);  // subnormal
        check_value<uint32_t>(DType::F32, ReduceOp::SUM, {3, 4}, 7);
        check_value<uint32_t>(DType::F32, ReduceOp::SUM, {3, 4, 5, 6}, 18);
        check_value<uint32_t>(DType::F32, ReduceOp::MAX, {3, 4}, 4);
        check_value<uint32_t>(DType::F32, ReduceOp::MEAN, {4, 4}, 4, 2);
        for (const DType dtype : {DType::F16, DType::BF16}) check_value<uint16_t>(dtype, ReduceOp::SUM, {3, 4}, 7);
        for (const DType dtype : {DType::FP8E4M3, DType::FP8E5M2})
            check_value<uint8_t>(dtype, ReduceOp::SUM, {1, 1}, 2);
        for (const KernelTable* table : supported_tables()) {
            const uint16_t least = 1;
            uint32_t wide = 0;
            uint16_t back = 0;
            table->widen[int(DType::BF16)](&wide, &least, 1);
            table->narrow[int(DType::BF16)](&back, &wide, 1);
            CHECK(wide == 0x10000 && back == 1, "converted to " << wide << " and " << back);
        }
    };
    check();
    for (const int mode : {FE_UPWARD, FE_TOWARDZERO, FE_DOWNWARD}) {
        std::fesetround(mode);
        check();
        CHECK_EQ(std::fegetround(), mode);
    }
    std::fesetround(FE_TONEAREST);
#if defined(__x86_64__)
    const unsigned before = __builtin_ia32_stmxcsr(), flushes = before | 0x8040;
    __builtin_ia32_ldmxcsr(flushes);
    check();
    const unsigned after = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before);
    CHECK_EQ(after & 0xe040, flushes & 0xe040);
#endif
}

void test_dispatch() {
    const KernelTable& best = *supported_tables().front();
    CHECK_EQ(std::string(supported_tables().back()->isa), "baseline");
    CHECK(reduce_kernel(DType::F32, ReduceOp::SUM) == best.kernels[1][0]);
    CHECK(reduce_kernel(DType::I32, ReduceOp::MEAN) == nullptr);
}

// ---- Copies ----

// Lengths around a cache line, a unit and four pages; various alignments of source and destination in their pages.
void test_copies() {
    alignas(4096) static std::array<uint8_t, 70000> from, to;
    for (size_t i = 0; i < from.size(); ++i) from[i] = uint8_t(i * 31 + i / 256);
    set_peers_far(true);
    for (const Copy copy : {copy_bytes, non_temporal_copy, copy_for_peers})
        for (size_t bytes : {0, 1, 63, 64, 255, 256, 2049, 4095, 4097, 16383, 16384, 16385, 16700, 33000, 65536 + 300})
            for (size_t at : {0, 1, 16, 63, 64, 100})
                for (size_t source : {0, 7, 64}) {
                    std::fill(to.begin(), to.end(), uint8_t(0xee));
                    copy(&to[at], &from[source], bytes);
                    const bool right =
                        std::equal(to.begin() + long(at), to.begin() + long(at + bytes), from.begin() + long(source));
                    const bool alone =
                        std::all_of(to.begin(), to.begin() + long(at), [](uint8_t b) { return b == 0xee; }) &&
                        std::all_of(to.begin() + long(at + bytes), to.end(), [](uint8_t b) { return b == 0xee; });
                    CHECK(right && alone, "a copy of " << bytes << " bytes from " << source << " to " << at);
                }
}

}  // namespace

int main() {
    test_dispatch();
    test_copies();
    test_known_values();
    test_modes_of_the_program();
    test_small_floats();
    test_conversions();
    test_every_pair();
    return check::result();
}
