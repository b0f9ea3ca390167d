#include "base/qualified_pid.hpp"

#include <sys/stat.h>
#include <unistd.h>

namespace rankwise {

QualifiedPid QualifiedPid::own() {
    struct stat info;
    return {getpid(), stat("/proc/self/ns/pid", &info) == 0 ? uint32_t(info.st_ino) : 0};
}

bool QualifiedPid::in_own_namespace() const { return pid_namespace == own().pid_namespace; }

}  // namespace rankwise
