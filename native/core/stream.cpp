#include "stream.hpp"

#include <signal.h>

#include <algorithm>

#include "errors.hpp"

namespace rankwise {

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

void Task::run() noexcept {
    try {
        body_();
    } catch (...) {
        failure_ = std::current_exception();
    }
    body_ = nullptr;
    finished_.store(1);
    futex_wake_all(finished_);
}

void Task::wait(double timeout) {
    const auto since = Clock::now();
    while (!finished_.load()) {
        const auto left = std::chrono::duration<double>(timeout) - (Clock::now() - since);
        if (left.count() <= 0)
            throw TimedOut("the operation was not complete within " + seconds(timeout) + "; it stays queued", timeout, {}, {}, "wait", -1);
        futex_sleep(finished_, 0, nap_before(left));
        if (interrupted()) throw Interrupted();
    }
    if (failure_) std::rethrow_exception(failure_);
}

std::shared_ptr<Task> Stream::submit(std::function<void()> body) {
    auto task = std::make_shared<Task>(std::move(body));
    std::lock_guard lock(mutex_);
    if (closing_) throw Closed("this stream is closed");
    queue_.push_back(task);
    if (!thread_.joinable()) thread_ = engine_thread([this] { run(); });
    pending_.fetch_add(1);  // after the thread exists: who sees work pending may ask for its id
    wake_.notify_one();
    return task;
}

void Stream::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [&] { return closing_ || !queue_.empty(); });
        if (closing_) return;
        auto task = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        task->run();
        lock.lock();
        pending_.fetch_sub(1);
    }
}

void Stream::sync(double timeout) {
    if (idle() || here()) return;
    submit([] {})->wait(timeout);
}

void Stream::close() {
    {
        std::lock_guard lock(mutex_);
        closing_ = true;
        wake_.notify_all();
    }
    if (thread_.joinable() && !here()) thread_.join();
    for (auto& task : queue_) {
        task->body_ = [] { throw Closed("the communicator was closed before this operation began"); };
        task->run();
    }
    queue_.clear();
    pending_.store(0);
}

}  // namespace rankwise
