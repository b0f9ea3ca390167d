// How each element type is stored, and what its reductions accumulate in.
//
// An element type has Storage, Acc, load (Storage -> Acc) and store (Acc -> Storage). The conversions
// have no branches, so that loops over them vectorise. Only isa.cpp includes this file, inside its
// namespaces. It uses no functions of the standard library, because a function that several instruction
// sets share could be linked from the wrong one.

// Numbers that are reduced as they are.
template <class T> struct Native {
    using Storage = T;
    using Acc = T;
    static Acc load(Storage x) { return x; }
    static Storage store(Acc x) { return x; }
};

// Any non-zero byte is true; true is stored as 1.
struct Bool {
    using Storage = uint8_t;
    using Acc = uint8_t;
    static Acc load(Storage x) { return x != 0; }
    static Storage store(Acc x) { return x; }
};

template <class T> struct Complex {
    T re, im;
};

// An array may begin at any address, so its elements are copied; loops over these copies vectorise.
template <class T> T load_element(const T* from) {
    T x;
    __builtin_memcpy(&x, from, sizeof x);
    return x;
}
template <class T> void store_element(T* to, T x) { __builtin_memcpy(to, &x, sizeof x); }
// Each part by itself, because GCC 12 does not vectorise copies of a struct.
template <class T> Complex<T> load_element(const Complex<T>* from) {
    const auto parts = reinterpret_cast<const T*>(from);
    return {load_element(parts), load_element(parts + 1)};
}
template <class T> void store_element(Complex<T>* to, Complex<T> x) {
    const auto parts = reinterpret_cast<T*>(to);
    store_element(parts, x.re);
    store_element(parts + 1, x.im);
}

inline uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
inline float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

constexpr uint32_t kInfinity = 0x7f800000;  // the bits of an f32 infinity; above it are the NaNs
constexpr uint32_t kSign = 0x80000000;

// Adding this to the bits of an f32 and dropping the lowest `drop` rounds to nearest, ties to even.
template <int drop> uint32_t rounding(uint32_t bits) { return (1u << (drop - 1)) - 1 + ((bits >> drop) & 1); }

// bfloat16 is the upper half of an f32. NaNs need no special case: those of bf16, and those that
// arithmetic produces, have a lower half of zeros, so rounding does not change them.
struct BF16 {
    using Storage = uint16_t;
    using Acc = float;
    static Acc load(Storage x) { return float_of(uint32_t{x} << 16); }
    static Storage store(Acc x) { return static_cast<Storage>((bits_of(x) + rounding<16>(bits_of(x))) >> 16); }
};

// A float of 1 sign bit, `exponent` exponent bits with the usual bias, and `mantissa` bits.
// IEEE: the top exponent encodes infinity and NaN. Otherwise (the "fn" formats) only all ones is NaN,
// and a value that is too large becomes NaN.
template <class S, int exponent, int mantissa, bool ieee> struct SmallFloat {
    using Storage = S;
    using Acc = float;

    static constexpr int kDrop = 23 - mantissa;
    static constexpr uint32_t kBias = (1u << (exponent - 1)) - 1;
    static constexpr uint32_t kRebias = (127 - kBias) << 23;  // from this exponent to an f32's
    static constexpr int kSignShift = 31 - (exponent + mantissa);
    static constexpr uint32_t kMagnitude = (1u << (exponent + mantissa)) - 1;
    static constexpr uint32_t kTop = ((1u << exponent) - 1) << mantissa;  // IEEE infinity
    static constexpr uint32_t kQuiet = 1u << (mantissa - 1);
    static constexpr uint32_t kLeastNormal = (127 - kBias + 1) << 23;  // the bits of the f32 2^(1-bias)
    // The bits of an f32 whose last place is the smallest subnormal: adding it rounds to subnormals.
    static constexpr uint32_t kAnchor = (127 - kBias + 1 + kDrop) << 23;

    static Acc load(Storage x) {
        const uint32_t magnitude = x & kMagnitude;
        const uint32_t sign = (x & (kMagnitude + 1)) << kSignShift;
        const uint32_t normal = (magnitude << kDrop) + kRebias;
        const uint32_t subnormal = bits_of(float_of(normal + (1u << 23)) - float_of(kLeastNormal));
        uint32_t bits = magnitude < (1u << mantissa) ? subnormal : normal;
        if constexpr (ieee) {
            const uint32_t quiet = magnitude > kTop ? kQuiet << kDrop : 0;
            bits = magnitude >= kTop ? (normal + kRebias) | quiet : bits;
        } else {
            bits = magnitude == kMagnitude ? kInfinity | (kQuiet << kDrop) : bits;
        }
        return float_of(sign | bits);
    }

    static Storage store(Acc x) {
        const uint32_t bits = bits_of(x);
        const uint32_t magnitude = bits & ~kSign;
        const uint32_t sign = (bits & kSign) >> kSignShift;
        const uint32_t subnormal = bits_of(float_of(magnitude) + float_of(kAnchor)) - kAnchor;
        const uint32_t normal = ((magnitude + rounding<kDrop>(magnitude)) >> kDrop) - (kRebias >> kDrop);
        uint32_t small = magnitude < kLeastNormal ? subnormal : normal;
        if constexpr (ieee) {
            const uint32_t nan = kTop | kQuiet | ((magnitude >> kDrop) & (kQuiet - 1));
            small = small > kTop ? kTop : small;
            small = magnitude > kInfinity ? nan : small;
        } else {
            small = small > kMagnitude ? kMagnitude : small;
        }
        return static_cast<Storage>(sign | small);
    }
};

using F16 = SmallFloat<uint16_t, 5, 10, true>;
using FP8E4M3 = SmallFloat<uint8_t, 4, 3, false>;
using FP8E5M2 = SmallFloat<uint8_t, 5, 2, true>;
