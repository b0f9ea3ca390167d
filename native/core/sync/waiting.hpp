// How a rank waits: it spins briefly, then yields, then sleeps on a futex with a deadline.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/policy.hpp"
#include "sync/cpu_set.hpp"
#include "sync/engine_thread.hpp"

namespace rankwise {

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield" ::: "memory");
#endif
}

// Prefetch a cache line exclusively, so that it is in this core's cache when it is written.
inline void prefetch_for_write(const void* line) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));  // the builtin would prefetch for reading
#else
    __builtin_prefetch(line, 1);
#endif
}

// Cores that this process may use: its affinity mask, limited by the cgroup's CPU quota.
int usable_cores();

// The cores of one process: a digest of the set that it may use, how many they are, and how many its quota allows.
struct ProcessCores {
    uint64_t set;
    uint32_t count, quota;
};
ProcessCores process_cores();
// Whether some of these processes share a core. One process's own set does not tell, because a launcher may have bound
// each to another core. Sets that differ are taken to be disjoint, as launchers make them.
bool share_cores(const std::vector<ProcessCores>& processes);

// What a rank does before it sleeps. Spinning pays only if every rank has a core of its own: otherwise
// the spinning rank may keep the awaited rank from running.
struct WaitPolicy {
    int first_polls;                     // polls, with a pause between them, before anything else
    std::chrono::microseconds spinning;  // then this long in the same way
    int yields;                          // then this many polls, yielding the core between them: counted and not
                                         // timed, because other threads may keep the core for long
    std::chrono::milliseconds yielding;  // upper limit of all that, so that errors are noticed soon
    std::chrono::milliseconds lost;  // a yield of this length has lost the core to another program, which would keep
                                     // it again; a rank that sleeps gets it back as soon as it is woken
    static WaitPolicy on_own_cores();
    static WaitPolicy on_shared_cores();
    static WaitPolicy when(bool oversubscribed) { return oversubscribed ? on_shared_cores() : on_own_cores(); }
    // How many times the calling thread may yield. A stream's thread may not: its time slices are longer than other
    // threads' (stream/thread_pool.cpp), so each yield would cost it more.
    int may_yield() const;
};

// This process's PID namespace and, if the kernel schedules by session (autogroup), its session. A thread cannot
// yield its core to a thread of another container, which has a cgroup of its own, nor, with autogroup, of another
// session.
uint64_t scheduler_session();

// Moves the calling thread to one of `cores`, if there are any, and leaves it free to use all `allowed` cores.
void move_to_cores(const CpuSet& cores, const CpuSet& allowed);

// Sleep while *word == seen, at most `limit`, or until a signal.
void futex_sleep(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds limit);
void futex_wake_all(std::atomic<uint32_t>& word);
// Increments the word, and so wakes those who sleep until it changes.
inline void futex_notify(std::atomic<uint32_t>& word) {
    word.fetch_add(1);
    futex_wake_all(word);
}

inline int WaitPolicy::may_yield() const { return is_engine_thread ? 0 : yields; }

// How long to sleep if the deadline is `left` seconds away, at most `longest`.
inline std::chrono::nanoseconds sleep_limit(std::chrono::duration<double> left,
                                            std::chrono::nanoseconds longest = kLongestSleep) {
    const auto limit =
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::min<std::chrono::duration<double>>(left, longest));
    return std::max(limit, std::chrono::nanoseconds(1000));
}

}  // namespace rankwise
