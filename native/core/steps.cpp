#include "steps.hpp"

#include <sched.h>

#include <map>
#include <set>

namespace rankwise {

namespace {

const char* const kNotYet = "nothing yet";

uint64_t mix(uint64_t h, uint64_t word) {
    h = (h ^ word) * 0x9e3779b97f4a7c15;
    return h ^ h >> 32;
}

}  // namespace

Steps::Steps(Segment& segment, Region& region, int rank)
    : rank(rank), n(region.nranks), segment_(segment), region_(region),
      record_(segment.record(region.member()[rank])), tracer_(segment, region.member()[rank]),
      policy_(WaitPolicy::for_ranks(segment.world_size())) {}

void Steps::begin(const Call& call, uint64_t bytes) {
    if (region_.failed()) throw_failure(name(call.op()), int64_t(calls_) + 1);
    call_ = call;
    history_ = mix(mix(history_, call.what), call.amount);
    ++calls_;
    region_.seats[rank].calls.store(calls_, std::memory_order_relaxed);
    bytes_ = bytes;
    waited_ = 0;
    traced_ = false;
    if (bytes >= kTimedFrom) trace();
}

void Steps::trace() {
    began_ = ticks();
    entry_ = tracer_.begin(call_.what, region_.number, 0, calls_, bytes_, began_);
    traced_ = true;
}

void Steps::end(bool failed) {
    if (!traced_) trace();
    const bool quick = bytes_ < kTimedFrom && !waited_;
    tracer_.end(entry_, quick ? began_ : ticks(), waited_, failed ? kFailed : 0);
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

// Two ranks on one core, where there is one for each: the one that waits leaves it.
void Steps::take_own_core(int peer) {
    const int core = sched_getcpu();
    const bool shared = region_.seats[peer].core.load(std::memory_order_relaxed) == core + 1;
    if (shared) leave_core(core);
    region_.seats[rank].core.store((shared ? sched_getcpu() : core) + 1, std::memory_order_relaxed);
}

void Steps::sleep_for(int peer, std::atomic<uint64_t>& seq, uint64_t value) {
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
    }
    for (int i = 0; i < policy_.yields; ++i) {
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

void Steps::lost(int peer, const std::string& operation, int64_t sequence) {
    fail_region(region_, Cause::PeerLost, peer, region_.seats[peer].calls.load(), "");
    throw_failure(operation, sequence);
}

void Steps::mismatch() {
    fail_region(region_, Cause::Mismatch, rank, calls_, "");
    throw_failure();
}

void Steps::timed_out(uint64_t value) {
    std::string missing;
    for (int p = 0; p < n; ++p)
        if (p != rank && region_.seats[p].lines[(value - 1) % kLines].seq.load() < value)
            missing += (missing.empty() ? "" : ",") + std::to_string(p);
    fail_region(region_, Cause::TimedOut, rank, calls_, missing);
    throw_failure();
}

Calls Steps::states() const {
    Calls result;
    for (int p = 0; p < n; ++p) {
        const RankRecord& r = segment_.record(region_.member()[p]);
        std::string text;
        if (!r.joined.load()) text = "has not joined";
        else if (r.exited.load()) text = segment_.how_it_ended(region_.member()[p]);
        else text = words(whereabouts(segment_.header(), region_.member()[p]), region_.number);
        result.emplace_back(p, text);
    }
    return result;
}

// The latest `most` calls of each rank, as far as its lines tell, the latest last.
Calls Steps::recent_calls(size_t most) const {
    Calls result;
    for (int p = 0; p < n; ++p) {
        std::map<uint64_t, const Line*> by_step;
        for (const Line& line : region_.seats[p].lines)
            if (const uint64_t seq = line.seq.load()) by_step[seq] = &line;
        std::vector<std::string> calls;
        const Line* before = nullptr;
        for (const auto& [seq, line] : by_step) {
            if (!before || before->history.load() != line->history.load()) calls.push_back(line->said().words());
            before = line;
        }
        std::string text;
        for (size_t i = calls.size() - std::min(most, calls.size()); i < calls.size(); ++i) text += (text.empty() ? "" : ", then ") + calls[i];
        result.emplace_back(p, text.empty() ? kNotYet : text);
    }
    return result;
}

void Steps::throw_failure(const std::string& operation, int64_t sequence) {
    const Failure f = region_.failure();
    const std::string who = "rank " + std::to_string(f.rank);
    const std::string here = operation == name(Op::None) ? "" : ", while rank " + std::to_string(rank) + " was in " + operation +
                             (sequence < 0 ? "" : " #" + std::to_string(sequence));
    switch (f.cause) {
    case Cause::PeerLost: {
        const int world_rank = region_.member()[f.rank];
        const std::string how = f.how[0] ? f.how : segment_.how_it_ended(world_rank);
        const int32_t number = segment_.record(world_rank).pid.load();  // 0: it never joined
        const std::string pid = number ? " (pid " + std::to_string(number) + ") " : " ";
        throw PeerLost(who + pid + how + here, f.rank, how, operation, sequence);
    }
    case Cause::TimedOut: {
        std::vector<int> missing;
        for (const char* at = f.how; *at; at += *at == ',') missing.push_back(int(std::strtol(at, const_cast<char**>(&at), 10)));
        Calls where = states();
        std::string text = "no answer within " + seconds(timeout) + " from rank" + (missing.size() == 1 ? " " : "s ") + f.how + ", awaited by " + who + here;
        if (missing == std::vector<int>{f.rank}) text = who + " waited for an event, before its next operation, longer than its timeout allows" + here;
        for (const auto& [r, what] : where) text += "\n  rank " + std::to_string(r) + ": " + what;
        throw TimedOut(text, timeout, missing, where, operation, sequence);
    }
    default: break;
    }
    // A mismatch: show what each rank called. Where all are in the same call now, an earlier one
    // differed (a root that need not wait finds it only later): show what the lines still tell.
    Calls calls = recent_calls(1);
    std::set<std::string> different;
    for (const auto& [r, call] : calls)
        if (call != kNotYet) different.insert(call);
    if (different.size() < 2) calls = recent_calls(3);
    std::string text = (f.how[0] ? std::string(f.how) : "the ranks called different operations") + " (seen by " + who + " at its operation #" + std::to_string(f.sequence) + ")";
    for (const auto& [r, what] : calls) text += "\n  rank " + std::to_string(r) + ": " + what;
    throw Mismatch(text, calls, int64_t(f.sequence));
}

}  // namespace rankwise
