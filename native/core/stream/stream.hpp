// An ordered queue of tasks. While there are tasks, a thread runs them (thread_pool.hpp).
#pragma once
#include <signal.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "sync/embedding.hpp"
#include "sync/forks.hpp"
#include "sync/waiting.hpp"

namespace rankwise {

// A task of a stream. Any thread may use it. A task without a body is a mark: it is done when all tasks before it are.
class Task {
public:
    explicit Task(std::function<void()> body, std::shared_ptr<void> keep = {})
        : keep(std::move(keep)), body_(std::move(body)) {}
    // Waits until it has run, at most `timeout` seconds, and rethrows what it threw. After TimedOut it stays queued.
    void wait(double timeout);
    bool done() const { return state_.load() & kDone; }
    bool of_parent() const { return fork_.is_child(); }  // this is a forked child: nobody runs it
    bool succeeded() const { return done() && !failure_; }
    const std::shared_ptr<void> keep;  // what owns the memory that the body uses

private:
    friend class Stream;
    static constexpr uint32_t kDone = 1, kWakeUp = 2;
    class Signals;
    void run();
    void cancel(std::exception_ptr why);
    void finish();
    std::function<void()> body_;
    std::exception_ptr failure_;
    std::atomic<uint32_t> state_{0};  // futex: kDone, and above it a count of wake-ups
    const ForkMark fork_;
    const void* stream_ = nullptr;  // the core of the stream on which it is queued
    Embedding* program_ = &Embedding::none;
    std::string site_;  // where the program submitted it
    bool user_code_ = false;
    sigset_t signals_{};  // those that user code blocks: as in the thread that has submitted it
};

class Stream {
public:
    // program: whose threads wait for the tasks.
    explicit Stream(Embedding& program = Embedding::none);
    Stream(const Stream&) = delete;
    ~Stream() { close(0); }
    // user_code: the body is the program's own code, which may never return. site: where the program submits it.
    std::shared_ptr<Task> submit(std::function<void()> body, bool user_code = false, std::shared_ptr<void> keep = {},
                                 std::string site = {});
    // A mark at the current end of the queue.
    std::shared_ptr<Task> mark();
    // A mark that is already reached.
    static std::shared_ptr<Task> reached_mark();
    // Tasks that are submitted from now on wait for `mark`, of any stream. If the mark fails, because its stream was
    // closed or its group failed, all following tasks of this stream fail in the same way.
    void follow(std::shared_ptr<Task> mark);
    enum class Outcome { Reached, Failed, Closing, Stopped };
    // Called by a task of this stream: sleeps until `mark` is done, this stream is closed, or `stop`, which is called
    // every kLongestSleep, returns true.
    Outcome wait_for(const std::shared_ptr<Task>& mark, const std::function<bool()>& stop);
    // Whether all submitted tasks have run.
    bool idle() const { return pending_->load() == 0 || last_is_done(); }
    // The same, not counting a task that calls this.
    bool idle_but_for_caller() const { return pending_->load() <= (on_own_thread() ? 1 : 0); }
    // Where the program made the call that this thread runs: in a stream's thread, where it submitted the task; "" in
    // any other engine thread.
    static std::string call_site(Embedding& program);
    // Whether the caller is the thread that runs the tasks.
    bool on_own_thread() const;
    // Waits until all tasks submitted before have run, at most `timeout` seconds. Throws TimedOut.
    void sync(double timeout);
    // The same without an error; returns whether the stream is idle.
    bool drain(double timeout);
    // Cancels the waiting tasks (they fail with Closed), and waits for the running one. Returns false if it is user
    // code that did not return within `timeout` seconds; then it goes on.
    bool close(double timeout);

private:
    friend class Task;
    // A task is done for its waiters slightly before its thread has decremented `pending`.
    bool last_is_done() const;
    struct Core;
    std::shared_ptr<Core> core_;  // shared with the thread that runs it, which may outlive the stream
    const std::atomic<uint32_t>* pending_;
};

}  // namespace rankwise
