// An ordered queue of tasks. A thread of the pool (thread_pool.hpp) runs them, as soon as one is submitted that is not
// for waiters, or somebody calls hurry(); or a thread that waits for one of them does.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stream/task.hpp"

namespace rankwise {

class Stream {
public:
    // program: whose threads wait for the tasks.
    explicit Stream(Embedding& program = Embedding::none);
    Stream(const Stream&) = delete;
    ~Stream() {
        close(0);
        take_failed();
    }
    // site, or place: where the program submits it. Throws Closed.
    std::shared_ptr<Task> enqueue(std::shared_ptr<Task> task, std::string site = {}, const CodePlace& place = {});
    // The same for a function.
    std::shared_ptr<Task> submit(std::function<void()> body, CodeOf whose = CodeOf::Engine, std::string site = {});
    // A mark at the current end of the queue.
    std::shared_ptr<Task> mark();
    // A mark that is already reached; and another task that has run without being queued.
    static std::shared_ptr<Task> reached_mark();
    static std::shared_ptr<Task> finished(std::shared_ptr<Task> task);
    // Tasks that are submitted from now on wait for `mark`, of any stream. If the mark fails, because its stream was
    // closed or its group failed, all following tasks of this stream fail in the same way.
    void follow(std::shared_ptr<Task> mark);
    enum class WaitResult { Reached, Failed, Closing, Stopped };
    // Called by a task of this stream: sleeps until `mark` is done, this stream is closed, or `stop`, which is called
    // every kLongestSleep, returns true.
    WaitResult wait_for(const std::shared_ptr<Task>& mark, const std::function<bool()>& stop);
    // Whether all submitted tasks have run.
    bool idle() const { return pending_->load() == 0 || last_is_done(); }
    // The same, not counting a task that calls this.
    bool idle_but_for_caller() const { return pending_->load() <= (on_own_thread() ? 1 : 0); }
    // Whether all tasks that are left have begun.
    bool only_begun() const;
    // Called by a task that had not begun: whether all others that are left have.
    bool last_not_begun() const;
    // Where the program made the call that this thread runs: for a task, where it was submitted; "" in any other engine
    // thread.
    static std::string call_site(Embedding& program);
    // Whether the caller runs a task of this stream.
    bool on_own_thread() const;
    // Waits until all tasks submitted before have run, at most `timeout` seconds once others run them. Throws TimedOut.
    void sync(double timeout, const CallOptions& options = {});
    // The same without an error; returns whether the stream is idle.
    bool drain(double timeout);
    // A thread of the pool runs what is left, unless somebody waits for it before that thread has begun.
    void hurry();
    // The tasks for waiters, or of the program, that have failed, and whose error no `wait` has thrown. Each is
    // returned once.
    std::vector<std::shared_ptr<Task>> take_failed();
    // Cancels the waiting tasks (they fail with Closed), and waits for the running one. Returns false if it is user
    // code that did not return within `timeout` seconds; then it goes on.
    bool close(double timeout);

private:
    // A task is done for its waiters slightly before `pending` is decremented.
    bool last_is_done() const;
    std::shared_ptr<StreamCore> core_;  // shared with those who run it, who may outlive the stream
    const std::atomic<uint32_t>* pending_;
};

}  // namespace rankwise
