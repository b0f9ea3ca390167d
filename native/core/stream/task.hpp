// What a stream runs, and what its waiters wait for.
#pragma once
#include <atomic>
#include <exception>
#include <memory>
#include <string>

#include "sync/embedding.hpp"
#include "sync/forks.hpp"

namespace rankwise {

class StreamCore;

// Whose code a function of a task is. The program's may never return.
enum class CodeOf : bool { Engine, Program };

// An entry of a stream's queue. Any thread may use it. One that does nothing is a mark: it is done when all tasks
// before it are.
class Task {
public:
    Task() = default;
    Task(const Task&) = delete;
    virtual ~Task() = default;
    // Waits until it has run, and rethrows what it threw. The calling thread itself runs it, and the tasks before it,
    // if they are for waiters and nobody else runs the stream.
    void wait(const CallOptions& options = {});
    // The same, at most `timeout` seconds; a thread of the stream then runs it. After TimedOut it stays queued.
    void wait(double timeout, const CallOptions& options = {});
    // The same without what it threw.
    void await_end(double timeout, const CallOptions& options = {});
    // Whether it has run. What has begun is completed here if that needs no waiting; a thread runs the rest.
    bool done(const CallOptions& options = {});
    bool ended() const { return state_.load() & kDone; }
    bool succeeded() const { return ended() && !failure_; }
    bool of_parent() const { return fork_.is_child(); }  // this is a forked child: nobody runs it
    // Whether it has failed and no `wait` has thrown its error.
    bool failed_unnoticed() const { return ended() && failure_ && !noticed_.load(); }
    // What owns the memory that it uses lives as long as it does.
    void keep(std::shared_ptr<void> owner) { keep_ = std::move(owner); }

protected:
    // Whether whoever waits for it may run it. If not, a thread of the stream runs it, as soon as it can.
    virtual bool for_waiters() const { return false; }
    // Whether the calling thread may run it now.
    virtual bool may_run() const { return true; }
    // Whether it has begun, so that nobody else waits for it to run; and whether the rest needs no waiting.
    virtual bool begun() const { return false; }
    virtual bool ready() const { return false; }
    virtual void run(const CallOptions& /*options*/) {}
    // The error of one that an interrupt has ended; null if it can be run again.
    virtual std::exception_ptr interrupted() const { return std::current_exception(); }
    // Whether it runs a function of the program, which may never return.
    virtual bool of_program() const { return false; }

private:
    friend class StreamCore;
    friend class Stream;
    friend class TaskQueue;
    static constexpr uint32_t kDone = 1, kWakeUp = 2;
    // Runs it. Throws Interrupted if a wait in it was interrupted; it may then have to be run again.
    void attempt(const CallOptions& options);
    void fail(std::exception_ptr why);
    void mark_done();
    void check_can_wait() const;
    void rethrow();

    std::shared_ptr<void> keep_;
    std::exception_ptr failure_;
    std::atomic<uint32_t> state_{0};  // futex: kDone, and above it a count of wake-ups
    std::atomic<uint32_t> sleepers_{0};
    std::atomic<bool> noticed_{false};
    const ForkMark fork_{};
    std::shared_ptr<StreamCore> stream_;  // on which it is queued
    std::shared_ptr<Task> next_;          // behind it in a TaskQueue
    std::string site_;                    // where the program submitted it; or place_
    CodePlace place_;
};

}  // namespace rankwise
