#include "stream/stream_core.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "stream/thread_pool.hpp"
#include "sync/waiter.hpp"

namespace rankwise {

namespace {

std::exception_ptr error_of_closing() noexcept {
    try {
        throw Closed("the stream was closed before this work, or work that it waits for, began");
    } catch (...) {  // that, or that there was no memory for it
        return std::current_exception();
    }
}

}  // namespace

thread_local const StreamCore* StreamCore::running_here = nullptr;

void StreamCore::check_usable() const {
    if (fork.is_child()) throw Closed("this stream belongs to the parent of this forked process");
}

void StreamCore::start_thread() {
    if (thread_) return;
    thread_pool::run([self = shared_from_this()] { self->run(); });  // run() first waits for the mutex
    thread_ = true;
}

// Somebody must run what the threads in await() wait for.
void StreamCore::run_for_sleepers() {
    if (sleepers_ && !helped_ && !closing && !queue.empty()) start_thread();
}

void StreamCore::submit(const std::shared_ptr<Task>& task) {
    const std::lock_guard lock(mutex);
    if (closing) throw Closed("this stream is closed");
    if (!task->for_waiters()) start_thread();
    task->stream_ = shared_from_this();
    queue.push_back(task);
    if (task->begun()) begun.fetch_add(1);
    pending.fetch_add(1);
}

// The calling thread runs the stream, for as long as this lives.
class StreamCore::Helping {
public:
    explicit Helping(StreamCore& core) : core_(core), outer_(std::exchange(running_here, &core)) {
        core_.helped_ = true;
    }
    ~Helping() {
        running_here = outer_;
        if (core_.fork.is_child()) return;
        core_.helped_ = false;
        try {
            core_.run_for_sleepers();
        } catch (const std::exception&) {  // the sleepers try again
        }
        if (core_.thread_ || core_.closing) core_.changed.notify_all();
    }

private:
    StreamCore& core_;
    const StreamCore* const outer_;
};

void StreamCore::help(const Task* last, Tasks tasks, const CallOptions& options) {
    std::unique_lock lock(mutex);
    if (thread_runs_ || helped_ || closing) return;
    const auto mine = [&](const Task& task) {
        if (task.of_program() && &task != last) return false;  // what interrupts it belongs to who waits for it
        return task.for_waiters() && task.may_run() && (tasks == Tasks::All || (task.begun() && task.ready()));
    };
    if (queue.empty() || !mine(queue.front())) return;
    const Helping helping(*this);
    do run_first(lock, options);
    while (lock.owns_lock() && !closing && !queue.empty() && !(last && last->ended()) && mine(queue.front()));
}

void StreamCore::run_first(std::unique_lock<std::mutex>& lock, const CallOptions& options) {
    current = queue.pop_front();
    Task& task = *current;
    const bool had_begun = task.begun();
    std::exception_ptr interrupt;
    lock.unlock();
    try {
        if (broken) task.fail(broken);
        else task.attempt(options);
    } catch (const Interrupted&) {
        interrupt = std::current_exception();
    }
    if (!fork.is_child()) {  // in a child that the task has forked, the queue is its parent's
        lock.lock();
        const auto finished = std::move(current);
        if (!task.ended()) queue.push_front(finished);
        else {
            const bool ran = !broken && (task.for_waiters() || task.of_program());
            if (task.failure_ && ran && failed.size() < kMostFailed) failed.push_back(finished);
            if (had_begun) begun.fetch_sub(1);
            if (pending.fetch_sub(1) == 1) changed.notify_all();
        }
    }
    if (interrupt) std::rethrow_exception(interrupt);
}

void StreamCore::run() {
    running_here = this;
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return !helped_; });
    thread_runs_ = true;
    while (!closing && !queue.empty()) {
        run_first(lock, {});
        if (fork.is_child()) return;
    }
    thread_ = thread_runs_ = false;
    running_here = nullptr;
    changed.notify_all();
}

bool StreamCore::await(Task& task, double timeout, const CallOptions& options) {
    options.before_waiting();
    struct Sleeper {
        StreamCore& core;
        explicit Sleeper(StreamCore& c) : core(c) {
            const std::lock_guard lock(core.mutex);
            ++core.sleepers_;
        }
        ~Sleeper() {
            if (core.fork.is_child()) return;
            const std::lock_guard lock(core.mutex);
            --core.sleepers_;
        }
    } const sleeper(*this);
    const auto check = [&] {
        task.check_can_wait();
        const std::lock_guard lock(mutex);
        run_for_sleepers();
    };
    return Waiter(timeout, program).sleep({task.state_, &task.sleepers_}, [&] { return task.ended(); }, check);
}

void StreamCore::hurry() {
    if (fork.is_child()) return;
    const std::lock_guard lock(mutex);
    if (!queue.empty() && !closing) start_thread();
}

Stream::WaitResult StreamCore::wait_for(const std::shared_ptr<Task>& mark, const std::function<bool()>& stop) {
    using WaitResult = Stream::WaitResult;
    {
        const std::lock_guard lock(mutex);
        awaited = mark;
    }
    WaitResult result = WaitResult::Stopped;
    const auto ended = [&] {
        if (mark->ended()) result = mark->succeeded() ? WaitResult::Reached : WaitResult::Failed;
        else if (closing) result = WaitResult::Closing;  // close sets `closing` before it increments the futex
        else return stop && stop();
        return true;
    };
    Waiter(kForever, Embedding::none, stop ? std::chrono::nanoseconds(kLongestSleep) : kForever)
        .sleep({mark->state_, &mark->sleepers_}, ended, [] {});
    const std::lock_guard lock(mutex);
    awaited.reset();
    return result;
}

bool StreamCore::close(double timeout) {
    if (fork.is_child()) return true;
    TaskQueue cancelled;
    {
        const std::lock_guard lock(mutex);
        closing = true;
        cancelled.swap(queue);
        if (awaited) {
            awaited->state_.fetch_add(Task::kWakeUp);
            futex_wake_all(awaited->state_);
        }
    }
    const auto why = cancelled.empty() ? nullptr : error_of_closing();
    const size_t count = cancelled.size();
    while (!cancelled.empty()) cancelled.pop_front()->fail(why);
    {
        const std::lock_guard lock(mutex);
        pending.fetch_sub(uint32_t(count));
        changed.notify_all();
    }
    if (running_here == this) return true;  // closed by one of its own tasks
    const auto until = Clock::now() + std::chrono::duration<double>(timeout);
    std::unique_lock lock(mutex);
    while (thread_ || helped_) {
        if (!current || !current->of_program()) changed.wait(lock);
        else if (changed.wait_until(lock, until) == std::cv_status::timeout) return false;
    }
    return true;
}

}  // namespace rankwise
