// The calls that programs make to another library, such as MPI, stored in the segment so that the ranks of a host can
// compare them, and show where each rank is.
//
// Only the rank itself writes its calls. Ranks recognise a communicator by its id, which they derive from the call that
// made it, without communication.
#pragma once
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

inline constexpr uint32_t kWatchedCalls = 1024;  // of a ring; ranks that are further apart are not compared
inline constexpr uint16_t kTexts = 3000;         // lines of a rank's program that make calls, and its communicators
inline constexpr size_t kTextSize = 240;
inline constexpr size_t kFailureText = 400;
inline constexpr uint64_t kUnknownAmount = UINT64_MAX;
inline constexpr uint8_t kNone = 255;  // no dtype, no reduction

// The names of what is called, in the same order on all ranks.
struct CallNames {
    struct Operation {
        std::string name;
        Op traced = Op::None;  // as which the trace shows it
        bool message = false;  // between two ranks, or of one rank; never compared
        std::string root{};    // what its root or peer is called; empty if it has none
    };
    std::vector<Operation> operations;
    std::vector<std::string> reductions;  // first those of ReduceOp, in its order
};

// Ranks compare operation, reduction and root, and where both know them dtype and amount.
struct WatchedCall {
    uint64_t serial = 0;     // in its ring, from 1; 0 while it is being written
    uint64_t comm = 0;       // id of the communicator; 0: not compared
    uint64_t number = 0;     // in the communicator, from 1; 0 for a message
    uint16_t operation = 0;  // index in CallNames::operations
    uint8_t dtype = kNone;
    uint8_t reduction = kNone;         // index in CallNames::reductions
    int32_t root = 0;                  // or the peer of a message; -1: any
    uint64_t amount = kUnknownAmount;  // elements, or the tag of a message
    uint64_t digest = 0;               // of this call and all before it in its communicator
    uint16_t rank = 0;                 // of the segment
    uint16_t site = 0, comm_name = 0;  // indices of its texts; 0: unknown
    uint16_t deferred = 0;             // whether the call returns before it is complete
    uint64_t begin = 0, end = 0;       // ticks; end is 0 while it is in progress
};

// A WatchedCall that other ranks read while its rank may be writing it.
class CallRecord {
public:
    void write(const WatchedCall& call);
    void end(uint64_t ticks) { words_[kEnd].store(ticks, std::memory_order_release); }
    bool in_progress() const { return words_[0].load() && !words_[kEnd].load(); }
    std::optional<WatchedCall> call() const;

private:
    static constexpr size_t kWords = sizeof(WatchedCall) / sizeof(uint64_t), kEnd = kWords - 1;
    std::atomic<uint64_t> words_[kWords];
};

inline constexpr bool kCompared = true;

struct WatchedRank {
    int32_t number;  // of the rank in the job
    struct Ring {
        std::atomic<uint64_t> last;  // the serial of the last call
        CallRecord records[kWatchedCalls];
        CallRecord& at(uint64_t serial) { return records[serial % kWatchedCalls]; }
    } rings[2];  // of calls that are not compared, such as messages, and of those that are: kCompared
    char texts[kTexts][kTextSize];
    // In the first rank's, for all ranks:
    std::atomic<uint64_t> looked, roll_called;  // ticks when somebody last compared all calls, and called the roll
    std::atomic<uint32_t> mismatch_reported;
    char failure[kFailureText];  // why the job was ended
};

// nullptr if the rank has none yet, or a stray write has changed its place.
WatchedRank* watched_rank(const Segment& segment, int rank);

// Calls visit(call) for the calls in a ring, mostly in their order, if there is one after `after`. Returns the serial
// of the last one.
template <class Visit>
uint64_t visit_calls(const Segment& segment, int rank, bool compared, const Visit& visit, uint64_t after = 0) {
    WatchedRank* const own = watched_rank(segment, rank);
    if (!own) return after;
    const uint64_t last = own->rings[compared].last.load(std::memory_order_acquire);
    for (uint64_t i = 1; i <= kWatchedCalls && last > after; ++i)
        if (const auto call = own->rings[compared].at(last + i).call(); call && call->serial > after) visit(*call);
    return last;
}

// "Bcast(count=4, dtype=float64, root=0)", "Recv(source=1, tag=3)".
std::string to_string(const WatchedCall& call, const CallNames& names);
// "rank 3", by its number in the job.
std::string name_of_rank(const Segment& segment, int rank);
// All ranks of the segment in the order of their numbers in the job, which may be another one.
std::vector<int> ranks_by_number(const Segment& segment);
// The line of the program that made a call, and the name of its communicator, "" if it is unknown.
std::string line_of(const Segment& segment, const WatchedCall& call);
std::string comm_of(const Segment& segment, const WatchedCall& call);

// Writes the calls of this process. The program's threads call it one at a time.
class CallWriter {
public:
    // rank: in the segment; number: in the job.
    CallWriter(std::shared_ptr<Segment> memory, int rank, int number, CallNames names);

    // Returns the index of a communicator, whose calls are not compared if its id is 0; or 0 if there is no room. Then
    // they are not compared either.
    uint16_t add_comm(uint64_t id, const std::string& name, bool deferred = false);
    void remove_comm(uint16_t comm);
    uint64_t calls(uint16_t comm) const { return comms_[comm].calls; }
    // The index of this text, or 0 if there is no room.
    uint16_t add_text(const std::string& text);
    // call: its operation, arguments and site. Returns what `end` takes.
    uint32_t begin(uint16_t comm, WatchedCall call, uint64_t bytes);
    void end(uint32_t begun, bool failed);

    const std::shared_ptr<Segment> segment;
    const int rank;
    const CallNames names;

private:
    struct Comm {
        uint64_t id = 0, calls = 0, digest = 0;
        uint32_t group = 0;  // its number in the trace
        bool deferred = false;
    };
    Tracer tracer_;
    WatchedRank* own_;
    std::vector<Comm> comms_{kTexts};  // each at the index of its name
    std::vector<uint16_t> free_texts_;
    std::array<TraceEntry*, 2 * kWatchedCalls> entries_{};
};

}  // namespace rankwise
