// Forks: a forked child has a copy of this process's memory, but neither its threads nor its rank.
#pragma once
#include <atomic>

namespace rankwise {

extern std::atomic<unsigned> forks;  // how many lie between the first process and this one

// A member of an object that changes shared memory: it distinguishes the process that made the object from a child
// forked since, which has a copy. Only the parent may change the memory: neither the copy's destructor does, nor the
// child as it leaves a call in which a signal handler has forked it.
class ForkMark {
public:
    bool is_child() const { return forks_ != forks.load(std::memory_order_relaxed); }

private:
    unsigned forks_ = forks.load(std::memory_order_relaxed);
};

// The forking thread calls `lock` before a fork and `unlock` after it, so that no child inherits a lock that is held.
// Returns true, so that the initialisation of a variable may call this.
bool lock_around_forks(void (*lock)(), void (*unlock)());

}  // namespace rankwise
