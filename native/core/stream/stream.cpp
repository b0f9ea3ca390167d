#include "stream/stream.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "failure/errors.hpp"

namespace rankwise {

namespace {

thread_local const void* running_stream = nullptr;  // whose thread this is
constexpr std::chrono::hours kForever{1};            // of one sleep, where nothing but a wake-up can change things

// Asks for longer turns on the core than other threads have (Linux 6.12 and later), with no more of it in
// all. A thread with shorter ones then takes the core at once when it wakes: the program's own, back from
// a sleep or from a device, is not kept waiting until a piece of the stream has run. No longer than
// that takes, since a thread also waits for its turn the longer, the longer these are. Where it is
// refused, it stays as it was.
void take_longer_turns() {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;  // nanoseconds
    } wanted{};
    wanted.size = sizeof wanted;
    if (syscall(SYS_sched_getattr, 0, &wanted, sizeof wanted, 0) != 0 || wanted.policy != SCHED_OTHER || !wanted.runtime) return;
    wanted.runtime *= 2;
    syscall(SYS_sched_setattr, 0, &wanted, 0);
}

}  // namespace

std::thread engine_thread(std::function<void()> body) {
    sigset_t all, before;  // signals are for the program's own threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread thread([body = std::move(body)] {
        is_engine_thread = true;
        body();
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
}

void Task::finish() {
    body_ = nullptr;
    state_.fetch_or(kDone);
    futex_wake_all(state_);
}

void Task::run() {
    try {
        if (body_) body_();
    } catch (...) {
        failure_ = std::current_exception();
    }
    finish();
}

void Task::drop(std::exception_ptr why) {
    failure_ = std::move(why);
    finish();
}

void Task::wait(double timeout) {
    const auto since = Clock::now();
    for (uint32_t seen; !((seen = state_.load()) & kDone);) {
        if (forks_ != forks_so_far()) throw Closed("this operation is under way in the parent of this forked process");
        if (running_stream && home_ == running_stream) throw Error("work on a stream cannot wait for what is queued behind it on the same stream");
        const auto left = std::chrono::duration<double>(timeout) - (Clock::now() - since);
        if (left.count() <= 0)
            throw TimedOut("the operation was not complete within " + seconds(timeout) + "; it stays queued", timeout, {}, {}, "wait", -1);
        futex_sleep(state_, seen, sleep_limit(left));
        if (interrupted()) throw Interrupted();
    }
    if (failure_) std::rethrow_exception(failure_);
}

struct Stream::Core {
    std::mutex mutex;
    std::condition_variable wake;     // for the thread: work, or the end
    std::condition_variable settled;  // for others: the queue is empty, or the thread has ended
    std::deque<std::shared_ptr<Task>> queue;
    std::shared_ptr<Task> current;  // the piece that runs
    std::shared_ptr<Task> awaited;  // the mark that it waits for
    std::exception_ptr broken;      // why all that follows is dropped; the thread's own
    std::atomic<uint32_t> pending{0};
    std::atomic<bool> closing{false};
    bool ended = false;
    std::thread thread;
    const unsigned forks = forks_so_far();

    void run();
    Met meet(const std::shared_ptr<Task>& mark, const std::function<bool()>& enough);
    bool forked() const { return forks != forks_so_far(); }
    // A child has a copy of this but not the thread; it may not even ask for the mutex.
    void check_usable() const {
        if (forked()) throw Closed("this stream belongs to the parent of this forked process");
    }
};

Stream::Stream() : core_(std::make_shared<Core>()), pending_(&core_->pending) {}

bool Stream::here() const { return running_stream == core_.get(); }

std::shared_ptr<Task> Stream::submit(std::function<void()> body, bool foreign) {
    core_->check_usable();
    auto task = std::make_shared<Task>(std::move(body));
    task->home_ = core_.get();
    task->foreign_ = foreign;
    std::lock_guard lock(core_->mutex);
    if (core_->closing) throw Closed("this stream is closed");
    core_->queue.push_back(task);
    if (!core_->thread.joinable()) core_->thread = engine_thread([core = core_] { core->run(); });
    core_->pending.fetch_add(1);
    core_->wake.notify_one();
    return task;
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
    if (mark->home_ == core_.get() || mark->succeeded()) return;
    submit([core = core_.get(), mark = std::move(mark)] {  // its thread keeps the core
        switch (core->meet(mark, nullptr)) {
        case Met::Failed: core->broken = mark->failure_; return;
        case Met::Closing: throw Closed("this stream was closed while it waited for an event");
        default: return;
        }
    });
}

Stream::Met Stream::meet(const std::shared_ptr<Task>& mark, const std::function<bool()>& enough) {
    return core_->meet(mark, enough);
}

Stream::Met Stream::Core::meet(const std::shared_ptr<Task>& mark, const std::function<bool()>& enough) {
    {
        std::lock_guard lock(mutex);
        awaited = mark;
    }
    const auto limit = enough ? std::chrono::nanoseconds(kLongestSleep) : std::chrono::nanoseconds(kForever);
    Met met;
    for (;;) {
        const uint32_t seen = mark->state_.load();
        if (seen & Task::kDone) {
            met = mark->succeeded() ? Met::Reached : Met::Failed;
            break;
        }
        met = Met::Closing;  // close sets `closing` before it nudges
        if (closing) break;
        met = Met::Enough;
        if (enough && enough()) break;
        futex_sleep(mark->state_, seen, limit);
    }
    std::lock_guard lock(mutex);
    awaited.reset();
    return met;
}

void Stream::Core::run() {
    running_stream = this;
    take_longer_turns();
    std::unique_lock lock(mutex);
    for (;;) {
        wake.wait(lock, [&] { return closing || !queue.empty(); });
        if (closing) break;
        current = std::move(queue.front());
        queue.pop_front();
        Task& task = *current;
        lock.unlock();
        if (broken) task.drop(broken);
        else task.run();
        lock.lock();
        const auto finished = std::move(current);
        if (pending.fetch_sub(1) == 1) settled.notify_all();
    }
    ended = true;
    settled.notify_all();
}

bool Stream::last_is_done() const {
    if (core_->forked()) return false;
    std::lock_guard lock(core_->mutex);
    return core_->queue.empty() && (!core_->current || core_->current->done());
}

void Stream::sync(double timeout) {
    if (idle() || here()) return;
    submit(nullptr)->wait(timeout);
}

bool Stream::drain(double timeout) {
    if (idle_but_for_caller() || core_->forked()) return true;
    if (here()) return false;
    std::unique_lock lock(core_->mutex);
    return core_->settled.wait_for(lock, std::chrono::duration<double>(std::min(timeout, 1e9)), [&] { return core_->pending.load() == 0; });
}

bool Stream::close(double patience) {
    Core& core = *core_;
    if (core.forked()) return true;
    std::deque<std::shared_ptr<Task>> dropped;
    std::thread thread;
    {
        std::lock_guard lock(core.mutex);
        core.closing = true;
        dropped.swap(core.queue);
        thread = std::move(core.thread);
        core.wake.notify_all();
        if (core.awaited) {
            core.awaited->state_.fetch_add(Task::kNudge);
            futex_wake_all(core.awaited->state_);
        }
    }
    const auto why = std::make_exception_ptr(Closed("closed before this began, or what this waits for"));
    for (auto& task : dropped) task->drop(why);
    {
        std::lock_guard lock(core.mutex);
        core.pending.fetch_sub(uint32_t(dropped.size()));
        core.settled.notify_all();
    }
    if (!thread.joinable()) return true;
    if (here()) {  // dropped by its own work
        thread.detach();
        return true;
    }
    const auto until = Clock::now() + std::chrono::duration<double>(patience);
    std::unique_lock lock(core.mutex);
    while (!core.ended) {
        if (core.current && core.current->foreign_) {
            if (Clock::now() >= until) {
                thread.detach();
                return false;
            }
            core.settled.wait_until(lock, until);
        } else {
            core.settled.wait(lock);
        }
    }
    lock.unlock();
    thread.join();
    return true;
}

}  // namespace rankwise
