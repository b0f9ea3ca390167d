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

namespace baseline {
extern const KernelTable table;
}
namespace avx2 {
extern const KernelTable table;
}
namespace avx512 {
extern const KernelTable table;
}

// The tables that this CPU can run, best first. All give the same bits, except for which of two NaNs results.
std::span<const KernelTable* const> supported_tables();

}  // namespace rankwise
