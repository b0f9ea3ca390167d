#include "transport/step_ring.hpp"

#include <sched.h>

namespace rankwise {

StepRing::StepRing(Segment& segment, const GroupMemory& memory, int rank, CallLog& log, ErrorSource& failures,
                   Embedding& program)
    : rank(rank), n(memory.group().nranks), segment_(segment), group_(memory.group()), log_(log), failures_(failures),
      program_(program), heap_(segment.heap()), offset_(memory.offset()), slot_bytes_(group_.slot_bytes),
      staging_(group_.base() + group_.staging), slot_bits_(std::countr_zero(slot_bytes_)) {}

void StepRing::commit_slot(uint64_t position) {
    const auto within_group = uint64_t(slot(rank, position & ~(slot_bytes() - 1)) - group_.base());
    heap_.commit(offset_ + within_group, slot_bytes());
    committed_[slot_of(position)] = true;
}

bool StepRing::last_calls_agree() const {
    const StepHeader* mine = group_.peers[rank].headers;
    for (int p = 0; p < n; ++p) {
        for (uint64_t end = next_; end > 0 && end + kHeaders > next_; --end) {
            const size_t at = (end - 1) % kHeaders;
            const StepHeader& theirs = group_.peers[p].headers[at];
            if (theirs.posted.load() != end) continue;
            // Overwritten if the peer has posted the step before the next one that uses this header: then it makes
            // further calls, and compares.
            const uint64_t history = theirs.history.load(std::memory_order_acquire), last = end + kHeaders - 1;
            if (group_.peers[p].headers[(last - 1) % kHeaders].posted.load() >= last) continue;
            if (history != mine[at].history.load(std::memory_order_relaxed)) return false;
            break;
        }
    }
    return true;
}

void StepRing::wake_sleepers() {
    for (int p = 0; p < n; ++p) {
        PeerSlot& peer_slot = group_.peers[p];
        if (peer_slot.waits_for.load() != uint32_t(rank) + 1) continue;
        futex_notify(peer_slot.notifications);
    }
}

bool StepRing::announce_deferred() {
    group_.peers[rank].deferred.store(Deferred::Waiting);
    if (!group_.sleepers.load()) return false;
    for (int p = 0; p < n; ++p)
        if (group_.peers[p].waits_for.load() == uint32_t(rank) + 1) return true;
    return false;
}

// The peer may have started the awaited operation and be busy with something else.
void StepRing::call_for_operation(int peer) {
    Deferred waiting = Deferred::Waiting;
    if (group_.peers[peer].deferred.load() == waiting &&
        group_.peers[peer].deferred.compare_exchange_strong(waiting, Deferred::Awaited))
        futex_notify(segment_.record(group_.member()[peer]).progress_notifications);
}

// If two ranks run on one core although each could have its own, the waiting rank moves away. The scheduler tends to
// place a thread on the core of the thread that woke it, and two ranks that spin on one core wait for each other's time
// slices.
void StepRing::move_to_own_core(int peer) {
    const int core = sched_getcpu();
    const bool shared = group_.peers[peer].core.load(std::memory_order_relaxed) == core + 1;
    if (shared) {
        const CpuSet allowed = CpuSet::allowed();
        CpuSet others = allowed;
        others.remove(core);
        move_to_cores(others, allowed);
    }
    group_.peers[rank].core.store((shared ? sched_getcpu() : core) + 1, std::memory_order_relaxed);
}

void StepRing::await_slowly(int peer, std::atomic<uint64_t>& posted, uint64_t steps) {
    log_.options().before_waiting();
    Waiter waiter(timeout.load(), program_);
    CallLog::Wait timed(log_);
    if (policy_.first_polls) move_to_own_core(peer);
    if (waiter.poll(policy_, [&] { return posted.load(std::memory_order_acquire) >= steps; })) return;

    struct Announcement {  // whom this rank waits for, before it counts as a sleeper
        std::atomic<uint32_t>& whom;
        Announcement(std::atomic<uint32_t>& whom, int peer) : whom(whom) { whom.store(uint32_t(peer) + 1); }
        ~Announcement() {
            if (!fork.is_child()) whom.store(0);
        }
        const ForkMark fork;
    } const announcement(group_.peers[rank].waits_for, peer);
    // Who has joined counts its calls from 0 again, and may leave while others still join.
    const uint64_t calls = log_.op() == Op::Join ? 0 : log_.number();
    const auto check = [&] {
        if (group_.failed()) failures_.throw_failure();
        if (group_.peers[peer].has_left.load() && posted.load() < steps) failures_.throw_lost(peer);
        call_for_operation(peer);
        for (int p = 0; p < n; ++p)  // the awaited peer may wait forever for a peer that left before this call
            if (group_.peers[p].has_left.load() && group_.peers[p].calls.load() < calls) failures_.throw_lost(p);
        timed.publish();
    };
    try {
        if (!waiter.sleep(
                {group_.peers[rank].notifications, &group_.sleepers}, [&] { return posted.load() >= steps; }, check))
            failures_.throw_timed_out(steps);
    } catch (const Interrupted&) {
        if (!log_.resumed() && !announcement.fork.is_child())
            fail_group(group_, Cause::PeerLost, rank, log_.number(), {"was interrupted in ", name(log_.op())});
        throw;
    }
}

}  // namespace rankwise
