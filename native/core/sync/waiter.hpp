// The one way to wait: poll, yield, then sleep on a futex, until something is done or the deadline has passed.
#pragma once
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/policy.hpp"
#include "sync/embedding.hpp"
#include "sync/forks.hpp"
#include "sync/waiting.hpp"

namespace rankwise {

// A futex that is incremented to wake the threads that sleep on it. sleepers: counts them, if whoever wakes them needs
// to know whether there are any.
struct Doorbell {
    std::atomic<uint32_t>& futex;
    std::atomic<uint32_t>* sleepers = nullptr;
};

// One wait of one thread.
class Waiter {
public:
    // timeout: from now on. program: may interrupt the wait, but not in an engine thread. longest: of one sleep.
    explicit Waiter(std::chrono::duration<double> timeout, Embedding& program = Embedding::none,
                    std::chrono::nanoseconds longest = kLongestSleep)
        : program_(program), timeout_(timeout), longest_(longest) {}
    explicit Waiter(double seconds, Embedding& program = Embedding::none)
        : Waiter(std::chrono::duration<double>(seconds), program) {}
    std::chrono::duration<double> spent() const { return Clock::now() - since_; }
    std::chrono::duration<double> left() const { return timeout_ - spent(); }
    // Moves the deadline.
    void expire_in(std::chrono::duration<double> left) { timeout_ = spent() + left; }

    // Spins and yields for as long as the policy says. Returns true as soon as done() does.
    template <class Done> bool poll(const WaitPolicy& policy, const Done& done) const {
        if (spin(policy.spinning, done)) return true;
        auto before = Clock::now();
        if (before < core_lost_until_) return false;
        for (int i = 0; i < policy.may_yield() && before - polls_since_ < policy.yielding; ++i) {
            sched_yield();
            const bool over = done();
            const auto after = Clock::now();
            const bool lost = after - before > policy.lost;
            if (lost) core_lost_until_ = after + kCoreLost;
            if (over || lost) return over;
            before = after;
        }
        return false;
    }
    // Spins until so long after the wait began, or last advanced.
    template <class Done> bool spin(std::chrono::microseconds longest, const Done& done) const {
        while (longest.count() && polled() < longest)
            for (int i = 0; i < kPollsPerClock; ++i) {
                cpu_relax();
                if (done()) return true;
            }
        return false;
    }
    // What the caller waits for has advanced: poll() and spin() begin again.
    void poll_on() { polls_since_ = Clock::now(); }

    // Sleeps until done() returns true; returns false at the deadline. Before each sleep, check() throws what else ends
    // the wait. Throws Interrupted. done() loads sequentially consistent, as is the registration before it: whoever
    // changes what it loads, and then looks for sleepers, sees this one, unless done() sees the change.
    template <class Done, class Check>
    bool sleep(const Doorbell& doorbell, const Done& done, const Check& check) const {
        struct Registration {  // withdrawn even if the wait ends in an exception
            std::atomic<uint32_t>* const sleepers;
            explicit Registration(std::atomic<uint32_t>* s) : sleepers(s) {
                if (sleepers) sleepers->fetch_add(1);
            }
            ~Registration() {
                if (sleepers && !fork.is_child()) sleepers->fetch_sub(1);
            }
            const ForkMark fork;
        } const registration(doorbell.sleepers);
        for (;;) {
            const uint32_t seen = doorbell.futex.load();
            if (done()) return true;
            check();
            if (done()) return true;  // by what check() has done
            auto left = this->left();
            if (left.count() <= 0) left = timeout_ - (Clock::now() - std::max(since_, program_.debugged()));
            if (left.count() <= 0) return false;
            futex_sleep(doorbell.futex, seen, sleep_limit(left, longest_));
            if (done()) return true;
            check_interrupted();
        }
    }

    // For what notifies no doorbell: checks done() every `interval`, or after each yield if that is 0.
    template <class Done> bool check_every(std::chrono::microseconds interval, const Done& done) const {
        while (!done()) {
            if (left().count() <= 0) return false;
            if (interval.count()) usleep(useconds_t(interval.count()));
            else sched_yield();
            check_interrupted();
        }
        return true;
    }

private:
    Clock::duration polled() const { return Clock::now() - polls_since_; }
    void check_interrupted() const {
        if (is_engine_thread) return;
        const ForkMark fork;
        if (program_.interrupted()) throw Interrupted();
        if (fork.is_child()) throw Closed("a signal handler has forked this process, and the child is no rank");
    }

    static constexpr int kPollsPerClock = 16;
    // Until then this thread does not yield its core, because another program would keep it.
    static inline thread_local constinit Clock::time_point core_lost_until_{};
    Embedding& program_;
    const Clock::time_point since_ = Clock::now();
    Clock::time_point polls_since_ = since_;
    std::chrono::duration<double> timeout_;
    const std::chrono::nanoseconds longest_;
};

}  // namespace rankwise
