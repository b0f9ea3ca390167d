// Forks: a child of this process has its memory, but neither its threads nor its place among the ranks.
#pragma once
#include <atomic>

namespace rankwise {

extern std::atomic<unsigned> forks;
// How often this process had been forked off, one from the other.
inline unsigned forks_so_far() { return forks.load(std::memory_order_relaxed); }
// Around a fork the forking thread holds what `lock` locks, so that no child finds it locked for ever.
void lock_around_forks(void (*lock)(), void (*unlock)());

}  // namespace rankwise
