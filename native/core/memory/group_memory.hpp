// The memory of a group, as one rank uses it: who may use it, and until when.
//
// Whoever uses it holds a lease, or runs a call, of which there is one at a time. After close no use begins, and the
// last one to end releases the memory, so no thread ever uses memory that already belongs to others, however long a
// call lasts. All of that is one word, so a use that begins and a close cannot miss each other.
//
// With the CMake option RANKWISE_POISON, a build for tests, each rank uses the memory through a mapping of its own,
// which becomes inaccessible when the rank releases it: whoever uses it later crashes.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "memory/group_segment.hpp"
#include "sync/waiter.hpp"

namespace rankwise {

class GroupMemory {
public:
    GroupMemory(std::shared_ptr<Segment> segment, uint64_t offset, int rank);
    GroupMemory(const GroupMemory&) = delete;
    GroupSegment& group() const { return group_; }
    uint64_t offset() const { return offset_; }  // in the segment

    class Use;    // a thread's lease or call
    class Lease;  // an object's lease
    class Lock;   // a call's lock, kept for the thread's next calls

    // Refused after close, unless the calling thread uses the memory already.
    Use lease();
    // No use, like one that was refused.
    Use no_use();
    // Begins a call, which call_with_lock() then returns, and locks out the others. Returns false if another call, or a
    // thread between its calls, has the lock.
    bool try_begin() { return begin(kLocked | kCall, kLocked | kClosed); }
    // Begins a call, which call_inside_lock() then returns, of the thread that has a Lock. Returns false after close.
    bool begin_locked() { return begin(kCall, kClosed); }
    // try_begin() once other threads give up the lock. Returns false at the waiter's deadline; check: see Waiter.
    template <class Check> bool begin_when_unlocked(Waiter waiter, const Check& check) {
        return waiter.sleep({unlocked_}, [this] { return try_begin_or_register(); }, check);
    }
    // The call that has begun. Unless a Lock keeps the lock, the call's end gives it up. Functions of their own, since
    // a Use cannot be moved out of an `if`.
    Use call_with_lock();
    Use call_inside_lock();
    // Whether the calling thread has a Lock.
    bool locked_by_caller() const { return lock_owner_.load() == std::this_thread::get_id(); }

    // No use begins any more. What has begun goes on.
    void close();
    bool closed() const { return uses_.load() & kClosed; }
    // Whether a call is running, of this thread, or of another one; and whether this thread, or others, use the memory
    // in any way.
    bool in_own_call() const { return own_uses() & kCall; }
    bool in_call_of_others() const { return (uses_.load() & kCall) != (own_uses() & kCall); }
    bool used_by_caller() const { return own_uses() || locked_by_caller(); }
    bool used_by_others() const { return (uses_.load() & kUses) != own_uses(); }

private:
    static constexpr uint32_t kClosed = 1;
    static constexpr uint32_t kLocked = 2;   // by a running call, or by a thread between its calls
    static constexpr uint32_t kAwaited = 4;  // a thread sleeps until it is unlocked
    static constexpr uint32_t kCall = 8;     // a call is running
    static constexpr uint32_t kLease = 16;   // the number of leases is above the other bits
    static constexpr uint32_t kUses = ~(kLease - 1) | kCall;

    // Begins what these bits stand for, unless one of the others is set.
    bool begin(uint32_t bits, uint32_t unless) {
        for (uint32_t now = uses_.load(); !(now & unless);)
            if (uses_.compare_exchange_weak(now, now + bits)) return true;
        return false;
    }
    bool try_begin_or_register();
    bool take_lease() { return begin(kLease, own_uses() ? 0 : kClosed); }
    void unlock();
    // Ends what these bits stand for.
    void subtract(uint32_t bits) {
        const uint32_t before = uses_.fetch_sub(bits);
        if (before & (kClosed | kAwaited)) ended(bits, before);
    }
    void ended(uint32_t bits, uint32_t before);
    void release();
    uint32_t own_uses() const;

    const std::shared_ptr<Segment> segment_;
    const uint64_t offset_;
    const int rank_;
    GroupSegment& group_;
    const ForkMark fork_;
    std::atomic<uint32_t> uses_{0};
    std::atomic<uint32_t> unlocked_{0};          // the futex of those that wait for the lock
    std::atomic<std::thread::id> lock_owner_{};  // the thread that has a Lock
    int lock_depth_ = 0;                         // how many it has
};

// What a thread does with the memory, for as long as this lives; false if it was refused. The uses of a thread form a
// list, because a signal handler may close the group that its own thread uses.
class GroupMemory::Use {
public:
    Use(const Use&) = delete;
    ~Use() {
        if (bits_) memory_.subtract(bits_);
        innermost = outer_;
    }
    explicit operator bool() const { return bits_; }

private:
    friend class GroupMemory;
    friend class Lock;
    Use(GroupMemory& memory, uint32_t bits) : memory_(memory), bits_(bits), outer_(std::exchange(innermost, this)) {}
    [[gnu::tls_model("initial-exec")]] static thread_local constinit const Use* innermost;
    GroupMemory& memory_;
    uint32_t bits_;  // what it ends
    const Use* const outer_;
};

inline GroupMemory::Use GroupMemory::lease() { return Use(*this, take_lease() ? kLease : 0); }
inline GroupMemory::Use GroupMemory::no_use() { return Use(*this, 0); }
inline GroupMemory::Use GroupMemory::call_with_lock() { return Use(*this, kCall | kLocked); }
inline GroupMemory::Use GroupMemory::call_inside_lock() { return Use(*this, kCall); }

// Refused as lease() is.
class GroupMemory::Lease {
public:
    explicit Lease(GroupMemory& memory) : memory_(memory.take_lease() ? &memory : nullptr) {}
    Lease(const Lease&) = delete;
    ~Lease() { end(); }
    void end() {
        if (GroupMemory* const memory = std::exchange(memory_, nullptr)) memory->subtract(kLease);
    }
    explicit operator bool() const { return memory_; }

private:
    GroupMemory* memory_;
};

// No other thread's call runs between this thread's calls. There may be several at a time.
class GroupMemory::Lock {
public:
    Lock() = default;
    explicit Lock(Use& call) : memory_(&call.memory_) {
        call.bits_ = kCall;
        memory_->lock_owner_ = std::this_thread::get_id();
        ++memory_->lock_depth_;
    }
    Lock(Lock&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
    ~Lock() {
        if (memory_) memory_->unlock();
    }
    explicit operator bool() const { return memory_; }

private:
    GroupMemory* memory_ = nullptr;
};

}  // namespace rankwise
