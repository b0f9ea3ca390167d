#include "transport/slot_protocol.hpp"

#include <sched.h>

#include <bit>

namespace rankwise {

namespace {

uint64_t mix(uint64_t h, uint64_t word) {
    h = (h ^ word) * 0x9e3779b97f4a7c15;
    return h ^ h >> 32;
}

constexpr uint32_t kSharingWaits = 16;  // one in so many, of a rank that shares its core, looks where the others are

}  // namespace

Steps::Steps(Segment& segment, Region& region, int rank, WaitPolicy policy)
    : rank(rank), n(region.nranks), segment_(segment), region_(region),
      record_(segment.record(region.member()[rank])), tracer_(segment, region.member()[rank]),
      policy_(policy), slot_bits_(std::countr_zero(region.slot_bytes)) {}

void Steps::begin(const Call& call, uint64_t bytes, const Description* description) {
    if (description) note(*description);
    if (region_.failed()) refuse(call);
    call_ = call;
    ++calls_;
    const uint64_t about = description ? call.amount ^ description->digest() : call.amount;
    history_ = mix(mix(history_, call.what), about);
    region_.seats[rank].calls.store(calls_, std::memory_order_relaxed);
    bytes_ = bytes;
    waited_ = 0;
    traced_ = false;
    if (bytes >= kTimedFrom) trace();
}

// Of the next call: so that others can show it where the calls differ.
void Steps::note(const Description& description) {
    Described& here = region_.seats[rank].described;
    here.number.store(Described::kBeingWritten, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    here.operation.store(uint32_t(description.operation), std::memory_order_relaxed);
    here.dims.store(uint32_t(description.dims), std::memory_order_relaxed);
    for (int i = 0; i < std::min(description.dims, Described::kDims); ++i) here.dim[i].store(description.dim[i], std::memory_order_relaxed);
    here.number.store(calls_ + 1, std::memory_order_release);
}

void Steps::trace() {
    began_ = ticks();
    entry_ = tracer_.begin(call_.what, region_.number, 0, calls_, bytes_, began_);
    traced_ = true;
}

void Steps::end() {
    fetch_to_write(&region_.seats[rank].lines[next_ % kLines]);  // while the program comes to its next call
    if (!traced_) trace();
    const bool quick = bytes_ < kTimedFrom && !waited_;
    tracer_.end(entry_, quick ? began_ : ticks(), waited_, region_.failed() ? kFailed : 0);
    untold_bytes_ += bytes_;
    if (untold_bytes_ >= kTimedFrom) tell_bytes();
}

void Steps::tell_bytes() {
    tracer_.moved(untold_bytes_);
    untold_bytes_ = 0;
}

// A wait that is not over at once: how long it takes is told to those who look.
class Steps::Waiting {
public:
    explicit Waiting(Steps& s) : s_(s), since_(ticks()) {
        if (!s.traced_) s.trace();
    }
    ~Waiting() { tell(); }
    void tell() {
        const uint64_t now = ticks(), waited = now - since_;
        since_ = now;
        s_.waited_ += waited;
        s_.tracer_.waited(waited);
        if (s_.entry_) s_.entry_->waited.store(s_.waited_, std::memory_order_relaxed);
        if (s_.untold_bytes_) s_.tell_bytes();
    }

private:
    Steps& s_;
    uint64_t since_;
};

void Steps::count_from_here() {
    calls_ = 0;
    region_.seats[rank].calls.store(0, std::memory_order_relaxed);
}

void Steps::wake_sleepers() {
    for (int p = 0; p < n; ++p) {
        Seat& seat = region_.seats[p];
        if (seat.waits_for.load() != uint32_t(rank) + 1) continue;
        seat.bell.fetch_add(1);
        futex_wake_all(seat.bell);
    }
}

// Two ranks on one core, where there is one for each: the one that waits leaves it. The scheduler tends
// to put a thread beside the one that woke it, and two ranks that spin on one core wait for each other's
// time slice.
void Steps::take_own_core(int peer) {
    const int core = sched_getcpu();
    const bool shared = region_.seats[peer].core.load(std::memory_order_relaxed) == core + 1;
    if (shared) {
        const cpu_set_t allowed = allowed_cores();
        cpu_set_t others = allowed;
        CPU_CLR(core, &others);
        move_to_cores(others, allowed);
    }
    region_.seats[rank].core.store((shared ? sched_getcpu() : core) + 1, std::memory_order_relaxed);
}

// More ranks than cores: the one that waits moves from a core with more than its part of them to the one
// with the fewest. The scheduler lets a rank wait alone and three crowd beside it for long, since for it
// who waits in turns is at work.
void Steps::share_cores() {
    if (waits_++ % kSharingWaits) return;
    const int core = sched_getcpu();
    std::atomic<int32_t>& mine = region_.seats[rank].core;
    if (mine.load(std::memory_order_relaxed) != core + 1) mine.store(core + 1, std::memory_order_relaxed);
    const auto ranks_on = [&](int there) {
        int count = 0;
        for (int p = 0; p < n; ++p) count += region_.seats[p].core.load(std::memory_order_relaxed) == there + 1;
        return count;
    };
    const int here = ranks_on(core);
    if (here < 2) return;
    int fewest = here - 1, best = core;  // two fewer, or it is no better there
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

void Steps::sleep_for(int peer, std::atomic<uint64_t>& seq, uint64_t value) {
    before_waiting();
    const auto since = Clock::now();
    Waiting waiting(*this);
    if (policy_.first_looks) {
        take_own_core(peer);
        do {
            for (int i = 0; i < 16; ++i) {
                cpu_relax();
                if (seq.load(std::memory_order_acquire) >= value) return;
            }
        } while (Clock::now() - since < policy_.spinning);
    } else if (!is_engine_thread) {
        share_cores();
    }
    for (int i = 0; i < policy_.may_yield() && Clock::now() - since < policy_.yielding; ++i) {
        sched_yield();
        if (seq.load(std::memory_order_acquire) >= value) return;
    }

    Seat& seat = region_.seats[rank];
    struct Registered {  // also withdrawn when a wait ends in an exception
        Seat& seat;
        Region& region;
        Registered(Seat& seat, Region& region, uint32_t whom) : seat(seat), region(region) {
            seat.waits_for.store(whom);
            region.sleepers.fetch_add(1);
        }
        ~Registered() {
            region.sleepers.fetch_sub(1);
            seat.waits_for.store(0);
        }
    } registered(seat, region_, uint32_t(peer) + 1);

    for (;;) {
        const uint32_t rung = seat.bell.load();
        if (seq.load() >= value) return;
        look_for_trouble(peer, seq, value, since);
        const auto left = std::chrono::duration<double>(timeout) - (Clock::now() - since);
        waiting.tell();
        futex_sleep(seat.bell, rung, nap_before(left));
        if (seq.load() >= value) return;
        if (interrupted()) {
            fail_region(region_, Cause::PeerLost, rank, calls_, std::string("was interrupted in ") + name(call_.op()));
            throw Interrupted();
        }
    }
}

void Steps::look_for_trouble(int peer, std::atomic<uint64_t>& seq, uint64_t value, Clock::time_point since) {
    if (region_.failed()) throw_failure();
    if (region_.seats[peer].left.load() && seq.load() < value) 
        lost(peer, name(call_.op()), int64_t(calls_));
    if (Clock::now() - since >= std::chrono::duration<double>(timeout)) timed_out(value);
}

}  // namespace rankwise
