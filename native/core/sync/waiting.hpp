// How a rank waits: a short spin, then yielding, then asleep on a futex with a deadline.
#pragma once
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace rankwise {

using Clock = std::chrono::steady_clock;

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield" ::: "memory");
#endif
}

// Ask for a cache line to be here, and only here, by the time it is written.
inline void fetch_to_write(const void* line) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));  // the builtin's would only be to read
#else
    __builtin_prefetch(line, 1);
#endif
}

// Cores this process may really use: its affinity mask, cut by the cgroup's CPU quota.
int usable_cores();

// What a rank does before it sleeps. Spinning pays only where every rank has a core of its own:
// otherwise it keeps the rank that is waited for from running.
struct WaitPolicy {
    int first_polls;                      // of the flag, with a pause in between, before anything else
    std::chrono::microseconds spinning;   // then this long in the same way
    int yields;                           // then this often, yielding the core between two polls: counted
                                          // rather than timed, since others may keep the core for long
    std::chrono::milliseconds yielding;   // but not for so long that an error is noticed late
    static WaitPolicy when(bool oversubscribed);
    // How often the calling thread may yield. A stream's thread may not: its time slices are longer than others'
    // (stream.cpp), and so is what it would lose by each yield.
    int may_yield() const;
};

// The session of this process where the kernel schedules by session (autogroup), else 0. A thread that yields does not
// yield its core to one of another session then.
uint64_t scheduled_in();

// The cores that the calling thread may use; none where the system does not say.
cpu_set_t allowed_cores();
// Moves the calling thread to one of some of these, if there are any. It stays free to use all of them.
void move_to_cores(const cpu_set_t& some, const cpu_set_t& allowed);

// Sleep while *word == seen, at most `limit`. Returns false when a signal interrupted the sleep.
bool futex_sleep(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds limit);
void futex_wake_all(std::atomic<uint32_t>& word);

// Asked, in the thread that waits, after a signal and at least every kLongestSleep of sleep: true
// means stop waiting (in Python: a signal handler raised). Set once by the embedding.
extern bool (*interrupt_check)();
inline thread_local bool is_engine_thread = false;  // started by the engine: nothing interrupts it
inline int WaitPolicy::may_yield() const { return is_engine_thread ? 0 : yields; }
inline bool interrupted() { return !is_engine_thread && interrupt_check(); }

// What a thread holds that others may need: it lets go of it before it waits for longer than a few polls. Set by the
// embedding for the time of a short call.
struct Lendable {
    virtual void let_go() = 0;

protected:
    ~Lendable() = default;
};
[[gnu::tls_model("initial-exec")]] inline thread_local constinit Lendable* held_here = nullptr;
inline void before_waiting() {
    if (held_here) held_here->let_go();
}

// The longest sleep between two checks of the deadline, the failure record and interrupts.
inline constexpr std::chrono::milliseconds kLongestSleep{100};

// How long to sleep with `left` seconds to the deadline.
inline std::chrono::nanoseconds sleep_limit(std::chrono::duration<double> left) {
    const auto limit = std::chrono::duration_cast<std::chrono::nanoseconds>(std::min<std::chrono::duration<double>>(left, kLongestSleep));
    return std::max(limit, std::chrono::nanoseconds(1000));
}

std::string seconds(double value);  // "2.5 s"

}  // namespace rankwise
