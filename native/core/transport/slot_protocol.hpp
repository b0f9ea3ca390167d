// The protocol under every collective: numbered steps, announced by slot headers, with data in slots.
//
// All ranks of a group run the same schedule of steps. post() announces this rank's next step; await() waits for a
// peer's step and compares what both ranks are calling. To post a step also says that this rank has finished with
// everything it released before, and with every step more than kAhead earlier. So a header or a slot may be written
// again once every peer has posted far enough: release() notes how far that is for a slot, and claim() waits for it.
// No message is sent only to acknowledge another.
//
// Where a peer does not come, await() throws: the peer died or left, it called something else, the group failed
// elsewhere, the deadline passed, or the embedding interrupted the wait.
#pragma once
#include <sys/types.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <utility>

#include "failure/errors.hpp"
#include "kernels/copy.hpp"
#include "memory/group_segment.hpp"
#include "sync/waiting.hpp"
#include "trace/trace.hpp"
#include "transport/conditions.hpp"

namespace rankwise {

inline constexpr size_t kScratch = 512 << 10;
struct FreeAligned {
    void operator()(uint8_t* p) const { ::operator delete[](p, std::align_val_t(64)); }
};

// Asked, in the thread that makes a call, when that call's group has failed: where in the program it
// was made, "train.py:12", or "". Set once by the embedding.
extern std::string (*call_site)();

// Memory of this rank's own that was tried lately and that peers can reach: programs use the same arrays again and
// again, and to try takes as long as a short message. Should other memory be there by now, the copy itself fails.
class Reached {
public:
    bool has(const void* memory, size_t bytes) const {
        for (const Range& one : ranges_)
            if (one.memory == memory && one.bytes == bytes) return true;
        return false;
    }
    void add(const void* memory, size_t bytes) { ranges_[next_++ % kRanges] = {memory, bytes}; }

private:
    static constexpr size_t kRanges = 8;
    struct Range {
        const void* memory = nullptr;
        size_t bytes = 0;
    } ranges_[kRanges];
    size_t next_ = 0;
};

class alignas(kCacheLine) SlotProtocol {  // so that the layout of its members does not depend on what precedes it
public:
    SlotProtocol(Segment& segment, GroupSegment& group, int rank, WaitPolicy policy);

    const int rank, n;
    std::atomic<double> timeout{300};  // seconds that one wait may last
    Segment& segment() const { return segment_; }
    GroupSegment& group() const { return group_; }
    size_t slot_bytes() const { return group_.slot_bytes; }
    uint64_t calls() const { return calls_; }
    Op op() const { return call_.op(); }  // of the present call
    const WaitPolicy& policy() const { return policy_; }
    const Conditions& conditions() const { return conditions_; }
    void set_conditions(const Conditions& agreed) { conditions_ = agreed; }

    // A new operation of this rank, of so many bytes. description: may be null. Throws where the group has failed.
    void begin(const Call& call, uint64_t bytes, const Description* description);
    // The operation turned out to be about so many bytes.
    void count_bytes(uint64_t bytes) { bytes_ = bytes; }
    // The operation has ended, by an exception or normally.
    void end();
    // This rank makes no more calls: throw where the calls differed and none of this rank's has thrown that.
    void compare_last();
    // Until now the ranks were joining: the program's first operation is number 1.
    void count_from_here();

    // Announce the next step, with an inline payload of up to kInline bytes. Returns its number.
    uint64_t post(const void* payload = nullptr, size_t bytes = 0) {
        const uint64_t step = next_++;
        // The line's former step is kHeaders back; its readers are done once they are kAhead past it.
        if (step >= kHeaders) await_value_all(step - kHeaders + kAhead + 2);
        SlotHeader& line = group_.peers[rank].headers[step % kHeaders];
        line.say(history_, call_);
        if (bytes) std::memcpy(line.payload, payload, bytes);
        // Sequentially consistent, as is a sleeper's registration: either this rank sees the sleeper, or the
        // sleeper sees the step.
        line.seq.exchange(step + 1);
        if (!traced_) trace();  // only now: it costs no time while the peers' headers are in transit
        if (group_.sleepers.load()) wake_sleepers();
        return step;
    }

    // Wait for a peer's step, and compare the calls.
    void await(int peer, uint64_t step) {
        await_value(peer, step + 1);
        if (group_.peers[peer].headers[step % kHeaders].history.load(std::memory_order_relaxed) != history_) mismatch();
    }
    void await_all(uint64_t step) {
        for (int p = 0; p < n; ++p)
            if (p != rank) await(p, step);
        seen_ = std::max(seen_, step + 1);
    }
    // The same for a rank that only sends and so may be ahead of this one: then its next header is prefetched while
    // the program comes to its next call.
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

    // The place of the next piece of so many bytes: an offset in the staging of each rank, which only grows. Every rank
    // takes the same places, also one that writes nothing. Short pieces share a slot, so that a sender can be three
    // slots of them ahead of the receivers.
    uint64_t take(size_t bytes) {
        const uint64_t slot = group_.slot_bytes, room = std::max<uint64_t>(1, (bytes + kCell - 1) / kCell) * kCell;
        if ((place_ & (slot - 1)) == 0 || (place_ & (slot - 1)) + room > slot) {  // the next slot
            place_ = (place_ + slot - 1) & ~(slot - 1);
            claim_at_[slot_of(place_)] = free_at_[slot_of(place_)];
        }
        return std::exchange(place_, place_ + room);
    }
    uint8_t* slot(int of, uint64_t place) const {
        const uint64_t ring = kSlots * group_.slot_bytes;
        return group_.base() + group_.staging + size_t(of) * ring + (place & (ring - 1));
    }
    // Wait until what was in this rank's slot there before has been read by all.
    void claim(uint64_t place) { await_value_all(claim_at_[slot_of(place)]); }
    // This rank has read what it had to there; its next post says so.
    void release(uint64_t place) { free_at_[slot_of(place)] = next_ + 1; }

    // Whether results are written with non-temporal stores where all ranks together write so many bytes, and the copy to use.
    bool past_cache(size_t written) const { return written >= group_.stream_from; }
    Copy copy_for(size_t written) const { return rankwise::copy_for(past_cache(written)); }

    // Copy from or to the memory of a peer that is in the same operation.
    void get(int peer, void* dst, uint64_t address, size_t bytes);
    void put(int peer, const void* src, uint64_t address, size_t bytes);
    // The same in any thread, from or to an address of the peer's own. False where that fails: the group
    // has failed by it, or will when the peer's death is noticed.
    bool reach(int peer, bool writes, uint8_t* here, uint64_t there, size_t bytes) const;
    // How a peer finds memory of this rank: by its address, or by its offset in the segment, marked as such.
    static constexpr uint64_t kInSegment = uint64_t(1) << 63;
    uint64_t describe_buffer(const void* p) const {
        return segment_.holds(p, 1) ? segment_.offset_of(p) | kInSegment : reinterpret_cast<uint64_t>(p);
    }
    // A rank sets this before it writes into a peer's memory, and then checks whether the group has failed. The
    // memory's owner fails the group first and checks this afterwards. So either the writer stops or the owner waits.
    void set_writing(bool now) { group_.peers[rank].writing.store(now); }
    // Throws where the group has failed.
    void check() {
        if (group_.failed()) throw_failure();
    }
    // Return when no peer writes into this rank's memory any more.
    void await_no_writers();
    // Whether a peer's memory can be read at all.
    bool can_read(int peer, uint64_t address, uint64_t expected) const;
    // `memory` of this rank's own, or null where peers cannot reach it: what a driver maps, say.
    uint8_t* readable(const void* memory, size_t bytes) { return readable(memory, bytes, reached_); }
    // The same in any thread that owns `reached`.
    uint8_t* readable(const void* memory, size_t bytes, Reached& reached) const;
    // Memory of this rank's own for what is read from peers, kScratch bytes.
    uint8_t* scratch();

    // Throws why the group failed. `operation` is what the caller was doing; `sequence` its number
    // where it has one.
    [[noreturn]] void throw_failure(const std::string& operation, int64_t sequence = -1);
    // Fail the group because `peer` ended or left, and throw.
    [[noreturn]] void lost(int peer, const std::string& operation, int64_t sequence = -1);
    Calls states() const;  // where each rank is, in words
    Calls ask_for_stacks(const std::vector<int>& peers) const;  // those of peers' programs, as stacks.hpp says

private:
    size_t slot_of(uint64_t place) const { return (place >> slot_bits_) % kSlots; }
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
    ssize_t transfer(int peer, bool writes, void* here, uint64_t there, size_t bytes) const;
    void copy_peer_memory(int peer, bool writes, uint8_t* here, uint64_t there, size_t bytes);
    std::map<uint64_t, Call> recent_calls(int peer) const;
    void publish_call_site();
    void await_call_sites() const;
    std::string call_site_of(int peer) const;
    [[noreturn]] void throw_mismatch();
    void note(const Description& description);
    void trace();
    void publish_bytes();
    class Waiting;
    void take_own_core(int peer);
    void share_cores();
    void sleep_for(int peer, std::atomic<uint64_t>& seq, uint64_t value);
    void check_for_failure(int peer, std::atomic<uint64_t>& seq, uint64_t value, Clock::time_point since);
    void wake_sleepers();
    [[noreturn]] void refuse(const Call& call);  // one that comes when the group has failed
    [[noreturn]] void mismatch();
    [[noreturn]] void timed_out(uint64_t value);
    [[noreturn]] void throw_failure() { throw_failure(name(call_.op()), int64_t(calls_)); }

    Segment& segment_;
    GroupSegment& group_;
    RankRecord& record_;
    Tracer tracer_;
    TraceEntry* entry_ = nullptr;  // of the present operation
    bool traced_ = true;           // it has its entry
    uint64_t began_ = 0;           // ticks
    uint64_t waited_ = 0;          // ticks in this operation
    uint64_t bytes_ = 0;           // of this operation
    uint64_t unpublished_bytes_ = 0;    // not yet in the rank's record
    const WaitPolicy policy_;
    uint32_t waits_ = 0;           // that were not over at once
    Call call_{};
    uint64_t history_ = 0;         // digest of all calls so far
    uint64_t calls_ = 0;
    Call refused_{};
    bool makes_calls_ = true;                   // not any more once the group is being closed
    std::atomic<bool> mismatch_thrown_{false};  // this rank knows that the calls differed
    uint64_t next_ = 0;            // the step that the next post announces
    uint64_t seen_ = 0;            // every peer has posted at least this many steps
    uint64_t place_ = 0;           // of the next piece
    Conditions conditions_;
    std::unique_ptr<uint8_t[], FreeAligned> scratch_;
    const int slot_bits_;
    uint64_t free_at_[kSlots] = {};   // steps each peer must have posted before what is in the slot has been read
    uint64_t claim_at_[kSlots] = {};  // the same of what was in it before
    Reached reached_;
};

// Runs `rounds` pieces of at most `bytes`, two of them in flight: fill(place, k) writes this rank's piece of
// round k, drain(place, k, step) awaits and reads the peers'. Copying in runs ahead of waiting by a round.
// Not inlined: the inline algorithm of an operation is faster without it in the same function.
template <class Fill, class Drain>
[[gnu::noinline]] void pipeline(SlotProtocol& s, uint64_t rounds, size_t bytes, bool writes, Fill&& fill, Drain&& drain) {
    uint64_t step_before = 0, place_before = 0;
    for (uint64_t k = 0; k <= rounds; ++k) {
        uint64_t step = 0, place = 0;
        if (k < rounds) {
            place = s.take(bytes);
            if (writes) {
                s.claim(place);
                fill(place, k);
            }
            step = s.post();
        }
        if (k > 0) {
            drain(place_before, k - 1, step_before);
            s.release(place_before);
        }
        step_before = step;
        place_before = place;
    }
}

}  // namespace rankwise
