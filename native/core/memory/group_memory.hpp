// The memory of a group, as one rank uses it: who may use it, and until when.
//
// Whoever uses it holds a lease, or runs a call, of which there is one at a time. After close no use begins, and the
// last one to end releases the memory, so no thread ever uses memory that already belongs to others, however long a
// call lasts. All of that is one word, so a use that begins and a close cannot miss each other.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "memory/group_segment.hpp"
#include "sync/waiter.hpp"

namespace rankwise {

class GroupMemory {
public:
    GroupMemory(std::shared_ptr<Segment> segment, uint64_t offset, int rank)
        : segment_(std::move(segment)), offset_(offset), rank_(rank) {}
    GroupMemory(const GroupMemory&) = delete;
    GroupSegment& group() const { return *segment_->at<GroupSegment>(offset_); }

    // Begins a call, and locks out the others. Returns false if another call, or a thread between its calls, has the
    // lock.
    bool try_begin() {
        uint32_t now = 0;
        return uses_.compare_exchange_strong(now, kLocked | kCall) || (!(now & kClosed) && try_begin(now));
    }
    // Begins a call of the thread that has the lock. Returns false after close.
    bool begin_locked();
    // Ends the call and keeps the lock for the thread's next call, or gives up the lock too, or the lock alone.
    void end_call() { subtract(kCall); }
    void end_call_and_unlock() { subtract(kLocked | kCall); }
    void unlock() { subtract(kLocked); }
    // try_begin() once other threads give up the lock. Returns false at the waiter's deadline; check: see Waiter.
    template <class Check> bool begin_when_unlocked(Waiter waiter, const Check& check) {
        return waiter.sleep({uses_}, [this] { return try_begin_or_await(); }, check);
    }

    // What a thread does with the memory, for as long as this lives.
    class Use;
    class Lease;

    // No use begins any more. What has begun goes on.
    void close();
    bool closed() const { return uses_.load() & kClosed; }
    // Whether a call is running, of this thread, or of another one; and whether other threads use the memory in any
    // way.
    bool in_own_call() const { return own_uses() & kCall; }
    bool in_call_of_others() const { return (uses_.load() & kCall) != (own_uses() & kCall); }
    bool used_by_others() const { return (uses_.load() & kUses) != own_uses(); }

private:
    static constexpr uint32_t kClosed = 1;
    static constexpr uint32_t kLocked = 2;   // by a running call, or by a thread between its calls
    static constexpr uint32_t kAwaited = 4;  // a thread sleeps until it is unlocked
    static constexpr uint32_t kCall = 8;     // a call is running
    static constexpr uint32_t kLease = 16;   // the number of leases is above the other bits
    static constexpr uint32_t kUses = ~(kLease - 1) | kCall;

    bool try_begin(uint32_t now);
    bool try_begin_or_await();
    bool take_lease();
    // Ends what these bits stand for.
    void subtract(uint32_t bits) {
        const uint32_t before = uses_.fetch_sub(bits);
        if (before != bits) ended(bits, before);
    }
    void ended(uint32_t bits, uint32_t before);
    void release();
    uint32_t own_uses() const;

    const std::shared_ptr<Segment> segment_;
    const uint64_t offset_;
    const int rank_;
    std::atomic<uint32_t> uses_{0};  // also the futex of those that wait for the lock
};

// The uses of a thread form a list, because a signal handler may close the group that its own thread uses.
class GroupMemory::Use {
public:
    static Use call(const GroupMemory& memory) { return Use(memory, kCall); }
    ~Use() { innermost = outer_; }
    Use(const Use&) = delete;

private:
    friend class GroupMemory;
    Use(const GroupMemory& memory, uint32_t kind)
        : memory_(memory), kind_(kind), outer_(std::exchange(innermost, this)) {}
    [[gnu::tls_model("initial-exec")]] static inline thread_local constinit const Use* innermost = nullptr;
    const GroupMemory& memory_;
    const uint32_t kind_;
    const Use* const outer_;
};

// A use that other threads need not wait for. False after close, unless this thread uses the memory already.
class GroupMemory::Lease {
public:
    explicit Lease(GroupMemory& memory)
        : memory_(memory), held_(memory.take_lease()), use_(memory, held_ ? kLease : 0) {}
    ~Lease() {
        if (held_) memory_.subtract(kLease);
    }
    explicit operator bool() const { return held_; }

private:
    GroupMemory& memory_;
    const bool held_;
    const Use use_;
};

}  // namespace rankwise
