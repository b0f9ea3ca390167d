#include "transport/slot_protocol.hpp"

#include <sched.h>

#include <bit>

#include "base/mix.hpp"

namespace rankwise {

SlotProtocol::SlotProtocol(Segment& segment, GroupSegment& group, int rank, WaitPolicy policy, bool part)
    : rank(rank), n(group.nranks), segment_(segment), group_(group), tracer_(segment, group.member()[rank], part),
      policy_(policy), slot_bits_(std::countr_zero(group.slot_bytes)) {}

void SlotProtocol::begin(const Call& call, uint64_t bytes, const Description* description) {
    if (description) publish_description(*description);
    if (group_.failed()) refuse(call);
    call_ = call;
    ++calls_;
    const uint64_t amount = description ? call.amount ^ description->digest() : call.amount;
    history_ = mix(mix(history_, call.what), amount);
    group_.peers[rank].calls.store(calls_, std::memory_order_relaxed);
    bytes_ = bytes;
    waited_ = 0;
    traced_ = false;
    if (bytes >= kTimedFrom || tracer_.measured()) trace();
}

// The description of the next call, which other ranks show if the calls differ.
void SlotProtocol::publish_description(const Description& description) {
    LastDescription& here = group_.peers[rank].last_description;
    here.number.store(LastDescription::kBeingWritten, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    here.operation.store(uint32_t(description.operation), std::memory_order_relaxed);
    here.dims.store(uint32_t(description.dims), std::memory_order_relaxed);
    for (int i = 0; i < std::min(description.dims, LastDescription::kDims); ++i)
        here.dim[i].store(description.dim[i], std::memory_order_relaxed);
    here.number.store(calls_ + 1, std::memory_order_release);
}

void SlotProtocol::trace() {
    began_ = ticks();
    entry_ = tracer_.begin(call_.what, group_.number, 0, calls_, bytes_, began_);
    traced_ = true;
}

void SlotProtocol::commit_slot(uint64_t position) {
    try {
        segment_.heap().commit(segment_.offset_of(slot(rank, position & ~(slot_bytes() - 1))), slot_bytes());
    } catch (const OutOfMemory&) {
        fail_group(group_, Cause::PeerLost, rank, calls_, std::string("had no memory for ") + name(call_.op()));
        throw;
    }
    committed_[slot_of(position)] = true;
}

void SlotProtocol::end() {
    prefetch_for_write(&group_.peers[rank].headers[next_ % kHeaders]);  // it arrives before the program's next call
    if (!traced_) trace();
    const bool measured = tracer_.measured(), quick = bytes_ < kTimedFrom && !waited_ && !measured;
    const uint64_t now = quick ? began_ : ticks();
    tracer_.end(entry_, now, waited_, group_.failed() ? kFailed : 0);
    if (measured) tracer_.count(call_.op(), now - began_, waited_, bytes_);
    unpublished_bytes_ += bytes_;
    if (unpublished_bytes_ >= kTimedFrom) publish_bytes();
}

void SlotProtocol::publish_bytes() {
    tracer_.moved(unpublished_bytes_);
    unpublished_bytes_ = 0;
}

// Measures a wait that did not end within the first polls, and publishes its duration for observers.
class SlotProtocol::WaitTimer {
public:
    explicit WaitTimer(SlotProtocol& s) : s_(s), since_(ticks()) {
        if (!s.traced_) s.trace();
        if (is_engine_thread && s.entry_) s.entry_->set(kOnStream);
    }
    ~WaitTimer() { publish(); }
    void publish() {
        const uint64_t now = ticks(), waited = now - since_;
        since_ = now;
        s_.waited_ += waited;
        s_.tracer_.waited(waited);
        if (s_.entry_) s_.entry_->waited.store(s_.waited_, std::memory_order_relaxed);
        if (s_.unpublished_bytes_) s_.publish_bytes();
    }

private:
    SlotProtocol& s_;
    uint64_t since_;
};

void SlotProtocol::restart_numbering() {
    calls_ = 0;
    group_.peers[rank].calls.store(0, std::memory_order_relaxed);
}

void SlotProtocol::wake_sleepers() {
    for (int p = 0; p < n; ++p) {
        PeerSlot& peer_slot = group_.peers[p];
        if (peer_slot.waits_for.load() != uint32_t(rank) + 1) continue;
        futex_notify(peer_slot.notifications);
    }
}

// If two ranks run on one core although each could have its own, the waiting rank moves away. The scheduler tends to
// place a thread on the core of the thread that woke it, and two ranks that spin on one core wait for each other's time
// slices.
void SlotProtocol::move_to_own_core(int peer) {
    const int core = sched_getcpu();
    const bool shared = group_.peers[peer].core.load(std::memory_order_relaxed) == core + 1;
    if (shared) {
        const cpu_set_t allowed = allowed_cores();
        cpu_set_t others = allowed;
        CPU_CLR(core, &others);
        move_to_cores(others, allowed);
    }
    group_.peers[rank].core.store((shared ? sched_getcpu() : core) + 1, std::memory_order_relaxed);
}

// If the host is oversubscribed, a waiting rank moves from a core with too many ranks to the core with the fewest. The
// scheduler does not do that, because a rank that waits by yielding counts as busy: it may leave one rank alone on a
// core and three on another.
void SlotProtocol::balance_cores() {
    if (waits_++ % kWaitsPerBalance) return;
    const int core = sched_getcpu();
    std::atomic<int32_t>& mine = group_.peers[rank].core;
    if (mine.load(std::memory_order_relaxed) != core + 1) mine.store(core + 1, std::memory_order_relaxed);
    const auto ranks_on = [&](int there) {
        int count = 0;
        for (int p = 0; p < n; ++p) count += group_.peers[p].core.load(std::memory_order_relaxed) == there + 1;
        return count;
    };
    const int here = ranks_on(core);
    if (here < 2) return;
    int fewest = here - 1, best = core;  // another core must have at least two ranks fewer, or the move gains nothing
    const cpu_set_t allowed = allowed_cores();
    for (int other = 0; other < CPU_SETSIZE; ++other) {
        if (!CPU_ISSET(other, &allowed)) continue;
        if (const int count = ranks_on(other); count < fewest) fewest = count, best = other;
    }
    if (best == core) return;
    mine.store(best + 1, std::memory_order_relaxed);
    cpu_set_t chosen;
    CPU_ZERO(&chosen);
    CPU_SET(best, &chosen);
    move_to_cores(chosen, allowed);
}

void SlotProtocol::sleep_for(int peer, std::atomic<uint64_t>& seq, uint64_t value) {
    before_waiting();
    Waiter waiter(timeout.load());
    WaitTimer timer(*this);
    if (policy_.first_polls) move_to_own_core(peer);
    else if (!is_engine_thread) balance_cores();
    if (waiter.poll(policy_, [&] { return seq.load(std::memory_order_acquire) >= value; })) return;

    struct Announcement {  // whom this rank waits for, before it counts as a sleeper
        std::atomic<uint32_t>& whom;
        Announcement(std::atomic<uint32_t>& whom, int peer) : whom(whom) { whom.store(uint32_t(peer) + 1); }
        ~Announcement() { whom.store(0); }
    } const announcement(group_.peers[rank].waits_for, peer);
    const auto check = [&] {
        if (group_.failed()) throw_failure();
        if (group_.peers[peer].left.load() && seq.load() < value) lost(peer, name(call_.op()), int64_t(calls_));
        timer.publish();
    };
    try {
        if (!waiter.sleep(
                {group_.peers[rank].notifications, &group_.sleepers}, [&] { return seq.load() >= value; }, check))
            timed_out(value);
    } catch (const Interrupted&) {
        fail_group(group_, Cause::PeerLost, rank, calls_, std::string("was interrupted in ") + name(call_.op()));
        throw;
    }
}

}  // namespace rankwise
