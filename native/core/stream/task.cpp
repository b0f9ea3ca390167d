#include "stream/task.hpp"

#include "base/errors.hpp"
#include "stream/stream_core.hpp"
#include "sync/waiter.hpp"

namespace rankwise {

void Task::attempt(const CallOptions& options) {
    try {
        run(options);
    } catch (const Interrupted&) {
        failure_ = interrupted();
        if (failure_) mark_done();
        throw;
    } catch (...) {
        failure_ = std::current_exception();
    }
    mark_done();
}

void Task::fail(std::exception_ptr why) {
    failure_ = std::move(why);
    mark_done();
}

void Task::mark_done() {
    state_.fetch_or(kDone);
    if (sleepers_.load()) futex_wake_all(state_);
}

void Task::check_can_wait() const {
    if (of_parent()) throw Closed("this operation belongs to the parent of this forked process");
    if (stream_ && stream_.get() == StreamCore::running_here)
        throw Error("work on a stream cannot wait for work queued behind it on the same stream");
}

void Task::rethrow() {
    if (!failure_) return;
    noticed_ = true;
    std::rethrow_exception(failure_);
}

void Task::wait(const CallOptions& options) {
    if (!ended()) {
        check_can_wait();
        stream_->help(this, StreamCore::Tasks::All, options);
        if (!ended()) stream_->await(*this, std::chrono::duration<double>(kForever).count(), options);
    }
    rethrow();
}

void Task::wait(double timeout, const CallOptions& options) {
    await_end(timeout, options);
    rethrow();
}

void Task::await_end(double timeout, const CallOptions& options) {
    if (done(options)) return;
    check_can_wait();
    if (!stream_->await(*this, timeout, options))
        throw TimedOut("the operation was not complete within " + seconds(timeout) + "; it stays queued", timeout, {},
                       {}, "wait", -1);
}

bool Task::done(const CallOptions& options) {
    if (ended() || !stream_ || of_parent() || stream_.get() == StreamCore::running_here) return ended();
    stream_->help(this, StreamCore::Tasks::Ready, options);
    if (!ended() && !begun()) stream_->hurry();
    return ended();
}

}  // namespace rankwise
