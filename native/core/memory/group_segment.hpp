// A group's part of the segment: what its ranks write for each other.
//
// Every rank has a peer slot, which holds a ring of slot headers. A header announces one step of the group: the step's
// number, the call that it belongs to, and a small inline payload. Behind the peer slots lies the staging: kSlots
// slots for each rank, through which larger data passes.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/types.hpp"
#include "memory/segment.hpp"

namespace rankwise {

enum class Op : uint8_t {
    None, Barrier, AllReduce, Broadcast, Reduce, AllGather, Gather, Scatter, ReduceScatter, AllToAll,
    AllGatherV, GatherV, ScatterV, ReduceScatterV, AllToAllV, Split, Send, Recv, Sync, Close, Join, ScatterDescribed,
    Scan, Exscan,  // made of others; only Descriptions name them
};
const char* name(Op op);

inline constexpr int kHeaders = 64;          // lines of a rank's ring
inline constexpr int kAhead = 3;           // steps that a schedule may post before it has awaited one
inline constexpr int kSlots = 4;           // staging slots of a rank
inline constexpr size_t kCell = 8 << 10;   // the least room that a piece has in a slot
inline constexpr size_t kInline = 96;      // bytes that travel in the slot header

// What a rank says it is calling.
struct Call {
    uint64_t what;    // Op | dtype << 8 | op << 16 | root << 32
    uint64_t amount;  // elements, or a digest of the per-rank counts
    bool operator==(const Call&) const = default;
    Op op() const { return Op(what & 0xff); }
    DType dtype() const { return DType(what >> 8 & 0xff); }
    ReduceOp reduce() const { return ReduceOp(what >> 16 & 0x7); }
    int root() const { return int32_t(what >> 32); }
    bool has_dtype() const;  // and a count
    bool reduces() const;
    bool has_root() const;
    bool by_rank() const { return op() >= Op::AllGatherV && op() <= Op::AllToAllV; }  // amount is a digest
    std::string words() const;  // "all_reduce(count=3, dtype=float32, op=sum)"
};
// What a call is about beyond what a Call says. The ranks compare it too; it is shown where they differ.
struct Description {
    Op operation = Op::None;       // the one that the program called, where it is made of others
    int dims = 1;                  // of the arrays' shape; one axis says no more than the count does
    const int64_t* dim = nullptr;
    uint64_t digest() const;       // never 0
};
// The description of the next collective that this thread calls, which takes it; null for none.
[[gnu::tls_model("initial-exec")]] inline thread_local constinit const Description* described_here = nullptr;

Call make_call(Op op, DType dtype = DType::U8, ReduceOp reduce = ReduceOp::SUM, int root = 0, uint64_t amount = 0);

struct alignas(kCacheLine) SlotHeader {
    std::atomic<uint64_t> seq;  // step + 1 once the rest is there
    std::atomic<uint64_t> history;       // digest of this and all earlier calls: what the ranks compare
    std::atomic<uint64_t> what, amount;  // the call, for the message when they differ
    uint8_t payload[kInline];

    void say(uint64_t digest, const Call& call) {
        history.store(digest, std::memory_order_relaxed);
        what.store(call.what, std::memory_order_relaxed);
        amount.store(call.amount, std::memory_order_relaxed);
    }
    Call said() const { return {what.load(std::memory_order_relaxed), amount.load(std::memory_order_relaxed)}; }
};
static_assert(sizeof(SlotHeader) == kCacheLine);

// Where in the program a rank made its call. Written once the group has failed.
struct alignas(kCacheLine) CallSite {
    std::atomic<uint32_t> state;  // 0 none, 1 being written, 2 complete
    Call call;                    // what it was, where the group had failed before: then no header says so
    uint64_t number;              // of that call; 0 none
    char text[224];
};

// The latest call of a rank that had a Description.
struct alignas(kCacheLine) Described {
    static constexpr int kDims = 8;  // more axes are not shown
    static constexpr uint64_t kBeingWritten = UINT64_MAX;
    std::atomic<uint64_t> number;    // of the call; 0 before the first
    std::atomic<uint32_t> operation, dims;
    std::atomic<int64_t> dim[kDims];
};

struct alignas(kCacheLine) PeerSlot {
    SlotHeader headers[kHeaders];
    alignas(kCacheLine) std::atomic<uint32_t> notifications;  // futex: incremented to wake a sleeper in a collective
    std::atomic<uint32_t> waits_for;                 // rank + 1 that the sleeper waits for
    std::atomic<int32_t> core;                       // + 1: where the rank was when it last had to wait
    alignas(kCacheLine) std::atomic<uint32_t> message_notifications;  // futex: incremented when a channel has moved
    std::atomic<uint32_t> message_sleepers;
    alignas(kCacheLine) std::atomic<uint32_t> left;  // closed its end of the group
    std::atomic<uint32_t> writing;                   // into a peer's memory
    std::atomic<uint64_t> calls;                     // how many operations it has begun
    std::atomic<uint32_t> explained;                 // `why` is being written, or complete
    char why[228];                                   // the text of a failure that this rank recorded
    std::atomic<uint64_t> report;                    // offset of what belongs to its failure record of a timeout (timeout_report.hpp)
    Described described;
    CallSite site;
};

// Why a group failed.
enum class Cause : uint8_t { None, PeerLost, Mismatch, TimedOut };
struct Failure {
    Cause cause;
    int rank;          // of the group: who was lost, or who found it
    uint64_t sequence;
    const char* how;   // in words; empty for a lost rank: its record says how
};

struct GroupSegment {
    uint64_t bytes;
    int32_t nranks;
    uint32_t number;                                      // among the segment's groups: 0 is that of all ranks
    std::atomic<uint32_t> attached;                         // ranks that still use this memory
    uint64_t slot_bytes;
    bool oversubscribed;                                  // the host runs more ranks than this process may use cores
    uint64_t stream_from;                                 // bytes, as in kernels/copy.hpp: ranks go by it, so it is one for all
    uint64_t staging;                                     // offset from the group segment's start
    uint64_t channels;                                    // likewise: a table [src][dst] of segment offsets
    uint64_t members;                                     // likewise: int32 world rank of each peer slot
    alignas(kCacheLine) std::atomic<uint32_t> sleepers;   // ranks asleep in a collective
    // Why the group failed, in one word, so that no death leaves it half written: cause, whether that
    // rank's `why` belongs to it, rank, sequence. 0 while the group stands; written once.
    alignas(kCacheLine) std::atomic<uint64_t> failure_record;
    alignas(kCacheLine) PeerSlot peers[];

    uint8_t* base() { return reinterpret_cast<uint8_t*>(this); }
    const int32_t* member() { return reinterpret_cast<const int32_t*>(base() + members); }
    std::atomic<uint64_t>& channel(int src, int dst) {
        return reinterpret_cast<std::atomic<uint64_t>*>(base() + channels)[src * nranks + dst];
    }
    bool failed() const { return failure_record.load(std::memory_order_acquire) != 0; }
    Failure failure() const;
    bool asleep() const;  // whether any rank is, or is about to be
};

// The room that a group segment of n ranks takes.
size_t group_segment_bytes(size_t n);
// A new group segment for these world ranks; its offset in the segment.
uint64_t create_group_segment(Segment& segment, const std::vector<int>& members);

// Mark the group failed, unless it already is, and wake everyone in it.
void fail_group(GroupSegment& group, Cause cause, int rank, uint64_t sequence, const std::string& how);
// The process of `world_rank` has ended: fail the group unless that rank had left it.
void group_lost_rank(GroupSegment& group, int world_rank);
void wake_all(GroupSegment& group);

}  // namespace rankwise
