#include "sync/cpu_set.hpp"

#include <cerrno>

namespace rankwise {

CpuSet CpuSet::allowed(int (*affinity)(pid_t, size_t, cpu_set_t*)) {
    constexpr size_t kMost = 128;  // times 1,024 CPUs
    CpuSet set;
    // The kernel refuses a set with less room than it has possible CPUs.
    while (affinity(0, set.bytes(), set.sets_.data()) != 0) {
        if (errno != EINVAL || set.sets_.size() >= kMost) return {};
        set.sets_.resize(2 * set.sets_.size());
    }
    return set;
}

}  // namespace rankwise
