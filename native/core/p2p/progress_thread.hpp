// The thread of a rank that moves the messages that nobody waits for, in all its groups.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.hpp"
#include "base/linked_list.hpp"
#include "memory/segment.hpp"
#include "sync/waiting.hpp"

namespace rankwise {

// What the thread does for one group: move its messages, or run what the rank has started and deferred.
class BackgroundWork {
public:
    enum class Next : uint8_t {
        Again,     // something moved
        Soon,      // after kStandAside
        Later,     // when it is notified, or after kLongestSleep
        Notified,  // when it is notified
        Nothing,   // until `serve` is called again
    };
    // Moves what there is to move.
    virtual Next advance() noexcept = 0;
    // Whether somebody has notified this group since the last call.
    virtual bool take_notification() noexcept = 0;

protected:
    ~BackgroundWork() = default;

private:
    friend class ProgressThread;
    // Guarded by the thread's mutex.
    Links<BackgroundWork> links_;
    Clock::time_point due_;
    bool listed_ = false;
    bool again_ = false;  // `serve` has been called since the last advance() began
};

class ProgressThread {
public:
    // A rank's, which starts with the first call of `serve` or `listen`.
    static ProgressThread& of(Segment& segment, int world_rank);
    ~ProgressThread();
    ProgressThread(const ProgressThread&) = delete;

    // Calls advance() from now on, until it returns Nothing. Throws Error if the thread cannot be started.
    void serve(BackgroundWork& work);
    // The same, but only once the group is notified.
    void listen(BackgroundWork& work);
    // Waits until the thread is not in its advance(), which is not called again.
    void dismiss(BackgroundWork& work);
    // Makes the thread look which groups are notified.
    void notify() { futex_notify(notifications_); }

private:
    explicit ProgressThread(std::atomic<uint32_t>& notifications) : notifications_(notifications) {}
    void run();
    void list(BackgroundWork& work);
    Clock::time_point visit_all(std::unique_lock<std::mutex>& lock);
    bool visit(BackgroundWork& work, std::unique_lock<std::mutex>& lock);

    std::atomic<uint32_t>& notifications_;
    std::mutex mutex_;
    std::condition_variable changed_;
    LinkedList<BackgroundWork, &BackgroundWork::links_> list_;
    BackgroundWork* visited_ = nullptr;  // the one that is in advance()
    bool ends_ = false;
    std::thread thread_;
};

}  // namespace rankwise
