// Reduction kernels, selected at run time for the CPU.
#pragma once
#include "base/types.hpp"

namespace rankwise {

// dst[i] = src[0][i] op src[1][i] op ... op src[n-1][i], in that order, for n >= 1.
// Accumulates f16, bf16 and fp8 in f32 and rounds once; MIN and MAX propagate NaN; integers wrap;
// MEAN divides the sum by `divisor`. dst may equal any one source; otherwise the ranges must not
// overlap. Addresses need only the element's own alignment.
using ReduceKernel = void (*)(void* dst, const void* const* src, int n, size_t count, int divisor);

// The kernel for a pair, or nullptr where the pair has no meaning (MEAN of integers and bool, MIN
// and MAX of complex, bitwise of floats and complex).
ReduceKernel reduce_kernel(DType dtype, ReduceOp op);

// dst[i] = src[i], from one element type to another; the ranges do not overlap.
using ConvertKernel = void (*)(void* dst, const void* src, size_t count);

// From f16, bf16 or fp8 to f32, in which they are accumulated, exactly; nullptr for any other type.
ConvertKernel widen_kernel(DType from);

// From f32 to one of those, rounded to nearest, ties to even; nullptr for any other type.
ConvertKernel narrow_kernel(DType to);

}  // namespace rankwise
