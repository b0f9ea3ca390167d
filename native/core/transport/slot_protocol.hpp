// The protocol under every collective: numbered steps, announced by slot headers, with data in slots.
//
// All ranks of a group run the same schedule of steps. post() announces this rank's next step; await() waits for a
// peer's step and compares the two ranks' calls. Posting a step also acknowledges everything that this rank released
// before, and every step more than kAhead earlier. So a header or a slot may be overwritten once every peer has posted
// far enough: release() records how far that is for a slot, and await_free() waits for it. No message is sent only to
// acknowledge another.
//
// If a peer does not arrive, await() throws: the peer died or left, it made a different call, the group failed, the
// deadline passed, or the embedding interrupted the wait.
#pragma once
#include <sys/types.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <utility>

#include "base/errors.hpp"
#include "kernels/copy.hpp"
#include "memory/group_segment.hpp"
#include "sync/waiter.hpp"
#include "trace/trace.hpp"
#include "transport/conditions.hpp"

namespace rankwise {

struct FreeAligned {
    void operator()(uint8_t* p) const { ::operator delete[](p, std::align_val_t(64)); }
};

// Returns where in the program the calling thread made its call, "train.py:12", or "". Called when the group of that
// call has failed. Set once by the embedding.
extern std::string (*call_site)();

// Ranges of this rank's memory that were recently found to be accessible to peers. Programs reuse their arrays, and
// each test takes as long as a short message. If a range has been remapped since, the copy itself fails.
class ReachableRanges {
public:
    bool contains(const void* memory, size_t bytes) const {
        for (const Range& one : ranges_)
            if (one.memory == memory && one.bytes == bytes) return true;
        return false;
    }
    void add(const void* memory, size_t bytes) { ranges_[next_++ % kKnownRanges] = {memory, bytes}; }

private:
    struct Range {
        const void* memory = nullptr;
        size_t bytes = 0;
    } ranges_[kKnownRanges];
    size_t next_ = 0;
};

class alignas(kCacheLine) SlotProtocol {  // aligned, so that its members' cache lines do not depend on what precedes it
public:
    // part: as in Settings.
    SlotProtocol(Segment& segment, GroupSegment& group, int rank, WaitPolicy policy, bool part);

    const int rank, n;
    std::atomic<double> timeout{300};  // seconds that one wait may last
    Segment& segment() const { return segment_; }
    GroupSegment& group() const { return group_; }
    size_t slot_bytes() const { return group_.slot_bytes; }
    uint64_t calls() const { return calls_; }
    Op op() const { return call_.op(); }  // of the current call
    const Call& call() const { return call_; }
    const WaitPolicy& policy() const { return policy_; }
    bool part() const { return tracer_.part(); }
    void set_counted(bool now) { tracer_.set_counted(now); }
    const Conditions& conditions() const { return conditions_; }
    // Called before the program's first operation.
    void set_conditions(const Conditions& agreed) {
        conditions_ = agreed;
        policy_ = WaitPolicy::when(agreed.oversubscribed);
    }

    // Begin an operation of this rank on `bytes` of data. description may be null. Throws if the group has failed.
    void begin(const Call& call, uint64_t bytes, const Description* description);
    // Correct the number of bytes that begin() gave.
    void set_bytes(uint64_t bytes) { bytes_ = bytes; }
    // The operation has ended, normally or by an exception.
    void end();
    // This rank makes no more calls: throw if the ranks' calls differed and no call of this rank has reported it.
    void compare_last();
    // All ranks have joined: number the program's operations from 1.
    void restart_numbering();

    uint64_t next_step() const { return next_; }  // the number of the step that the next post announces
    // Announce the next step, with an inline payload of up to kInline bytes. Returns its number.
    uint64_t post(const void* payload = nullptr, size_t bytes = 0) {
        const uint64_t step = next_++;
        // This header's previous step is kHeaders back; its readers have finished once they are kAhead past it.
        if (step >= kHeaders) await_value_all(step - kHeaders + kAhead + 2);
        SlotHeader& header = group_.peers[rank].headers[step % kHeaders];
        header.set_call(history_, call_);
        if (bytes) std::memcpy(header.payload, payload, bytes);
        // Sequentially consistent, as is the registration of a sleeper: either this rank sees the sleeper, or the
        // sleeper sees the step.
        header.seq.exchange(step + 1);
        if (!traced_) trace();  // here it costs no time, because the peers' headers are still in transit
        if (group_.sleepers.load()) wake_sleepers();
        return step;
    }

    // Wait for a peer's step and compare the calls.
    void await(int peer, uint64_t step) {
        await_value(peer, step + 1);
        if (group_.peers[peer].headers[step % kHeaders].history.load(std::memory_order_relaxed) != history_) mismatch();
    }
    void await_all(uint64_t step) {
        for (int p = 0; p < n; ++p)
            if (p != rank) await(p, step);
        seen_ = std::max(seen_, step + 1);
    }
    // The same for a rank that only sends and so may be ahead of this one. If it is, prefetch its next header, which
    // arrives before the program's next call.
    void await_sender(int peer, uint64_t step) {
        const SlotHeader* headers = group_.peers[peer].headers;
        const bool ahead = headers[step % kHeaders].seq.load(std::memory_order_acquire) > step;
        await(peer, step);
        if (!ahead) return;
        const SlotHeader& next = headers[(step + 1) % kHeaders];
        __builtin_prefetch(&next);
        __builtin_prefetch(next.payload + kInline - 1);
    }
    void await_senders(uint64_t step) {
        for (int p = 0; p < n; ++p)
            if (p != rank) await_sender(p, step);
        seen_ = std::max(seen_, step + 1);
    }
    const uint8_t* payload(int peer, uint64_t step) const {
        return group_.peers[peer].headers[step % kHeaders].payload;
    }

    // Reserve room for the next piece of so many bytes, and return its position in the staging of every rank, which
    // only grows. Every rank reserves the same positions, even if it writes nothing. Short pieces share a slot, so a
    // sender can be three slots full of them ahead of the receivers.
    uint64_t reserve(size_t bytes) {
        const uint64_t slot = group_.slot_bytes, room = std::max<uint64_t>(1, (bytes + kCell - 1) / kCell) * kCell;
        if ((position_ & (slot - 1)) == 0 || (position_ & (slot - 1)) + room > slot) {  // the next slot
            position_ = (position_ + slot - 1) & ~(slot - 1);
            await_free_at_[slot_of(position_)] = free_at_[slot_of(position_)];
        }
        return std::exchange(position_, position_ + room);
    }
    uint8_t* slot(int of, uint64_t position) const {
        const uint64_t ring = kSlots * group_.slot_bytes;
        return group_.base() + group_.staging + size_t(of) * ring + (position & (ring - 1));
    }
    // Wait until all ranks have read the previous content of this rank's slot at that position. Whoever fills a slot
    // calls this first, since the slot may have no memory before.
    void await_free(uint64_t position) {
        if (!committed_[slot_of(position)]) commit_slot(position);
        await_value_all(await_free_at_[slot_of(position)]);
    }
    // This rank has finished reading at that position; its next post announces it.
    void release(uint64_t position) { free_at_[slot_of(position)] = next_ + 1; }

    // Whether results are written with non-temporal stores if all ranks together write so many bytes, and the copy to
    // use.
    bool non_temporal(size_t written) const { return written >= group_.non_temporal_from; }
    Copy copy_for(size_t written) const { return rankwise::copy_for(non_temporal(written)); }

    // Copy from or to the memory of a peer that is in the same operation.
    void get(int peer, void* dst, uint64_t address, size_t bytes);
    void put(int peer, const void* src, uint64_t address, size_t bytes);
    // The same from any thread, at an address in the peer's process. Returns false if it fails: then the group has
    // failed, or will fail when the peer's death is noticed.
    bool try_copy(int peer, bool writes, uint8_t* here, uint64_t there, size_t bytes) const;
    // How peers find memory of this rank: its address, or its offset in the segment with this bit set.
    static constexpr uint64_t kInSegment = uint64_t(1) << 63;
    uint64_t describe_buffer(const void* p) const {
        return segment_.contains(p, 1) ? segment_.offset_of(p) | kInSegment : reinterpret_cast<uint64_t>(p);
    }
    // A rank sets this before it writes into a peer's memory, and then checks whether the group has failed. The
    // memory's owner fails the group first and checks this afterwards. So either the writer stops or the owner waits.
    void set_writing(bool now) { group_.peers[rank].writing.store(now); }
    // Throws if the group has failed.
    void check() {
        if (group_.failed()) throw_failure();
    }
    // Whether peers may write into this rank's memory, in the current operation.
    void set_exposed(bool now) { exposed_ = now; }
    // If so, fail the group, and wait until no peer writes there any more.
    void await_no_writers() { await_no_writers(kStoppedPeer, Waiter::Interruptible::No); }
    // Whether this rank can read and write a peer's memory. It reads a word that should have the expected value, and
    // writes nothing, only to see whether it may.
    bool can_access(int peer, uint64_t address, uint64_t expected) const;
    // `memory` of this rank, or null if peers cannot access it, for example because a device driver mapped it, because
    // this process is no longer dumpable, or because ranks may not access private memory.
    uint8_t* reachable(const void* memory, size_t bytes) { return reachable(memory, bytes, reachable_); }
    // The same from any thread that owns `known`.
    uint8_t* reachable(const void* memory, size_t bytes, ReachableRanges& known) const;
    // kScratch bytes of private memory for data read from peers.
    uint8_t* scratch();

    // Throws the error that says why the group failed. `operation` is the caller's operation, and `sequence` its
    // number, or -1.
    [[noreturn]] void throw_failure(const std::string& operation, int64_t sequence = -1);
    // Fail the group because a rank's address has been overwritten in the segment, and throw.
    [[noreturn]] void address_overwritten(int peer);
    // Fail the group because `peer` ended or left, and throw.
    [[noreturn]] void lost(int peer, const std::string& operation, int64_t sequence = -1);
    RankTexts states() const;      // what each rank is doing
    std::string of_group() const;  // " of group 'world.tp'", or "" for the group of all ranks
    // Continues a report's headline by who waits for whom (failure/deadlock.hpp). Returns "" if no deadlock can be
    // seen, or if this rank waits only `limit` seconds, less than its timeout.
    std::string deadlock(double limit) const;
    bool ended(int peer) const { return segment_.ended(group_.member()[peer], group_.peers[peer].process); }
    std::string how_it_ended(int peer) const {
        return segment_.how_it_ended(group_.member()[peer], group_.peers[peer].process);
    }
    RankTexts request_stacks(const std::vector<int>& peers) const;  // of these peers' programs (failure/stacks.hpp)

private:
    size_t slot_of(uint64_t position) const { return (position >> slot_bits_) % kSlots; }
    void await_value(int peer, uint64_t value) {
        std::atomic<uint64_t>& seq = group_.peers[peer].headers[(value - 1) % kHeaders].seq;
        if (seq.load(std::memory_order_acquire) >= value) return;
        for (int i = policy_.first_polls; i > 0; --i) {
            cpu_relax();
            if (seq.load(std::memory_order_acquire) >= value) return;
        }
        sleep_for(peer, seq, value);
    }
    void await_value_all(uint64_t value) {
        if (seen_ >= value) return;
        for (int p = 0; p < n; ++p)
            if (p != rank) await_value(p, value);
        seen_ = value;
    }
    void commit_slot(uint64_t position);
    QualifiedPid pid_of(int peer) const;
    bool is_thread_of_own_process(int peer) const;
    ssize_t transfer(int peer, bool writes, void* here, uint64_t there, size_t bytes) const;
    void copy_peer_memory(int peer, bool writes, uint8_t* here, uint64_t there, size_t bytes);
    std::map<uint64_t, Call> recent_calls(int peer) const;
    void publish_call_site();
    void await_call_sites() const;
    std::string call_site_of(int peer) const;
    std::string awaited_message() const;
    [[noreturn]] void throw_mismatch(const std::string& danger = "");
    std::string await_no_writers(std::chrono::duration<double> limit, Waiter::Interruptible interruptible);
    void publish_description(const Description& description);
    void trace();
    void publish_bytes();
    class WaitTimer;
    void move_to_own_core(int peer);
    void balance_cores();
    void sleep_for(int peer, std::atomic<uint64_t>& seq, uint64_t value);
    void wake_sleepers();
    [[noreturn]] void refuse(const Call& call);  // because the group has failed
    [[noreturn]] void mismatch();
    [[noreturn]] void timed_out(uint64_t value);
    [[noreturn]] void throw_failure() { throw_failure(name(call_.op()), int64_t(calls_)); }

    Segment& segment_;
    GroupSegment& group_;
    Tracer tracer_;
    TraceEntry* entry_ = nullptr;     // of the current operation
    bool traced_ = true;              // the current operation has its entry
    uint64_t began_ = 0;              // ticks
    uint64_t waited_ = 0;             // ticks in the current operation
    uint64_t bytes_ = 0;              // of the current operation
    uint64_t unpublished_bytes_ = 0;  // not yet added to the rank's record
    WaitPolicy policy_;
    bool exposed_ = false;  // peers may write into this rank's memory
    uint32_t waits_ = 0;    // that did not end within the first polls
    Call call_{};
    uint64_t history_ = 0;  // digest of all calls so far
    uint64_t calls_ = 0;
    Call refused_{};
    bool makes_calls_ = true;                   // false once the group is being closed
    std::atomic<bool> mismatch_thrown_{false};  // a call of this rank has reported that the calls differed
    uint64_t next_ = 0;                         // the step that the next post announces
    uint64_t seen_ = 0;                         // every peer has posted at least this many steps
    uint64_t position_ = 0;                     // of the next piece
    Conditions conditions_;
    std::unique_ptr<uint8_t[], FreeAligned> scratch_;
    const int slot_bits_;
    uint64_t free_at_[kSlots] = {};  // steps that each peer must have posted before all have read the slot's content
    uint64_t await_free_at_[kSlots] = {};  // the same for the slot's previous content
    bool committed_[kSlots] = {};          // this rank's slots that have memory
    ReachableRanges reachable_;
};

// Runs `rounds` pieces of at most `bytes`, two of them in flight: fill(position, k) writes this rank's piece of round
// k, drain(position, k, step) awaits and reads the peers' pieces. Copying in is one round ahead of waiting. Not
// inlined: an operation's inline algorithm is faster if this is not in the same function.
template <class Fill, class Drain>
[[gnu::noinline]] void pipeline(SlotProtocol& s, uint64_t rounds, size_t bytes, bool writes, Fill&& fill,
                                Drain&& drain) {
    uint64_t previous_step = 0, previous_position = 0;
    for (uint64_t k = 0; k <= rounds; ++k) {
        uint64_t step = 0, position = 0;
        if (k < rounds) {
            position = s.reserve(bytes);
            if (writes) {
                s.await_free(position);
                fill(position, k);
            }
            step = s.post();
        }
        if (k > 0) {
            drain(previous_position, k - 1, previous_step);
            s.release(previous_position);
        }
        previous_step = step;
        previous_position = position;
    }
}

}  // namespace rankwise
