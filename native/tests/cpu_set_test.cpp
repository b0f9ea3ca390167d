// Tests sets of CPUs, also on a pretended machine with more than a cpu_set_t has room for.
#include "sync/cpu_set.hpp"

#include <cerrno>

#include "check.hpp"

using namespace rankwise;

namespace {

// A kernel with 5,000 possible CPUs, of which this thread may use 3, 1,500 and 4,999.
int many_cpus(pid_t, size_t bytes, cpu_set_t* set) {
    if (8 * bytes < 5000) {
        errno = EINVAL;
        return -1;
    }
    CPU_ZERO_S(bytes, set);
    for (size_t cpu : {3, 1500, 4999}) CPU_SET_S(cpu, bytes, set);
    return 0;
}

int refuses(pid_t, size_t, cpu_set_t*) {
    errno = EINVAL;
    return -1;
}

}  // namespace

int main() {
    CpuSet many = CpuSet::allowed(&many_cpus);
    CHECK_EQ(many.count(), 3);
    CHECK(many.contains(3) && many.contains(1500) && many.contains(4999) && !many.contains(1501));
    CHECK(many.end() >= 5000);
    many.remove(1500);
    CHECK(!many.contains(1500) && many.count() == 2);
    CHECK_EQ(CpuSet::allowed(&refuses).count(), 0);

    const CpuSet own = CpuSet::allowed();
    CHECK(own.count() >= 1);
    CHECK(own.apply());
    CHECK_EQ(CpuSet::allowed().count(), own.count());
    int first = 0;
    while (!own.contains(first)) ++first;
    CpuSet one = own;
    for (int cpu = first + 1; cpu < own.end(); ++cpu) one.remove(cpu);
    CHECK(one.apply());
    CHECK(CpuSet::allowed().count() == 1 && CpuSet::allowed().contains(first));
    return check::result();
}
