// What the collectives and messages of a rank share: its log of calls, the ring of steps, the peers' memory, and where
// failures are reported.
#pragma once
#include <cstddef>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/aligned_memory.hpp"
#include "trace/call_log.hpp"
#include "transport/conditions.hpp"
#include "transport/peer_memory.hpp"
#include "transport/step_ring.hpp"

namespace rankwise {

// What is left of an operation, in place: std::function would allocate memory for it.
class Rest {
public:
    Rest() = default;
    Rest(const Rest&) = delete;
    ~Rest() {
        if (call_) destroy_(closure_);
    }
    template <class Closure> void set(const Closure& closure) {
        static_assert(sizeof closure <= sizeof closure_);
        new (closure_) Closure(closure);
        call_ = [](void* at) { (*static_cast<Closure*>(at))(); };
        destroy_ = [](void* at) { static_cast<Closure*>(at)->~Closure(); };
    }
    explicit operator bool() const { return call_; }
    void operator()() { call_(closure_); }

private:
    void (*call_)(void*) = nullptr;
    void (*destroy_)(void*) = nullptr;
    alignas(std::max_align_t) std::byte closure_[160];
};

// An operation of one step that has been started, and what is left to do once the awaited peers have posted that step.
struct Started {
    static constexpr int kAll = -1;
    uint64_t step = 0;
    int awaited = kAll;  // a peer, or all
    Rest rest;
    CallLog::Current call;
    bool must_run_later = false;  // it cannot be started now
    size_t bytes = 0;             // then: of the call
};

class alignas(kCacheLine) Transport {  // aligned, so that its members' cache lines do not depend on what precedes it
public:
    Transport(Segment& segment, const GroupMemory& owned, int rank, const Settings& settings, ErrorSource& failures)
        : segment(segment), group(owned.group()), failures(failures), program(*settings.program),
          members(members_of(group)), rank(rank), n(int(members.size())), log(segment, group, rank, settings.part),
          steps(segment, owned, rank, log, failures, program), memory(segment, group, members, rank, log, failures) {}

    Segment& segment;
    GroupSegment& group;
    ErrorSource& failures;
    Embedding& program;
    const std::vector<Member> members;  // by rank
    const int rank, n;
    CallLog log;
    StepRing steps;
    PeerMemory memory;

    Started* started = nullptr;  // the operation that runs now is only started
    // The end of an operation of one step, which this rank has posted: now, or when somebody completes it.
    template <class Closure> void complete_at(uint64_t step, int awaited, Closure&& rest) {
        if (!started) return rest();
        started->step = step;
        started->awaited = awaited;
        started->rest.set(rest);
    }

    // The current call has ended.
    void end_call() {
        steps.prefetch_next();
        log.end();
    }

    const Conditions& conditions() const { return conditions_; }
    // Called before the program's first operation.
    void set_conditions(const Conditions& agreed) {
        conditions_ = agreed;
        steps.set_policy(WaitPolicy::when(agreed.oversubscribed));
        memory.set_joined(agreed.single_copy);
    }
    bool ended(int peer) const {
        return segment.ended(members[size_t(peer)].world_rank, members[size_t(peer)].process);
    }
    std::string await_how_it_ended(int peer) const {
        return segment.await_how_it_ended(members[size_t(peer)].world_rank, members[size_t(peer)].process, program);
    }
    // kScratch bytes of private memory for data read from peers.
    uint8_t* scratch() {
        if (!scratch_) scratch_ = Memory(kScratch);
        return scratch_.data();
    }

private:
    static std::vector<Member> members_of(GroupSegment& group) {
        std::vector<Member> all;
        for (int r = 0; r < group.nranks; ++r) all.push_back({group.member()[r], group.peers[r].process});
        return all;
    }
    Conditions conditions_;
    Memory scratch_;
};

}  // namespace rankwise
