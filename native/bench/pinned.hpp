// Threads pinned to a core each, for measurements without an engine.
#pragma once
#include <thread>
#include <vector>

#include "sync/cpu_set.hpp"

inline std::vector<int> own_cores() {
    const rankwise::CpuSet allowed = rankwise::CpuSet::allowed();
    std::vector<int> cores;
    for (int core = 0; core < allowed.end(); ++core)
        if (allowed.contains(core)) cores.push_back(core);
    return cores;
}

// Runs body(which) for which = 0 to count - 1, all at once, each on its own core; there must be as many cores.
template <class Body> void run_pinned(size_t count, Body&& body) {
    const std::vector<int> cores = own_cores();
    std::vector<std::thread> threads;
    for (size_t which = 0; which < count; ++which)
        threads.emplace_back([&, which] {
            rankwise::CpuSet::of(cores[which]).apply();
            body(int(which));
        });
    for (std::thread& thread : threads) thread.join();
}
