#include "p2p/progress_thread.hpp"

#include <algorithm>
#include <utility>

#include "base/policy.hpp"
#include "sync/engine_thread.hpp"
#include "sync/forks.hpp"
#include "sync/resting_threads.hpp"

namespace rankwise {

namespace {

constexpr Clock::time_point kNever = Clock::time_point::max();

}  // namespace

// A rank's first group is made before all its others, so no two threads make one for the same rank.
ProgressThread& ProgressThread::of(Segment& segment, int world_rank) {
    std::shared_ptr<ProgressThread>& own = segment.progress_threads.at(size_t(world_rank));
    if (!own)
        own = {new ProgressThread(segment.record(world_rank).progress_notifications),
               [fork = ForkMark()](ProgressThread* thread) {
                   if (!fork.is_child()) delete thread;  // in a forked child there is no such thread
               }};
    return *own;
}

ProgressThread::~ProgressThread() {
    if (!thread_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
    }
    notify();
    thread_.join();
}

void ProgressThread::serve(InBackground& messages) {
    const std::lock_guard lock(mutex_);
    messages.due_ = {};
    list(messages);
    notify();
}

void ProgressThread::listen(InBackground& messages) {
    const std::lock_guard lock(mutex_);
    if (!messages.listed_) messages.due_ = kNever;
    list(messages);
}

void ProgressThread::list(InBackground& messages) {
    if (!thread_.joinable()) thread_ = engine_thread([this] { run(); });
    messages.again_ = true;
    if (!std::exchange(messages.listed_, true)) list_.append(messages);
}

void ProgressThread::dismiss(InBackground& messages) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return visited_ != &messages; });
    if (std::exchange(messages.listed_, false)) list_.remove(messages);
}

void ProgressThread::run() {
    never_runs_the_program();
    std::unique_lock lock(mutex_);
    while (!ends_) {
        const uint32_t seen = notifications_.load();
        const auto pause = std::min<Clock::duration>(visit_all(lock) - Clock::now(), kForever);
        if (ends_ || pause.count() <= 0) continue;
        lock.unlock();
        futex_sleep(notifications_, seen, pause);
        lock.lock();
    }
}

// Advances those that are notified, or due. Returns when the next one is due.
Clock::time_point ProgressThread::visit_all(std::unique_lock<std::mutex>& lock) {
    const Clock::time_point now = Clock::now();
    Clock::time_point earliest = kNever;
    for (InBackground* each = list_.first(); each;) {
        const bool ends = (each->notified() || each->due_ <= now) && !visit(*each, lock);
        InBackground* const next = list_.after(*each);
        if (ends) {
            list_.remove(*each);
            each->listed_ = false;
        } else {
            earliest = std::min(earliest, each->due_);
        }
        each = next;
    }
    return earliest;
}

// Returns whether there is something left to do.
bool ProgressThread::visit(InBackground& messages, std::unique_lock<std::mutex>& lock) {
    using Next = InBackground::Next;
    visited_ = &messages;
    messages.again_ = false;
    lock.unlock();
    const Next next = messages.advance();
    lock.lock();
    visited_ = nullptr;
    changed_.notify_all();
    messages.due_ = next == Next::Notified ? kNever : Clock::time_point();
    if (next == Next::Soon) messages.due_ = Clock::now() + kStandAside;
    if (next == Next::Later) messages.due_ = Clock::now() + kLongestSleep;
    if (messages.again_) messages.due_ = {};
    return messages.again_ || next != Next::Nothing;
}

}  // namespace rankwise
