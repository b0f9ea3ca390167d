// A pid with the PID namespace in which it is valid. Ranks in several containers may have the same pid.
#pragma once
#include <atomic>
#include <cstdint>

namespace rankwise {

struct alignas(8) QualifiedPid {  // in one atomic word
    int32_t number = 0;           // 0: unknown
    uint32_t pid_namespace = 0;   // the namespace's inode; 0: unknown (all unknown ones count as one)

    static QualifiedPid own();
    bool operator==(const QualifiedPid&) const = default;
    // Whether this process is in that namespace, so that the number is valid here.
    bool in_own_namespace() const;
};
static_assert(std::atomic<QualifiedPid>::is_always_lock_free);

}  // namespace rankwise
