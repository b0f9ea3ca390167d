#include "sync/resting_threads.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "base/text.hpp"

namespace rankwise {

namespace {

constexpr const char* kNeverActs = "rankwise-engine";  // the name of a thread; 15 characters at most

// These end the program, or are errors of the thread that gets them.
constexpr std::array kNoReason{SIGINT, SIGTERM, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

bool signals_may_act() {
    for (int signal = 1; signal < NSIG; ++signal) {
        struct sigaction action {};
        if (std::ranges::find(kNoReason, signal) != kNoReason.end() || sigaction(signal, nullptr, &action)) continue;
        if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) return true;
    }
    return false;
}

// call: its /proc/TID/syscall. Whether it waits, without a limit, for a futex that only this process can change.
bool rests(const std::string& call) {
    long number = -1, operation = 0, limit = 0;
    if (std::sscanf(call.c_str(), "%ld %*s %lx %*s %lx", &number, &operation, &limit) != 3) return false;
    const long wait = operation & FUTEX_CMD_MASK;
    return number == SYS_futex && (operation & FUTEX_PRIVATE_FLAG) && !limit &&
           (wait == FUTEX_WAIT || wait == FUTEX_WAIT_BITSET);
}

}  // namespace

void never_runs_the_program() { pthread_setname_np(pthread_self(), kNeverActs); }

std::optional<std::string> resting_threads() {
    if (signals_may_act()) return std::nullopt;
    const std::string own = std::to_string(syscall(SYS_gettid)), switches = "\nvoluntary_ctxt_switches:";
    std::string found;
    std::error_code none;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", none)) {
        const std::string path = thread.path();
        if (path.ends_with("/" + own) || contents(path + "/comm") == std::string(kNeverActs) + "\n") continue;
        if (!rests(contents(path + "/syscall"))) return std::nullopt;
        const std::string status = contents(path + "/status");
        const size_t at = status.find(switches);
        if (at == std::string::npos) return std::nullopt;
        found += path + status.substr(at, status.find('\n', at + 1) - at);
    }
    if (none) return std::nullopt;
    return found;
}

}  // namespace rankwise
