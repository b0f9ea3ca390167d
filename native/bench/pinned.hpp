// Threads pinned to a core each, for measurements without an engine.
#pragma once
#include <thread>
#include <vector>

#include "sync/waiting.hpp"

inline std::vector<int> own_cores() {
    const cpu_set_t allowed = rankwise::allowed_cores();
    std::vector<int> cores;
    for (int core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &allowed)) cores.push_back(core);
    return cores;
}

// Runs body(which) for which = 0 to count - 1, all at once, each on its own core; there must be as many cores.
template <class Body> void run_pinned(size_t count, Body&& body) {
    const std::vector<int> cores = own_cores();
    std::vector<std::thread> threads;
    for (size_t which = 0; which < count; ++which)
        threads.emplace_back([&, which] {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cores[which], &one);
            sched_setaffinity(0, sizeof one, &one);
            body(int(which));
        });
    for (std::thread& thread : threads) thread.join();
}
