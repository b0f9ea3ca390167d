// Every reduction kernel for one instruction set, in the namespace RANKWISE_ISA.
#include <type_traits>

#include "kernels/table.hpp"

#ifdef __F16C__
#include <immintrin.h>
#endif

// dst may be one of the sources, so this asserts to the compiler that element i depends on element i alone.
#ifdef __clang__
#define RANKWISE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define RANKWISE_INDEPENDENT _Pragma("GCC ivdep")
#endif

#define RANKWISE_TEXT_OF(name) #name
#define RANKWISE_TEXT(name) RANKWISE_TEXT_OF(name)

namespace rankwise::RANKWISE_ISA {
namespace {

#include "kernels/arithmetic.hpp"
#include "kernels/elements.hpp"

// Packs of f32 accumulators, for f16 only: compilers do not use the CPU's f16 conversions, which give the
// same bits as F16's.
#ifdef __F16C__
#ifdef __AVX512F__
constexpr size_t kLanes = 16;
using Pack = __m512;
inline Pack load_pack(const uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline void store_pack(uint16_t* to, Pack x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
#else
constexpr size_t kLanes = 8;
using Pack = __m256;
inline Pack load_pack(const uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline void store_pack(uint16_t* to, Pack x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
#endif
inline Pack load_pack(const float* from) {
    Pack x;
    __builtin_memcpy(&x, from, sizeof x);
    return x;
}
inline void store_pack(float* to, Pack x) { __builtin_memcpy(to, &x, sizeof x); }

template <class... E> constexpr bool kPacked = (std::is_same_v<E, F16> || ...);
#endif

// The operations, on one pair of accumulators or one pair of packs.
// Integers that may overflow are unsigned here, and narrow ones are widened first: promotion would make them signed.
template <class T> struct Widened {
    using Type = T;
};
template <> struct Widened<uint8_t> {
    using Type = uint32_t;
};
template <> struct Widened<uint16_t> {
    using Type = uint32_t;
};

struct Sum {
    template <class T> static T apply(T a, T b) { return static_cast<T>(a + b); }
};
// GCC 12's vectoriser fuses a complex product although contraction is off; this rounds each product separately.
#if __has_builtin(__builtin_assoc_barrier)
#define RANKWISE_ROUNDED(x) __builtin_assoc_barrier(x)
#else
#define RANKWISE_ROUNDED(x) (x)
#endif
struct Prod {
    template <class T> static T apply(T a, T b) {
        using Wide = typename Widened<T>::Type;
        return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
    }
    template <class T> static Complex<T> apply(Complex<T> a, Complex<T> b) {
        return {RANKWISE_ROUNDED(a.re * b.re) - RANKWISE_ROUNDED(a.im * b.im),
                RANKWISE_ROUNDED(a.re * b.im) + RANKWISE_ROUNDED(a.im * b.re)};
    }
};
// The first NaN wins: a is kept if it is NaN, and every comparison with a b that is NaN is false.
struct Min {
    template <class T> static T apply(T a, T b) { return ((a < b) | (a != a)) ? a : b; }
};
struct Max {
    template <class T> static T apply(T a, T b) { return ((a > b) | (a != a)) ? a : b; }
};
struct And {
    template <class T> static T apply(T a, T b) { return static_cast<T>(a & b); }
};
struct Or {
    template <class T> static T apply(T a, T b) { return static_cast<T>(a | b); }
};
struct Xor {
    template <class T> static T apply(T a, T b) { return static_cast<T>(a ^ b); }
};

// What happens to the accumulator before it is stored.
struct Keep {
    template <class T> T operator()(T x) const { return x; }
};
template <class Acc> struct Divide {
    Acc divisor;
    template <class T> T operator()(T x) const { return x / divisor; }
};
template <class Acc> struct Scale {
    Acc factor;
    template <class T> T operator()(T x) const { return x * factor; }
};

template <class E> struct Source {
    using Element = E;
    const typename E::Storage* from;
    typename E::Acc operator[](size_t i) const { return E::load(load_element(from + i)); }
};
template <class E, class Finish = Keep> struct Sink {
    using Element = E;
    typename E::Storage* to;
    [[no_unique_address]] Finish finish = {};
    void put(size_t i, typename E::Acc x) const { store_element(to + i, E::store(finish(x))); }
};

template <class E, class Out> [[gnu::noinline]] void convert(Source<E> a, Out out, size_t count) {
    RANKWISE_INDEPENDENT
    for (size_t i = 0; i < count; ++i) out.put(i, a[i]);
}

template <class Op, class A, class B, class Out> [[gnu::noinline]] void combine(A a, B b, Out out, size_t count) {
    size_t i = 0;
#ifdef __F16C__
    if constexpr (kPacked<typename A::Element, typename B::Element, typename Out::Element>) {
        for (; i + kLanes <= count; i += kLanes) {
            const Pack x = Op::apply(load_pack(a.from + i), load_pack(b.from + i));
            store_pack(out.to + i, out.finish(x));
        }
    }
#endif
    RANKWISE_INDEPENDENT
    for (; i < count; ++i) out.put(i, Op::apply(a[i], b[i]));
}

template <class E, class Op, class Finish>
void reduce_into(typename E::Storage* dst, const void* const* src, int n, size_t count, Finish finish) {
    using Storage = typename E::Storage;
    using Acc = typename E::Acc;
    const UsualArithmetic arithmetic;
    const auto source = [src](int s, size_t at) { return Source<E>{static_cast<const Storage*>(src[s]) + at}; };

    if (n == 1) return convert(source(0, 0), Sink<E, Finish>{dst, finish}, count);
    if (n == 2) return combine<Op>(source(0, 0), source(1, 0), Sink<E, Finish>{dst, finish}, count);

    // All sources of a block are read before dst, which may be one of them, is written; the accumulators fit the L1
    // cache.
    constexpr size_t kBlock = 8192 / sizeof(Acc);
    alignas(64) Acc block[kBlock];
    const Source<Native<Acc>> from_block{block};
    const Sink<Native<Acc>> to_block{block};
    for (size_t at = 0; at < count; at += kBlock) {
        const size_t length = count - at < kBlock ? count - at : kBlock;
        combine<Op>(source(0, at), source(1, at), to_block, length);
        for (int s = 2; s < n - 1; ++s) combine<Op>(from_block, source(s, at), to_block, length);
        combine<Op>(from_block, source(n - 1, at), Sink<E, Finish>{dst + at, finish}, length);
    }
}

template <class E, class Op> void reduce(void* dst, const void* const* src, int n, size_t count, int) {
    reduce_into<E, Op>(static_cast<typename E::Storage*>(dst), src, n, count, Keep{});
}

template <class E> void mean(void* dst, const void* const* src, int n, size_t count, int divisor) {
    using Acc = typename E::Acc;
    const auto to = static_cast<typename E::Storage*>(dst);
    // The reciprocal of a power of two is exact, so multiplying by it rounds as dividing does, and is faster.
    if ((divisor & (divisor - 1)) == 0) {
        reduce_into<E, Sum>(to, src, n, count, Scale<Acc>{Acc{1} / static_cast<Acc>(divisor)});
    } else {
        reduce_into<E, Sum>(to, src, n, count, Divide<Acc>{static_cast<Acc>(divisor)});
    }
}

// A kernel on elements that consist of `parts` independent smaller ones.
template <ReduceKernel kernel, size_t parts>
void in_parts(void* dst, const void* const* src, int n, size_t count, int divisor) {
    kernel(dst, src, n, count * parts, divisor);
}

template <class E> void widen(void* dst, const void* src, size_t count) {
    const UsualArithmetic arithmetic;
    const Source<E> from{static_cast<const typename E::Storage*>(src)};
    convert(from, Sink<Native<float>>{static_cast<float*>(dst)}, count);
}

template <class E> void narrow(void* dst, const void* src, size_t count) {
    const UsualArithmetic arithmetic;
    const Source<Native<float>> from{static_cast<const float*>(src)};
    convert(from, Sink<E>{static_cast<typename E::Storage*>(dst)}, count);
}

template <class E> constexpr void set_floating(ReduceKernel (&row)[kReduceOps]) {
    row[int(ReduceOp::SUM)] = reduce<E, Sum>;
    row[int(ReduceOp::PROD)] = reduce<E, Prod>;
    row[int(ReduceOp::MIN)] = reduce<E, Min>;
    row[int(ReduceOp::MAX)] = reduce<E, Max>;
    row[int(ReduceOp::MEAN)] = mean<E>;
}

// T orders the elements; Unsigned, of the same size, wraps. Bitwise operations treat any element as bytes.
template <class T, class Unsigned> constexpr void set_integer(ReduceKernel (&row)[kReduceOps]) {
    row[int(ReduceOp::SUM)] = reduce<Native<Unsigned>, Sum>;
    row[int(ReduceOp::PROD)] = reduce<Native<Unsigned>, Prod>;
    row[int(ReduceOp::MIN)] = reduce<Native<T>, Min>;
    row[int(ReduceOp::MAX)] = reduce<Native<T>, Max>;
    row[int(ReduceOp::BAND)] = in_parts<reduce<Native<uint8_t>, And>, sizeof(T)>;
    row[int(ReduceOp::BOR)] = in_parts<reduce<Native<uint8_t>, Or>, sizeof(T)>;
    row[int(ReduceOp::BXOR)] = in_parts<reduce<Native<uint8_t>, Xor>, sizeof(T)>;
}

constexpr void set_bool(ReduceKernel (&row)[kReduceOps]) {
    row[int(ReduceOp::SUM)] = row[int(ReduceOp::MAX)] = row[int(ReduceOp::BOR)] = reduce<Bool, Or>;
    row[int(ReduceOp::PROD)] = row[int(ReduceOp::MIN)] = row[int(ReduceOp::BAND)] = reduce<Bool, And>;
    row[int(ReduceOp::BXOR)] = reduce<Bool, Xor>;
}

template <class T> constexpr void set_complex(ReduceKernel (&row)[kReduceOps]) {
    row[int(ReduceOp::SUM)] = in_parts<reduce<Native<T>, Sum>, 2>;
    row[int(ReduceOp::PROD)] = reduce<Native<Complex<T>>, Prod>;
    row[int(ReduceOp::MEAN)] = in_parts<mean<Native<T>>, 2>;
}

constexpr KernelTable make_table() {
    KernelTable table{RANKWISE_TEXT(RANKWISE_ISA), {}, {}, {}};
    const auto row = [&table](DType dtype) -> ReduceKernel(&)[kReduceOps] { return table.kernels[int(dtype)]; };
    set_floating<Native<double>>(row(DType::F64));
    set_floating<Native<float>>(row(DType::F32));
    const auto set_narrow = [&]<class E>(DType dtype) {
        set_floating<E>(row(dtype));
        table.widen[int(dtype)] = widen<E>;
        table.narrow[int(dtype)] = narrow<E>;
    };
    set_narrow.template operator()<F16>(DType::F16);
    set_narrow.template operator()<BF16>(DType::BF16);
    set_narrow.template operator()<FP8E4M3>(DType::FP8E4M3);
    set_narrow.template operator()<FP8E5M2>(DType::FP8E5M2);
    set_integer<int64_t, uint64_t>(row(DType::I64));
    set_integer<int32_t, uint32_t>(row(DType::I32));
    set_integer<int16_t, uint16_t>(row(DType::I16));
    set_integer<int8_t, uint8_t>(row(DType::I8));
    set_integer<uint64_t, uint64_t>(row(DType::U64));
    set_integer<uint32_t, uint32_t>(row(DType::U32));
    set_integer<uint16_t, uint16_t>(row(DType::U16));
    set_integer<uint8_t, uint8_t>(row(DType::U8));
    set_bool(row(DType::BOOL));
    set_complex<float>(row(DType::C64));
    set_complex<double>(row(DType::C128));
    return table;
}

}  // namespace

constinit const KernelTable table = make_table();

}  // namespace rankwise::RANKWISE_ISA
