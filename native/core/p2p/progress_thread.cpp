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

void ProgressThread::serve(BackgroundWork& work) {
    const std::lock_guard lock(mutex_);
    work.due_ = {};
    list(work);
    notify();
}

void ProgressThread::listen(BackgroundWork& work) {
    const std::lock_guard lock(mutex_);
    if (!work.listed_) work.due_ = kNever;
    list(work);
}

void ProgressThread::list(BackgroundWork& work) {
    if (!thread_.joinable()) thread_ = engine_thread([this] { run(); });
    work.again_ = true;
    if (!std::exchange(work.listed_, true)) list_.append(work);
}

void ProgressThread::dismiss(BackgroundWork& work) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return visited_ != &work; });
    if (std::exchange(work.listed_, false)) list_.remove(work);
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
    for (BackgroundWork* each = list_.first(); each;) {
        const bool ends = (each->take_notification() || each->due_ <= now) && !visit(*each, lock);
        BackgroundWork* const next = list_.after(*each);
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
bool ProgressThread::visit(BackgroundWork& work, std::unique_lock<std::mutex>& lock) {
    using Next = BackgroundWork::Next;
    visited_ = &work;
    work.again_ = false;
    lock.unlock();
    const Next next = work.advance();
    lock.lock();
    visited_ = nullptr;
    changed_.notify_all();
    work.due_ = next == Next::Notified ? kNever : Clock::time_point();
    if (next == Next::Soon) work.due_ = Clock::now() + kStandAside;
    if (next == Next::Later) work.due_ = Clock::now() + kLongestSleep;
    if (work.again_) work.due_ = {};
    return work.again_ || next != Next::Nothing;
}

}  // namespace rankwise
