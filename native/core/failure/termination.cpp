#include "failure/termination.hpp"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "base/policy.hpp"

namespace rankwise {

namespace {

struct {
    timer_t timer;  // sends SIGTERM
    pid_t owner = 0;
    std::atomic<int> signals{0};
    std::atomic<bool> loss{false};
} deferred;

// Only what is async-signal-safe.
void on_termination(int) {
    constexpr itimerspec once{{}, {0, std::chrono::nanoseconds(kToFindLoss).count()}};
    const int deferrals = deferred.loss ? kToReportLoss / kToFindLoss : 1;
    const bool owner = getpid() == deferred.owner;  // a forked child has no timer
    if (owner && ++deferred.signals <= deferrals && timer_settime(deferred.timer, 0, &once, nullptr) == 0) return;
    signal(SIGTERM, SIG_DFL);
    raise(SIGTERM);
}

}  // namespace

void defer_termination() {
    struct sigaction present {};
    sigaction(SIGTERM, nullptr, &present);
    if (present.sa_handler != SIG_DFL) return;
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGTERM;
    if (timer_create(CLOCK_MONOTONIC, &event, &deferred.timer) != 0) return;
    deferred.owner = getpid();
    struct sigaction action {};
    action.sa_handler = on_termination;
    action.sa_flags = SA_RESTART;
    sigaction(SIGTERM, &action, nullptr);
}

void loss_found() { deferred.loss = true; }

}  // namespace rankwise
