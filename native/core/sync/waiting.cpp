#include "sync/waiting.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "base/mix.hpp"
#include "base/qualified_pid.hpp"
#include "base/text.hpp"

namespace rankwise {

namespace {

// The quota of cgroup v2 (cpu.max: "max 100000" or "150000 100000") or v1, in cores; 0 for none.
double cgroup_quota() {
    const auto quota = [](const std::string& used, const std::string& period) {  // "max" is 0
        const double micros = std::atof(used.c_str()), length = std::atof(period.c_str());
        return micros > 0 && length > 0 ? micros / length : 0;
    };
    const std::string unified = contents("/sys/fs/cgroup/cpu.max");
    if (const auto space = unified.find(' '); space != unified.npos) return quota(unified, unified.substr(space));
    return quota(contents("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), contents("/sys/fs/cgroup/cpu/cpu.cfs_period_us"));
}

}  // namespace

void move_to_cores(const CpuSet& cores, const CpuSet& allowed) {
    if (cores.apply()) allowed.apply();
}

ProcessCores process_cores() {
    const CpuSet allowed = CpuSet::allowed();
    uint64_t set = 0;
    for (int core = 0; core < allowed.end(); ++core)
        if (allowed.contains(core)) set = mix(set, uint64_t(core) + 1);
    const double quota = cgroup_quota();
    return {set, uint32_t(allowed.count()), quota > 0 ? std::max(1u, uint32_t(std::floor(quota))) : UINT32_MAX};
}

int usable_cores() {
    const ProcessCores own = process_cores();
    return int(std::max(1u, std::min(own.count, own.quota)));
}

bool share_cores(const std::vector<ProcessCores>& processes) {
    std::map<uint64_t, uint32_t> users;
    uint32_t cores = 0, most = uint32_t(get_nprocs_conf());
    for (const ProcessCores& one : processes) {
        if (users[one.set]++ == 0) cores += one.count;
        if (users[one.set] > std::max(1u, one.count)) return true;
        most = std::min(most, one.quota);
    }
    return processes.size() > std::max(1u, std::min(cores, most));
}

uint64_t scheduler_session() {
    const bool grouped = contents("/proc/sys/kernel/sched_autogroup_enabled").starts_with('1');
    return uint64_t(QualifiedPid::own().pid_namespace) << 32 | (grouped ? uint32_t(getsid(0)) : 0);
}

using namespace std::chrono_literals;

WaitPolicy WaitPolicy::on_own_cores() { return {50, 50us, 300, 20ms, 1ms}; }
WaitPolicy WaitPolicy::on_shared_cores() { return {0, 0us, 50, 20ms, 1ms}; }

void futex_sleep(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds limit) {
    timespec ts{time_t(limit.count() / 1'000'000'000), long(limit.count() % 1'000'000'000)};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &ts, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace rankwise
