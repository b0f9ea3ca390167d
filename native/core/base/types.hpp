// Element types and reduction operations, numbered as src/rankwise/contract/types.py numbers them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace rankwise {

enum class DType : uint8_t {
    F64,
    F32,
    F16,
    BF16,
    FP8E4M3,
    FP8E5M2,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    BOOL,
    C64,
    C128,
};
inline constexpr int kDTypes = 17;

enum class ReduceOp : uint8_t { SUM, PROD, MIN, MAX, MEAN, BAND, BOR, BXOR };
inline constexpr int kReduceOps = 8;

// Bytes of one element.
inline constexpr size_t itemsize(DType dtype) {
    constexpr size_t sizes[kDTypes] = {8, 4, 2, 2, 1, 1, 8, 4, 2, 1, 8, 4, 2, 1, 1, 8, 16};
    return sizes[static_cast<int>(dtype)];
}

// "unknown" for what a stray write has put in place of one.
inline const char* name(DType dtype) {
    constexpr const char* names[kDTypes] = {
        "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64",     "int32",     "int16",
        "int8",    "uint64",  "uint32",  "uint16",   "uint8",         "bool",        "complex64", "complex128"};
    return size_t(dtype) < kDTypes ? names[size_t(dtype)] : "unknown";
}

inline const char* name(ReduceOp op) {
    constexpr const char* names[kReduceOps] = {"sum", "prod", "min", "max", "mean", "band", "bor", "bxor"};
    return names[static_cast<int>(op)];
}

}  // namespace rankwise
