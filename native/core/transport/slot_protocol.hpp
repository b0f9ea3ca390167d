// The protocol under every collective: numbered steps, announced on lines, with data in slots.
//
// All ranks of a group run the same schedule of steps. post() announces this rank's next step;
// await() waits for a peer's and compares what both are calling. Posting a step also says: I am done
// with what I had released before it, and with every step more than kAhead before it. So a line or a
// slot may be written again once every peer has posted far enough; release() notes how far that is
// for a slot, claim() waits for it. Nothing is acknowledged by extra messages.
//
// A peer that is waited for and does not come ends in an exception: it died or left, it called
// something else, the group failed elsewhere, the deadline passed, or the embedding interrupted.
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

class alignas(kCacheLine) Steps {  // so that where its members lie is no matter of what stands before it
public:
    Steps(Segment& segment, Region& region, int rank, WaitPolicy policy);

    const int rank, n;
    std::atomic<double> timeout{300};  // seconds that one wait may last
    Segment& segment() const { return segment_; }
    Region& region() const { return region_; }
    size_t slot_bytes() const { return region_.slot_bytes; }
    uint64_t calls() const { return calls_; }
    Op op() const { return call_.op(); }  // of the present call
    const WaitPolicy& policy() const { return policy_; }
    const Conditions& conditions() const { return conditions_; }
    void set_conditions(const Conditions& agreed) { conditions_ = agreed; }

    // A new operation of this rank, of so many bytes. description: may be null. Throws where the group has failed.
    void begin(const Call& call, uint64_t bytes, const Description* description);
    // It was about so many, as turned out in it.
    void count_bytes(uint64_t bytes) { bytes_ = bytes; }
    // It ended: by an exception, or well.
    void end();
    // This rank makes no more calls: throw where the calls differed and none of this rank's has thrown that.
    void compare_last();
    // What came before was the meeting of the ranks: the program's first operation is number 1.
    void count_from_here();

    // Announce the next step, with up to kInline bytes beside the flag. Returns its number.
    uint64_t post(const void* payload = nullptr, size_t bytes = 0) {
        const uint64_t step = next_++;
        // The line's former step is kLines back; its readers are done once they are kAhead past it.
        if (step >= kLines) await_value_all(step - kLines + kAhead + 2);
        Line& line = region_.seats[rank].lines[step % kLines];
        line.say(history_, call_);
        if (bytes) std::memcpy(line.payload, payload, bytes);
        // Sequentially consistent, as is the sleepers' registration: either we see the sleeper, or
        // it sees the step.
        line.seq.exchange(step + 1);
        if (!traced_) trace();  // only now: it costs no time while the peers' lines are on their way
        if (region_.sleepers.load()) wake_sleepers();
        return step;
    }

    // Wait for a peer's step, and compare the calls.
    void await(int peer, uint64_t step) {
        await_value(peer, step + 1);
        if (region_.seats[peer].lines[step % kLines].history.load(std::memory_order_relaxed) != history_) mismatch();
    }
    void await_all(uint64_t step) {
        for (int p = 0; p < n; ++p)
            if (p != rank) await(p, step);
        seen_ = std::max(seen_, step + 1);
    }
    // The same of ranks that do not wait for this one: where such a one is ahead, its next line is on its way
    // already while the program comes to its next call.
    void await_giver(int peer, uint64_t step) {
        const Line* lines = region_.seats[peer].lines;
        const bool ahead = lines[step % kLines].seq.load(std::memory_order_acquire) > step;
        await(peer, step);
        if (!ahead) return;
        const Line& next = lines[(step + 1) % kLines];
        __builtin_prefetch(&next);
        __builtin_prefetch(next.payload + kInline - 1);
    }
    void await_givers(uint64_t step) {
        for (int p = 0; p < n; ++p)
            if (p != rank) await_giver(p, step);
        seen_ = std::max(seen_, step + 1);
    }
    const uint8_t* payload(int peer, uint64_t step) const {
        return region_.seats[peer].lines[step % kLines].payload;
    }

    // Where a piece of so many bytes lies in the staging of whoever writes one, in bytes from its start and ever on.
    // Taken by all ranks alike, also by those that write nothing. Short pieces share a slot, so that a rank that gives
    // can be three slots of them ahead of those that take.
    uint64_t take(size_t bytes) {
        const uint64_t slot = region_.slot_bytes, room = std::max<uint64_t>(1, (bytes + kCell - 1) / kCell) * kCell;
        if ((place_ & (slot - 1)) == 0 || (place_ & (slot - 1)) + room > slot) {  // the next slot
            place_ = (place_ + slot - 1) & ~(slot - 1);
            claim_at_[slot_of(place_)] = free_at_[slot_of(place_)];
        }
        return std::exchange(place_, place_ + room);
    }
    uint8_t* slot(int of, uint64_t place) const {
        const uint64_t ring = kSlots * region_.slot_bytes;
        return region_.base() + region_.staging + size_t(of) * ring + (place & (ring - 1));
    }
    // Wait until what was in this rank's slot there before has been read by all.
    void claim(uint64_t place) { await_value_all(claim_at_[slot_of(place)]); }
    // This rank has read what it had to there; its next post says so.
    void release(uint64_t place) { free_at_[slot_of(place)] = next_ + 1; }

    // Whether results go past the cache where all ranks together write so many bytes; and the copy that writes them.
    bool past_cache(size_t written) const { return written >= region_.stream_from; }
    Copy copy_for(size_t written) const { return rankwise::copy_for(past_cache(written)); }

    // Copy from or to the memory of a peer that is in the same operation.
    void read_memory(int peer, void* dst, uint64_t address, size_t bytes);
    void write_memory(int peer, const void* src, uint64_t address, size_t bytes);
    // The same in any thread, from or to an address of the peer's own. False where that fails: the group
    // has failed by it, or will when the peer's death is noticed.
    bool reach(int peer, bool writes, uint8_t* here, uint64_t there, size_t bytes) const;
    // How a peer finds memory of this rank: its address, or its place in the segment, marked as such.
    static constexpr uint64_t kInSegment = uint64_t(1) << 63;
    uint64_t lend(const void* p) const {
        return segment_.holds(p, 1) ? segment_.offset_of(p) | kInSegment : reinterpret_cast<uint64_t>(p);
    }
    // Said by a rank that writes into a peer's memory, before it looks whether the group has failed (check),
    // as the memory's owner looks after having failed it: either the writer stops, or the owner waits for it.
    void set_writing(bool now) { region_.seats[rank].writing.store(now); }
    // Throws where the group has failed.
    void check() {
        if (region_.failed()) throw_failure();
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
        std::atomic<uint64_t>& seq = region_.seats[peer].lines[(value - 1) % kLines].seq;
        if (seq.load(std::memory_order_acquire) >= value) return;
        for (int i = policy_.first_looks; i > 0; --i) {
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
    void move_memory(int peer, bool writes, uint8_t* here, uint64_t there, size_t bytes);
    std::map<uint64_t, Call> recent_calls(int peer) const;
    void tell_site();
    void await_sites() const;
    std::string site_of(int peer) const;
    [[noreturn]] void throw_mismatch();
    void note(const Description& description);
    void trace();
    void tell_bytes();
    class Waiting;
    void take_own_core(int peer);
    void share_cores();
    void sleep_for(int peer, std::atomic<uint64_t>& seq, uint64_t value);
    void look_for_trouble(int peer, std::atomic<uint64_t>& seq, uint64_t value, Clock::time_point since);
    void wake_sleepers();
    [[noreturn]] void refuse(const Call& call);  // one that comes when the group has failed
    [[noreturn]] void mismatch();
    [[noreturn]] void timed_out(uint64_t value);
    [[noreturn]] void throw_failure() { throw_failure(name(call_.op()), int64_t(calls_)); }

    Segment& segment_;
    Region& region_;
    RankRecord& record_;
    Tracer tracer_;
    TraceEntry* entry_ = nullptr;  // of the present operation
    bool traced_ = true;           // it has its entry
    uint64_t began_ = 0;           // ticks
    uint64_t waited_ = 0;          // ticks in this operation
    uint64_t bytes_ = 0;           // of this operation
    uint64_t untold_bytes_ = 0;    // not yet in the rank's record
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
// Not inlined: an operation's short way, beside the flag, is quicker without it around.
template <class Fill, class Drain>
[[gnu::noinline]] void pipeline(Steps& s, uint64_t rounds, size_t bytes, bool writes, Fill&& fill, Drain&& drain) {
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
