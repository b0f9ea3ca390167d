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

// The messages of one group, as the thread sees them.
class InBackground {
public:
    enum class Next : uint8_t {
        Again,     // something moved
        Soon,      // look again after kStandAside
        Later,     // when it is notified, or after kLongestSleep
        Notified,  // when it is notified
        Nothing,   // until `serve` is called again
    };
    // Moves what there is to move.
    virtual Next advance() noexcept = 0;
    // Whether somebody has notified this group since the last call.
    virtual bool notified() noexcept = 0;

protected:
    ~InBackground() = default;

private:
    friend class ProgressThread;
    // Guarded by the thread's mutex.
    Links<InBackground> links_;
    Clock::time_point due_;
    bool listed_ = false;
    bool again_ = false;  // `serve` has been called since the last advance() began
};

class ProgressThread {
public:
    // A rank's, which starts with the first call of `serve`.
    static ProgressThread& of(Segment& segment, int world_rank);
    ~ProgressThread();
    ProgressThread(const ProgressThread&) = delete;

    // Calls advance() from now on, until it returns Nothing. Throws Error if the thread cannot be started.
    void serve(InBackground& messages);
    // The same, but only once the group is notified.
    void listen(InBackground& messages);
    // After that, the thread does not use it any more. Its advance() must return Nothing by now.
    void dismiss(InBackground& messages);
    // Makes the thread look which groups are notified.
    void notify() { futex_notify(notifications_); }

private:
    explicit ProgressThread(std::atomic<uint32_t>& notifications) : notifications_(notifications) {}
    void run();
    void list(InBackground& messages);
    Clock::time_point visit_all(std::unique_lock<std::mutex>& lock);
    bool visit(InBackground& messages, std::unique_lock<std::mutex>& lock);

    std::atomic<uint32_t>& notifications_;
    std::mutex mutex_;
    std::condition_variable changed_;
    LinkedList<InBackground, &InBackground::links_> list_;
    InBackground* visited_ = nullptr;  // the one that is in advance()
    bool ends_ = false;
    std::thread thread_;
};

}  // namespace rankwise
