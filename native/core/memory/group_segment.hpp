// A group's part of the segment: the memory through which its ranks communicate.
//
// Every rank has a peer slot with a ring of step headers. A header announces one step of the group: the step's number,
// the call that it belongs to, and a small inline payload. The staging follows the peer slots: kSlots slots for each
// rank, through which larger data passes.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/operations.hpp"
#include "memory/segment.hpp"

namespace rankwise {

inline constexpr int kHeaders = 64;       // step headers in a rank's ring
inline constexpr int kAhead = 3;          // steps that a schedule may post before it awaits one
inline constexpr int kStarted = 32;       // operations that a rank may start before it completes the first of them
inline constexpr int kSlots = 4;          // staging slots of a rank
inline constexpr size_t kCell = 8 << 10;  // a piece occupies a multiple of this in a slot
inline constexpr size_t kInline = 96;     // bytes of a step header's inline payload

struct alignas(kCacheLine) StepHeader {
    std::atomic<uint64_t> posted;        // how many steps its rank has posted, up to this one; stored after the rest
    std::atomic<uint64_t> history;       // digest of this call and all earlier ones, which the ranks compare
    std::atomic<uint64_t> what, amount;  // the call, for the text of a mismatch
    uint8_t payload[kInline];

    void set_call(uint64_t digest, const Call& call) {
        // Releases the header of the step before: who reads this one too late then sees that step (last_calls_agree).
        history.store(digest, std::memory_order_release);
        what.store(call.what, std::memory_order_relaxed);
        amount.store(call.amount, std::memory_order_relaxed);
    }
    Call call() const { return {what.load(std::memory_order_relaxed), amount.load(std::memory_order_relaxed)}; }
};
static_assert(sizeof(StepHeader) == kCacheLine);

// Where in the program a rank made its call. Written after the group has failed.
struct alignas(kCacheLine) CallSite {
    enum class State : uint32_t { None, BeingWritten, Complete };
    std::atomic<State> state;
    Call call;        // a call refused because the group had failed: no header announces it
    uint64_t number;  // of that call; 0 none
    char text[224];
};

// The latest Description of a rank's calls.
struct alignas(kCacheLine) LastDescription {
    static constexpr int kDims = 8;  // further dimensions are not shown
    static constexpr uint64_t kBeingWritten = UINT64_MAX;
    std::atomic<uint64_t> number;  // of the call; 0 before the first
    std::atomic<uint32_t> operation, dims;
    std::atomic<int64_t> dim[kDims];
};

// Whether a rank has started operations that nobody runs, and whether a peer waits for one: see Comm::StandIn.
enum class Deferred : uint32_t { None, Waiting, Awaited };

struct alignas(kCacheLine) PeerSlot {
    StepHeader headers[kHeaders];
    alignas(kCacheLine) std::atomic<uint32_t> notifications;  // futex: incremented to wake a sleeper in a collective
    std::atomic<uint32_t> waits_for;                          // the rank + 1 that the sleeper waits for
    std::atomic<int32_t> core;                                // the core + 1 on which the rank last had to wait
    std::atomic<Deferred> deferred;                           // an operation that it has started and that nobody runs
    alignas(kCacheLine) std::atomic<uint32_t> message_notifications;  // futex: incremented when a channel made progress
    std::atomic<uint32_t> message_sleepers;                           // the rank's threads that sleep there
    // For the rank's ProgressThread: whether it waits to be notified, and whether somebody has something for it.
    alignas(kCacheLine) std::atomic<uint32_t> awaits_progress;
    std::atomic<uint32_t> progress_notified;
    alignas(kCacheLine) std::atomic<uint64_t> unexpected_used_up;  // the complement of unexpected_room(): 0, before it
                                                                   // has joined, is no limit
    // The bytes of messages without a receive that this rank would still keep.
    uint64_t unexpected_room() const { return ~unexpected_used_up.load(std::memory_order_relaxed); }
    void set_unexpected_room(uint64_t bytes) { unexpected_used_up.store(~bytes, std::memory_order_relaxed); }
    alignas(kCacheLine) std::atomic<uint32_t> has_left;  // the rank has closed its end of the group
    std::atomic<uint32_t> writing;                       // the rank may be writing into a peer's memory
    std::atomic<uint32_t> detached;                      // its process no longer uses this memory
    std::atomic<uint32_t> message_waits;                 // the rank's threads that wait for messages
    std::atomic<int64_t> vain_since, vain_until;         // ns: its wait in p2p/vain_wait.hpp
    uint32_t process;                 // number of the rank's process (RankRecord), set when the group is created
    std::atomic<QualifiedPid> pid;    // of that process; its number is 0 if it never joined
    std::atomic<uint64_t> calls;      // operations begun so far
    std::atomic<uint32_t> explained;  // `why` is being written, or complete
    char why[228];                    // why the group failed, if this rank recorded the failure
    std::atomic<uint64_t> report;     // offset of its report of a timeout (timeout_report.hpp)
    std::atomic<uint32_t> subgroup;   // number of the group that it has made in a split, until all its ranks are in it
    LastDescription last_description;
    CallSite site;
};

// Why a group failed.
enum class Cause : uint8_t { None, PeerLost, Mismatch, TimedOut };
struct Failure {
    Cause cause;
    int rank;  // of the group: the rank that was lost, or that detected the failure
    uint64_t sequence;
    std::string how;  // empty for a lost rank, whose record says how it ended
};

struct GroupSegment {
    uint64_t bytes;
    int32_t nranks;
    uint32_t number;                 // unique in the job; 0 is the group of all ranks
    std::atomic<uint32_t> attached;  // ranks that still use this memory, and the header if this is its world_group
    uint64_t slot_bytes;
    uint64_t non_temporal_from;  // bytes (kernels/non_temporal.hpp); shared, because all ranks choose by it
    uint64_t staging;            // offset from the group segment's start; a rank commits its slots when it fills them
    uint64_t channels;           // offset of the table [src][dst] of segment offsets
    uint64_t members;            // offset of the int32 world rank of each peer slot
    uint64_t agreements;         // offset of the agreements of these ranks (failure/agreement.hpp)
    alignas(kCacheLine) std::atomic<uint32_t> sleepers;  // ranks asleep in a collective
    // Why the group failed, packed into 64 bits so that a rank that dies cannot leave it half written: the cause,
    // whether that rank's `why` explains it, the rank, the sequence number. 0 until the group fails; written once.
    alignas(kCacheLine) std::atomic<uint64_t> failure_record;
    alignas(kCacheLine) PeerSlot peers[];

    // Whether no stray write has changed the numbers above on which the places of its parts depend. Each rank of the
    // group has copies of its own; whoever else uses the group asks this first.
    bool intact() const;
    uint8_t* base() { return reinterpret_cast<uint8_t*>(this); }
    const int32_t* member() { return reinterpret_cast<const int32_t*>(base() + members); }
    std::atomic<uint64_t>& channel(int src, int dst) {
        return reinterpret_cast<std::atomic<uint64_t>*>(base() + channels)[src * nranks + dst];
    }
    // Sequentially consistent, as is a store before it that announces what this rank is about to do: either this rank
    // sees the failure, or whoever has failed the group sees the announcement.
    bool failed() const { return failure_record.load() != 0; }
    Failure failure() const;
    bool asleep() const;  // whether any rank is asleep, or about to sleep
    // A rank's process no longer uses this memory. Returns whether it was the last one; then the caller must release
    // it.
    bool detach(int rank) { return !peers[rank].detached.exchange(1) && attached.fetch_sub(1) == 1; }
};

// The size of a group segment of n ranks.
size_t group_segment_bytes(size_t n);
// A rank of the job, and the number of its process.
struct Member {
    int world_rank;
    uint32_t process;
};
// The group segment at this offset, or null if there is none, because a stray write has changed the offset or the
// group.
GroupSegment* find_group(const Segment& segment, uint64_t offset);
// Creates a group segment for these ranks and returns its offset in the segment.
uint64_t create_group_segment(Segment& segment, const std::vector<Member>& members);
// Frees the channels and reports of a group's ranks, and keeps its segment for the next one.
void release_group_segment(Segment& segment, uint64_t offset);

// Mark the group failed, unless it already is, and wake all its ranks. how: the parts of the text. Allocates nothing.
// Whoever sleeps in a collective or for a message is woken; a rank that polls looks when it goes to sleep, a progress
// thread within kLongestSleep, and who copies every kBytesPerCheck.
void fail_group(GroupSegment& group, Cause cause, int rank, uint64_t sequence,
                std::initializer_list<std::string_view> how);
inline void fail_group(GroupSegment& group, Cause cause, int rank, uint64_t sequence, std::string_view how) {
    fail_group(group, cause, rank, sequence, {how});
}
// This process of `world_rank` has ended: fail the group unless that rank has left it. Returns the rank's number in the
// group, or -1 if the process is not in it.
int fail_for_ended_process(GroupSegment& group, int world_rank, uint32_t process);
void wake_all(GroupSegment& group);

}  // namespace rankwise
