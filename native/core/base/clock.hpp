// Cheap timestamps: the processor's counter, which all cores of a host share, and its conversion to clock time.
#pragma once
#include <chrono>
#include <cstdint>
#include <ctime>
#if defined(__x86_64__) || defined(__i386__)
#include <x86intrin.h>
#endif

namespace rankwise {

using Clock = std::chrono::steady_clock;

inline int64_t clock_ns(clockid_t clock) {
    timespec t;
    clock_gettime(clock, &t);
    return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

inline uint64_t ticks() {
#if defined(__x86_64__) || defined(__i386__)
    return __rdtsc();
#elif defined(__aarch64__)
    uint64_t value;
    asm volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#else
    return uint64_t(clock_ns(CLOCK_MONOTONIC));
#endif
}

// The counter and the clocks (ns) at one moment.
struct ClockReading {
    uint64_t ticks;
    int64_t monotonic, realtime;
    static ClockReading now();
};

}  // namespace rankwise
