// The kernels of one instruction set. kernels.cmake compiles isa.cpp once for each.
#pragma once
#include <span>

#include "kernels/kernels.hpp"

namespace rankwise {

struct KernelTable {
    const char* isa;
    ReduceKernel kernels[kDTypes][kReduceOps];
    ConvertKernel widen[kDTypes];
    ConvertKernel narrow[kDTypes];
};

namespace baseline { extern const KernelTable table; }
namespace avx2 { extern const KernelTable table; }
namespace avx512 { extern const KernelTable table; }

// The tables this CPU can run, best first. All of them give the same bits, save for which NaN comes of two.
std::span<const KernelTable* const> supported_tables();

}  // namespace rankwise
