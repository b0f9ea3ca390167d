// The calls that programs make to another library, such as MPI, stored in the segment so that the ranks of a host can
// compare them, and show where each rank is.
//
// Each rank has a WatchedRank, and in it a WatchedComm for each of its communicators with the last calls that it made
// there. Only the rank itself writes them. Ranks recognise a communicator by its id, which they derive from the call
// that made it, without communication.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/operations.hpp"
#include "memory/segment.hpp"
#include "trace/trace.hpp"

namespace rankwise {

inline constexpr uint32_t kWatchedCalls = 256;   // of a communicator; ranks that are further apart are not compared
inline constexpr uint32_t kWatchedComms = 1000;  // of a rank; the calls of further ones are not compared
inline constexpr uint32_t kCallSites = 2048;     // lines of a rank's program that make calls
inline constexpr size_t kCallSiteText = 240;
inline constexpr size_t kCommName = 84;
inline constexpr size_t kFailureText = 400;
inline constexpr uint64_t kUnknownAmount = UINT64_MAX;
inline constexpr uint8_t kNone = 255;  // no dtype, no reduction

// What a call is. Ranks compare operation, reduction and root, and where both know them dtype and amount.
struct CallKind {
    uint16_t operation = 0;  // index in CallNames::operations
    uint8_t dtype = kNone;
    uint8_t reduction = kNone;  // index in CallNames::reductions
    int32_t root = 0;           // or the peer of a message
    uint64_t pack() const {
        return operation | uint64_t(dtype) << 16 | uint64_t(reduction) << 24 | uint64_t(uint32_t(root)) << 32;
    }
    static CallKind unpack(uint64_t word) {
        return {uint16_t(word), uint8_t(word >> 16), uint8_t(word >> 24), int32_t(word >> 32)};
    }
};

// The names of what is called, in the same order on all ranks.
struct CallNames {
    struct Operation {
        std::string name;
        Op traced = Op::None;  // as which the trace shows it; None: not at all
        bool message = false;  // between two ranks, or of one rank; never compared
        bool rooted = false;
    };
    std::vector<Operation> operations;
    std::vector<std::string> reductions;  // first those of ReduceOp, in its order
};

struct alignas(64) WatchedCall {
    std::atomic<uint64_t> number;      // in its communicator, from 1; 0 or kBeingWritten: not readable
    std::atomic<uint64_t> kind;        // CallKind
    std::atomic<uint64_t> amount;      // elements, or the tag of a message; or kUnknownAmount
    std::atomic<uint64_t> digest;      // of the kinds of this call and all before it in its communicator
    std::atomic<uint32_t> site, comm;  // indices of the call site and of the communicator
    std::atomic<uint64_t> begin, end;  // ticks; end is 0 while it is in progress
};

struct WatchedComm {
    std::atomic<uint64_t> id;  // 0: freed, or that of the messages
    std::atomic<uint64_t> calls;
    std::atomic<uint32_t> group;     // its number in the trace
    std::atomic<uint32_t> deferred;  // its calls return before they are complete
    char name[kCommName];
    WatchedCall ring[kWatchedCalls];
    WatchedCall& at(uint64_t number) { return ring[number % kWatchedCalls]; }
};

struct WatchedRank {
    int32_t number;  // of the rank in the job
    std::atomic<uint32_t> comms_used, sites_used;
    std::atomic<uint64_t> comms[kWatchedComms];  // offsets; the first holds the messages
    std::atomic<uint64_t> roll_called;           // in the first rank's: ticks of the last roll call
    std::atomic<uint32_t> mismatch_reported;     // likewise
    char failure[kFailureText];                  // likewise: why the job was ended
    char sites[kCallSites][kCallSiteText];
};

// A call as read.
struct CallRecord {
    uint64_t number;
    CallKind kind;
    uint64_t amount, digest;
    uint32_t site, comm;
    uint64_t begin, end;
};

// nullptr if the rank has none yet, or a stray write has changed its place.
WatchedRank* watched_rank(const Segment& segment, int rank);
WatchedComm* watched_comm(const Segment& segment, const WatchedRank& rank, uint32_t index);
std::optional<CallRecord> read_call(const WatchedCall& call, uint64_t number = 0);
// The first communicator of the rank, from index `first` on, for which wanted(comm) returns true, or nullptr. At
// index 0 are the messages.
template <class Wanted>
WatchedComm* find_comm(const Segment& segment, int rank, const Wanted& wanted, uint32_t first = 1) {
    const WatchedRank* const own = watched_rank(segment, rank);
    const uint32_t used = own ? std::min(own->comms_used.load(std::memory_order_acquire), kWatchedComms) : 0;
    for (uint32_t i = first; i < used; ++i) {
        WatchedComm* const comm = watched_comm(segment, *own, i);
        if (comm && (!i || comm->id.load()) && wanted(*comm)) return comm;
    }
    return nullptr;
}

// "Bcast(count=4, dtype=float64, root=0)", "Recv(source=1, tag=3)".
std::string to_string(const CallRecord& call, const CallNames& names);
// "rank 3", by its number in the job.
std::string name_of_rank(const Segment& segment, int rank);
// All ranks of the segment in the order of their numbers in the job.
std::vector<int> ranks_by_number(const Segment& segment);
// A communicator of the rank by its id, or nullptr if the rank is no member, or has not made it yet.
WatchedComm* comm_by_id(const Segment& segment, int rank, uint64_t id);
std::string site_of(const WatchedRank& rank, uint32_t site);

// Writes the calls of this process. The program's threads call it one at a time.
class CallWriter {
public:
    struct Begun {
        WatchedCall* call = nullptr;
        TraceEntry* entry = nullptr;
    };
    // rank: in the segment; number: in the job.
    CallWriter(std::shared_ptr<Segment> segment, int rank, int number, CallNames names);

    // Returns the index of a communicator: 0, that of the messages, if there is no room. Then its calls are not
    // compared.
    uint32_t add_comm(uint64_t id, const std::string& name, bool deferred = false);
    void remove_comm(uint32_t index);
    uint64_t calls(uint32_t comm) const { return comms_[comm]->calls.load(std::memory_order_relaxed); }
    // The index of this text, or 0, a site that is unknown, if there is no room.
    uint32_t add_site(const std::string& text);
    Begun begin(uint32_t comm, CallKind kind, uint64_t amount, uint32_t site, uint64_t bytes);
    void end(const Begun& begun, bool failed);

    const std::shared_ptr<Segment>& segment() const { return segment_; }
    int rank() const { return rank_; }
    const CallNames& names() const { return names_; }

private:
    std::shared_ptr<Segment> segment_;
    const int rank_;
    const CallNames names_;
    Tracer tracer_;
    WatchedRank* own_;
    std::array<WatchedComm*, kWatchedComms> comms_{};
    std::vector<uint32_t> free_;  // indices of freed communicators
};

}  // namespace rankwise
