// Forks: a forked child has a copy of this process's memory, but neither its threads nor its rank.
#pragma once
#include <atomic>

namespace rankwise {

extern std::atomic<unsigned> forks;
// How many forks lie between the first process and this one.
inline unsigned forks_so_far() { return forks.load(std::memory_order_relaxed); }
// The forking thread calls `lock` before a fork and `unlock` after it, so that no child inherits a lock that is held.
// Returns true, so that the initialisation of a variable may call this.
bool lock_around_forks(void (*lock)(), void (*unlock)());

}  // namespace rankwise
