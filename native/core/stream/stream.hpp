// An ordered queue of work run by a thread of its own, which exists from the first piece of work on
// and sleeps while there is none.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "sync/forks.hpp"
#include "sync/waiting.hpp"

namespace rankwise {

// One piece of work. Safe to use from any thread. An empty one is a mark: done when all before it is.
class Task {
public:
    explicit Task(std::function<void()> body) : body_(std::move(body)) {}
    // Until it has run, at most `timeout` seconds; rethrows what it threw. TimedOut leaves it queued.
    void wait(double timeout);
    bool done() const { return state_.load() & kDone; }
    bool succeeded() const { return done() && !failure_; }

private:
    friend class Stream;
    static constexpr uint32_t kDone = 1, kNudge = 2;
    void run();
    void drop(std::exception_ptr why);
    void finish();
    std::function<void()> body_;
    std::exception_ptr failure_;
    std::atomic<uint32_t> state_{0};  // futex: kDone, and a count of nudges above it
    const unsigned forks_ = forks_so_far();
    const void* home_ = nullptr;      // the stream it is queued on
    bool foreign_ = false;
};

class Stream {
public:
    Stream();
    Stream(const Stream&) = delete;
    ~Stream() { close(0); }
    // foreign: the body is the program's own code, which may never end.
    std::shared_ptr<Task> submit(std::function<void()> body, bool foreign = false);
    // The present end of the queue.
    std::shared_ptr<Task> mark();
    // A mark that is reached already.
    static std::shared_ptr<Task> reached_mark();
    // What is submitted after this waits for `mark`, of any stream. Where that fails, since its stream
    // was closed or its group failed, this stream drops all that follows, which fails in the same way.
    void follow(std::shared_ptr<Task> mark);
    enum class Met { Reached, Failed, Closing, Enough };
    // In a piece of this stream: asleep until `mark` is done, this stream is closed, or `enough` says
    // so, which is asked every kLongestSleep.
    Met meet(const std::shared_ptr<Task>& mark, const std::function<bool()>& enough);
    // Whether all that was submitted has run.
    bool idle() const { return pending_->load() == 0 || last_is_done(); }
    // The same but for the piece that asks.
    bool idle_but_for_caller() const { return pending_->load() <= (here() ? 1 : 0); }
    // Whether the caller is the stream's own thread.
    bool here() const;
    // Until all that was submitted before has run, at most `timeout` seconds. Throws TimedOut.
    void sync(double timeout);
    // The same, without an error: whether it is idle.
    bool drain(double timeout);
    // Lets the piece that runs end, drops the others (they fail with Closed), and ends the thread.
    // False where a foreign piece did not end within `patience` seconds: its thread is left to it.
    bool close(double patience);

private:
    // A piece is done for those who wait for it a little before its thread has counted it.
    bool last_is_done() const;
    struct Core;
    std::shared_ptr<Core> core_;  // the thread's too, which may outlive the stream
    const std::atomic<uint32_t>* pending_;
};

// A thread of the engine: it takes no signals and never asks the embedding about interrupts.
std::thread engine_thread(std::function<void()> body);

}  // namespace rankwise
