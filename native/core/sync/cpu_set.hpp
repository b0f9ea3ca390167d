// Sets of CPUs.
#pragma once
#include <sched.h>
#include <sys/types.h>

#include <cstddef>
#include <vector>

namespace rankwise {

// A set of CPUs with room for as many as the machine can have; a cpu_set_t has room for 1,024.
class CpuSet {
public:
    // The CPUs that the calling thread may use; none if the system does not say. affinity: asks the system.
    static CpuSet allowed(int (*affinity)(pid_t, size_t, cpu_set_t*) = &sched_getaffinity);
    // Lets the calling thread run on these CPUs only. Returns false if the system refuses.
    bool apply() const { return sched_setaffinity(0, bytes(), sets_.data()) == 0; }

    bool contains(int cpu) const { return CPU_ISSET_S(size_t(cpu), bytes(), sets_.data()); }
    void remove(int cpu) { CPU_CLR_S(size_t(cpu), bytes(), sets_.data()); }
    int count() const { return CPU_COUNT_S(bytes(), sets_.data()); }
    // All CPUs of the set are below this number.
    int end() const { return int(8 * bytes()); }

private:
    size_t bytes() const { return sets_.size() * sizeof(cpu_set_t); }
    std::vector<cpu_set_t> sets_{1};
};

}  // namespace rankwise
