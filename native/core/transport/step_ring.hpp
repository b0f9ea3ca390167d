// The protocol under every collective: numbered steps, announced by step headers, with data in slots.
//
// All ranks of a group run the same schedule of steps. post() announces this rank's next step; await() waits for a
// peer's step and compares the two ranks' calls. Posting a step also acknowledges everything that this rank released
// before, every step more than kStarted earlier, and what an operation of one step has put into a slot, once the slot
// after the next is in use: of the slots A, B, C, D, A, ..., the first step that uses C acknowledges A. So a header or
// a slot may be overwritten once every peer has posted far enough: for a slot, the ring records how far that is, and
// await_free() waits for it. No message is sent only to acknowledge another.
//
// An operation of one step can be started and completed later: it posts its step, and others follow, before it awaits
// the peers'. may_start() keeps within what those acknowledgements allow.
//
// If a peer does not arrive, await() throws: the peer died or left, it made a different call, the group failed, the
// deadline passed, or the embedding interrupted the wait.
#pragma once
#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <utility>

#include "kernels/non_temporal.hpp"
#include "memory/group_memory.hpp"
#include "sync/waiter.hpp"
#include "trace/call_log.hpp"
#include "transport/error_source.hpp"

namespace rankwise {

static_assert(kHeaders > kStarted + 2 && kStarted > kAhead,
              "a header is overwritten once the peers are kStarted + 2 steps past it");
static_assert(std::has_single_bit(unsigned(kSlots)), "positions in the staging are masked");
static_assert(kSlots > kAhead, "each step in flight may have a slot, and one more is filled meanwhile");
static_assert(slot_bytes_for(1) % kCell == 0 && slot_bytes_for(kMaxRanks) % kCell == 0, "cells divide a slot");

class StepRing {
public:
    StepRing(Segment& segment, const GroupMemory& memory, int rank, CallLog& log, ErrorSource& failures,
             Embedding& program);

    const int rank, n;
    std::atomic<double> timeout{300};  // seconds that one wait may last
    double first_timeout = 300;        // with which the group was made
    size_t slot_bytes() const { return slot_bytes_; }
    const WaitPolicy& policy() const { return policy_; }
    void set_policy(const WaitPolicy& policy) { policy_ = policy; }

    // Announce the next step, with an inline payload of up to kInline bytes. Returns its number.
    uint64_t post(const void* payload = nullptr, size_t bytes = 0) {
        assert(bytes <= kInline);
        const uint64_t step = next_++;
        // The header's previous step s is kHeaders back. A reader may have kStarted operations to complete, so it has
        // surely read step s once it has posted step s + kStarted + 1, the (s + kStarted + 2)th.
        if (step >= kHeaders) await_all_posted(step - kHeaders + kStarted + 2);
        StepHeader& header = group_.peers[rank].headers[step % kHeaders];
        header.set_call(log_.history(), log_.call());
        if (bytes) std::memcpy(header.payload, payload, bytes);
        // Sequentially consistent, as is the registration of a sleeper: either this rank sees the sleeper, or the
        // sleeper sees the step.
        header.posted.exchange(step + 1);
        log_.trace();  // here it costs no time, because the peers' headers are still in transit
        if (group_.sleepers.load()) wake_sleepers();
        return step;
    }
    // The program's next call will soon post a step.
    void prefetch_next() const { prefetch_for_write(&group_.peers[rank].headers[next_ % kHeaders]); }

    // Wait for a peer's step and compare the calls.
    void await(int peer, uint64_t step) {
        assert(step + kHeaders > next_ && step <= next_);
        await_posted(peer, step + 1);
        const StepHeader& header = group_.peers[peer].headers[step % kHeaders];
        if (header.history.load(std::memory_order_relaxed) != log_.history()) failures_.throw_mismatch();
        if (header.posted.load(std::memory_order_relaxed) != step + 1)
            failures_.throw_overwritten("a step header", peer);
    }
    void await_all(uint64_t step) {
        for (int p = 0; p < n; ++p)
            if (p != rank) await(p, step);
        seen_ = std::max(seen_, step + 1);
    }
    // The same for a rank that only sends and so may be ahead of this one. If it is, prefetch its next header, which
    // arrives before the program's next call.
    void await_sender(int peer, uint64_t step) {
        const StepHeader* headers = group_.peers[peer].headers;
        const bool ahead = headers[step % kHeaders].posted.load(std::memory_order_acquire) > step;
        await(peer, step);
        if (!ahead) return;
        const StepHeader& next = headers[(step + 1) % kHeaders];
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
    // Whether the calls of all peers are known to be this rank's, at the latest step that both ranks have posted. Some
    // operations end on a rank that has waited for no other, such as a small broadcast on its root. If they are the
    // last ones, nobody has compared their calls.
    bool last_calls_agree() const;

    // Reserve room for the next piece of this many bytes, and return its position in the staging of every rank, which
    // only grows. Every rank reserves the same positions, even if it writes nothing. Short pieces share a slot, so a
    // sender can be three slots full of them ahead of the receivers.
    uint64_t reserve(size_t bytes) {
        assert(bytes <= slot_bytes());
        const uint64_t slot = slot_bytes(), room = room_for(bytes);
        if (enters_slot(room)) {
            position_ = (position_ + slot - 1) & ~(slot - 1);
            previous_read_by_step_[slot_of(position_)] = read_by_step_[slot_of(position_)];
            read_by_step_[slot_of(position_ - 2 * slot)] =
                next_ + 1;  // only what is released later is still being read
        }
        return std::exchange(position_, position_ + room);
    }
    uint8_t* slot(int of, uint64_t position) const {
        assert(position < position_ && position + kSlots * slot_bytes() >= position_);
        const uint64_t ring = kSlots * slot_bytes();
        return staging_ + size_t(of) * ring + (position & (ring - 1));
    }
    // Wait until all ranks have read the previous content of this rank's slot at that position. Whoever fills a slot
    // calls this first, since the slot may have no memory before.
    void await_free(uint64_t position) {
        if (!committed_[slot_of(position)]) commit_slot(position);
        await_all_posted(previous_read_by_step_[slot_of(position)]);
    }
    // In an operation of several steps: this rank has finished reading at that position; its next post announces it.
    void release(uint64_t position) { read_by_step_[slot_of(position)] = next_ + 1; }

    // Whether this rank may start an operation of one step, with a piece of this many bytes (0: none), without waiting
    // for a peer.
    bool may_start(size_t bytes) {
        may_fill_up_to_ = position_;
        if (last_started_ - first_started_ >= kStarted) return false;
        if (next_ >= kHeaders && !reached_by_all(next_ - kHeaders + kStarted + 2)) return false;
        if (!bytes) return true;
        const bool enters = enters_slot(room_for(bytes));
        const uint64_t slot = number_of(position_ + (enters ? slot_bytes() - 1 : 0));
        may_fill_up_to_ = (enters ? slot << slot_bits_ : position_) + room_for(bytes);
        // Entering the next slot but one acknowledges a slot: not while an operation that began in it is incomplete.
        if (first_started_ != last_started_ && slot > started_in_[first_started_ % kStarted] + 1) return false;
        return reached_by_all((enters ? read_by_step_ : previous_read_by_step_)[slot % kSlots]);
    }
    // The operation whose step was posted last is completed later; and the first of those has been.
    void started() {
        assert(n == 1 || position_ <= may_fill_up_to_);  // a group of one has no slots
        started_in_[last_started_++ % kStarted] = position_ ? number_of(position_ - 1) : 0;
    }
    void completed() { ++first_started_; }
    // This rank has deferred an operation. Returns whether a peer waits for it already.
    bool announce_deferred();
    // Whether that step of a peer, or of all peers, is there. Who polls for it waits for it as a sleeper does: a peer
    // that has deferred the operation is called for it.
    bool arrived(int peer, uint64_t step) {
        if (reached(peer, step + 1)) return true;
        call_for_operation(peer);
        return false;
    }
    bool all_arrived(uint64_t step) {
        bool all = true;
        for (int p = 0; p < n; ++p) all &= p == rank || arrived(p, step);
        return all;
    }

    // Whether results are written with non-temporal stores if all ranks together write so many bytes, and the copy to
    // use.
    bool non_temporal(size_t written) const { return written >= group_.non_temporal_from; }
    Copy copy_for(size_t written) const { return rankwise::copy_for(non_temporal(written)); }

private:
    uint64_t number_of(uint64_t position) const { return position >> slot_bits_; }  // of the slot, which only grows
    size_t slot_of(uint64_t position) const { return number_of(position) % kSlots; }
    static uint64_t room_for(size_t bytes) { return std::max<uint64_t>(1, (bytes + kCell - 1) / kCell) * kCell; }
    bool enters_slot(uint64_t room) const {
        const uint64_t used = position_ & (slot_bytes() - 1);
        return used == 0 || used + room > slot_bytes();
    }
    // Whether the peer has posted so many steps.
    bool reached(int peer, uint64_t steps) const {
        return group_.peers[peer].headers[(steps - 1) % kHeaders].posted.load(std::memory_order_acquire) >= steps;
    }
    bool reached_by_all(uint64_t steps) const {
        if (seen_ >= steps) return true;
        for (int p = 0; p < n; ++p)
            if (p != rank && !reached(p, steps)) return false;
        return true;
    }
    void await_posted(int peer, uint64_t steps) {
        std::atomic<uint64_t>& posted = group_.peers[peer].headers[(steps - 1) % kHeaders].posted;
        if (posted.load(std::memory_order_acquire) >= steps) return;
        for (int i = policy_.first_polls; i > 0; --i) {
            cpu_relax();
            if (posted.load(std::memory_order_acquire) >= steps) return;
        }
        await_slowly(peer, posted, steps);
    }
    void await_all_posted(uint64_t steps) {
        if (seen_ >= steps) return;
        for (int p = 0; p < n; ++p)
            if (p != rank) await_posted(p, steps);
        seen_ = steps;
    }
    void commit_slot(uint64_t position);
    void move_to_own_core(int peer);
    void await_slowly(int peer, std::atomic<uint64_t>& posted, uint64_t steps);
    void wake_sleepers();
    void call_for_operation(int peer);

    Segment& segment_;
    GroupSegment& group_;
    CallLog& log_;
    ErrorSource& failures_;
    Embedding& program_;
    const Heap& heap_;
    const uint64_t offset_;    // of the group in the segment
    const size_t slot_bytes_;  // this and the next are not read again, since a stray write may change them
    uint8_t* const staging_;
    WaitPolicy policy_ = WaitPolicy::on_shared_cores();
    uint64_t next_ = 0;                              // the step that the next post announces
    uint64_t seen_ = 0;                              // every peer has posted at least this many steps
    uint64_t position_ = 0;                          // of the next piece
    uint64_t may_fill_up_to_ = 0;                    // what may_start has allowed
    uint64_t first_started_ = 0, last_started_ = 0;  // of the operations that are to be completed
    uint64_t started_in_[kStarted] = {};             // the slot that was in use when each began
    const int slot_bits_;
    // All peers have read the slot's content once each has posted so many steps; and the slot's previous content.
    uint64_t read_by_step_[kSlots] = {}, previous_read_by_step_[kSlots] = {};
    bool committed_[kSlots] = {};  // this rank's slots that have memory
};

}  // namespace rankwise
