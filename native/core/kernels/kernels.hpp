// Reduction kernels, chosen at run time for the CPU they run on.
#pragma once
#include "types.hpp"

namespace rankwise {

// dst[i] = src[0][i] op src[1][i] op ... op src[n-1][i], in that order, for n >= 1.
// Accumulates f16, bf16 and fp8 in f32 and rounds once; MIN and MAX propagate NaN; integers wrap;
// MEAN divides the sum by `divisor`. dst may be the same address as any one source; otherwise the
// ranges do not overlap. Addresses need no more than the element's own alignment.
using ReduceKernel = void (*)(void* dst, const void* const* src, int n, size_t count, int divisor);

// The kernel for a pair, or nullptr where the pair means nothing (MEAN of integers and bool, MIN
// and MAX of complex, bitwise of floats and complex).
ReduceKernel reduce_kernel(DType dtype, ReduceOp op);

// The instruction set the kernels use on this machine: "avx512", "avx2", "baseline".
const char* kernel_isa();

}  // namespace rankwise
