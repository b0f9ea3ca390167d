#include "stream/stream.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "stream/thread_pool.hpp"
#include "sync/waiter.hpp"

namespace rankwise {

void Task::finish() {
    body_ = nullptr;
    state_.fetch_or(kDone);
    futex_wake_all(state_);
}

// Processes that user code starts inherit the thread's signal mask: with all signals blocked, as in the engine's
// threads, nothing but SIGKILL would end them.
class Task::Signals {
public:
    explicit Signals(const Task& task) : changed_(task.user_code_) {
        if (changed_) pthread_sigmask(SIG_SETMASK, &task.signals_, &before_);
    }
    ~Signals() {
        if (changed_) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    Signals(const Signals&) = delete;

private:
    const bool changed_;
    sigset_t before_;
};

void Task::run() {
    try {
        const Signals of_the_program(*this);
        if (body_) body_();
    } catch (...) {
        failure_ = std::current_exception();
    }
    finish();
}

void Task::cancel(std::exception_ptr why) {
    failure_ = std::move(why);
    finish();
}

struct Stream::Core {
    static thread_local const Core* running_here;  // the one that this thread runs

    std::mutex mutex;
    std::condition_variable settled;  // wakes whoever waits: all tasks have run, or no thread runs the stream any more
    std::deque<std::shared_ptr<Task>> queue;
    std::shared_ptr<Task> current;  // the running task
    std::shared_ptr<Task> awaited;  // the mark for which it waits
    std::exception_ptr broken;      // why all following tasks are cancelled; only the thread uses it
    std::atomic<uint32_t> pending{0};
    std::atomic<bool> closing{false};
    bool running = false;  // a thread runs the stream
    Embedding& program;
    const ForkMark fork;

    explicit Core(Embedding& program) : program(program) {}
    void run();
    Outcome wait_for(const std::shared_ptr<Task>& mark, const std::function<bool()>& stop);
    // A forked child has a copy of this but no thread that runs it; it must not even lock the mutex.
    void check_usable() const {
        if (fork.is_child()) throw Closed("this stream belongs to the parent of this forked process");
    }
};

thread_local const Stream::Core* Stream::Core::running_here = nullptr;

Stream::Stream(Embedding& program) : core_(std::make_shared<Core>(program)), pending_(&core_->pending) {}

bool Stream::on_own_thread() const { return Core::running_here == core_.get(); }

std::string Stream::call_site(Embedding& program) {
    if (!is_engine_thread) return program.call_site();
    return Core::running_here && Core::running_here->current ? Core::running_here->current->site_ : "";
}

std::shared_ptr<Task> Stream::submit(std::function<void()> body, bool user_code, std::shared_ptr<void> keep,
                                     std::string site) {
    core_->check_usable();
    auto task = std::make_shared<Task>(std::move(body), std::move(keep));
    task->stream_ = core_.get();
    task->program_ = &core_->program;
    task->site_ = std::move(site);
    task->user_code_ = user_code;
    if (user_code) pthread_sigmask(SIG_SETMASK, nullptr, &task->signals_);
    std::lock_guard lock(core_->mutex);
    if (core_->closing) throw Closed("this stream is closed");
    if (!core_->running) thread_pool::run([core = core_] { core->run(); });  // run() first waits for the mutex
    core_->running = true;
    core_->queue.push_back(task);
    core_->pending.fetch_add(1);
    return task;
}

void Task::wait(double timeout) {
    const auto check = [this] {
        if (of_parent()) throw Closed("this operation belongs to the parent of this forked process");
        if (stream_ && stream_ == Stream::Core::running_here)
            throw Error("work on a stream cannot wait for work queued behind it on the same stream");
    };
    if (!Waiter(timeout, *program_).sleep({state_}, [this] { return done(); }, check))
        throw TimedOut("the operation was not complete within " + seconds(timeout) + "; it stays queued", timeout, {},
                       {}, "wait", -1);
    if (failure_) std::rethrow_exception(failure_);
}

std::shared_ptr<Task> Stream::mark() {
    core_->check_usable();
    {
        std::lock_guard lock(core_->mutex);
        if (core_->pending.load() == 0 && !core_->broken && !core_->closing) return reached_mark();
    }
    return submit(nullptr);
}

std::shared_ptr<Task> Stream::reached_mark() {
    auto task = std::make_shared<Task>(nullptr);
    task->state_.store(Task::kDone);
    return task;
}

void Stream::follow(std::shared_ptr<Task> mark) {
    core_->check_usable();
    if (mark->stream_ == core_.get() || mark->succeeded()) return;
    submit([core = core_.get(), mark = std::move(mark)] {  // the thread that runs this keeps the core alive
        switch (core->wait_for(mark, nullptr)) {
        case Outcome::Failed: core->broken = mark->failure_; return;
        case Outcome::Closing: throw Closed("this stream was closed while it waited for an event");
        default: return;
        }
    });
}

Stream::Outcome Stream::wait_for(const std::shared_ptr<Task>& mark, const std::function<bool()>& stop) {
    return core_->wait_for(mark, stop);
}

Stream::Outcome Stream::Core::wait_for(const std::shared_ptr<Task>& mark, const std::function<bool()>& stop) {
    {
        std::lock_guard lock(mutex);
        awaited = mark;
    }
    Outcome outcome = Outcome::Stopped;
    const auto ended = [&] {
        if (mark->done()) outcome = mark->succeeded() ? Outcome::Reached : Outcome::Failed;
        else if (closing) outcome = Outcome::Closing;  // close sets `closing` before it increments the futex
        else return stop && stop();
        return true;
    };
    Waiter(kForever, Embedding::none, stop ? std::chrono::nanoseconds(kLongestSleep) : kForever)
        .sleep({mark->state_}, ended, [] {});
    std::lock_guard lock(mutex);
    awaited.reset();
    return outcome;
}

void Stream::Core::run() {
    running_here = this;
    std::unique_lock lock(mutex);
    while (!closing && !queue.empty()) {
        current = std::move(queue.front());
        queue.pop_front();
        Task& task = *current;
        lock.unlock();
        if (broken) task.cancel(broken);
        else task.run();
        if (fork.is_child()) return;  // in a child that the task has forked: the queue is its parent's
        lock.lock();
        const auto finished = std::move(current);
        if (pending.fetch_sub(1) == 1) settled.notify_all();
    }
    running = false;
    running_here = nullptr;
    settled.notify_all();
}

bool Stream::last_is_done() const {
    if (core_->fork.is_child()) return false;
    std::lock_guard lock(core_->mutex);
    return core_->queue.empty() && (!core_->current || core_->current->done());
}

void Stream::sync(double timeout) {
    if (idle() || on_own_thread()) return;
    submit(nullptr)->wait(timeout);
}

bool Stream::drain(double timeout) {
    if (idle_but_for_caller() || core_->fork.is_child()) return true;
    if (on_own_thread()) return false;
    std::unique_lock lock(core_->mutex);
    return core_->settled.wait_for(lock, std::chrono::duration<double>(std::min(timeout, 1e9)),
                                   [&] { return core_->pending.load() == 0; });
}

bool Stream::close(double timeout) {
    Core& core = *core_;
    if (core.fork.is_child()) return true;
    std::deque<std::shared_ptr<Task>> cancelled;
    {
        std::lock_guard lock(core.mutex);
        core.closing = true;
        cancelled.swap(core.queue);
        if (core.awaited) {
            core.awaited->state_.fetch_add(Task::kWakeUp);
            futex_wake_all(core.awaited->state_);
        }
    }
    const auto why =
        std::make_exception_ptr(Closed("the stream was closed before this work, or work that it waits for, began"));
    for (auto& task : cancelled) task->cancel(why);
    {
        std::lock_guard lock(core.mutex);
        core.pending.fetch_sub(uint32_t(cancelled.size()));
        core.settled.notify_all();
    }
    if (on_own_thread()) return true;  // closed by one of its own tasks
    const auto until = Clock::now() + std::chrono::duration<double>(timeout);
    std::unique_lock lock(core.mutex);
    while (core.running) {
        if (!core.current || !core.current->user_code_) core.settled.wait(lock);
        else if (core.settled.wait_until(lock, until) == std::cv_status::timeout) return false;
    }
    return true;
}

}  // namespace rankwise
