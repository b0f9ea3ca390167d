#include "kernels/kernels.hpp"

#ifdef RANKWISE_X86_KERNELS
#include <cpuid.h>
#endif

#include "kernels/table.hpp"

namespace rankwise {

#ifdef RANKWISE_X86_KERNELS
namespace {

// __builtin_cpu_supports does not know it in clang 14.
bool has_f16c() {
    unsigned eax, ebx, ecx = 0, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && ecx & bit_F16C;
}

}  // namespace
#endif

std::span<const KernelTable* const> supported_tables() {
#ifdef RANKWISE_X86_KERNELS
    static constexpr const KernelTable* all[] = {&avx512::table, &avx2::table, &baseline::table};
    static const size_t unsupported = [] {
        const bool has_avx2 = __builtin_cpu_supports("avx2") && has_f16c();
        const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        return has_avx512 ? 0 : has_avx2 ? 1 : 2;
    }();
    return std::span(all).subspan(unsupported);
#else
    static constexpr const KernelTable* all[] = {&baseline::table};
    return all;
#endif
}

ReduceKernel reduce_kernel(DType dtype, ReduceOp op) {
    return supported_tables().front()->kernels[static_cast<int>(dtype)][static_cast<int>(op)];
}

ConvertKernel widen_kernel(DType from) { return supported_tables().front()->widen[static_cast<int>(from)]; }

ConvertKernel narrow_kernel(DType to) { return supported_tables().front()->narrow[static_cast<int>(to)]; }

}  // namespace rankwise
