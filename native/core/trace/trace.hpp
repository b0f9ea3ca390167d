// The last operations of each rank, in the segment: whoever maps it may read them at any time, also
// after the rank has died.
//
// A rank writes an entry when an operation begins and completes it when the operation ends. Any of
// its threads may do so; an entry belongs to its operation from begin to end, however long that
// takes, so that what a rank is in can always be read. Times are ticks of the processor's counter,
// which costs less to read than a clock; the segment's header says what they mean.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "memory/group_segment.hpp"

namespace rankwise {

inline constexpr int kTraced = 1024;  // entries of a rank

// Operations of fewer bytes that did not have to wait for long take less than about a microsecond;
// the end of these is not measured.
inline constexpr uint64_t kTimedFrom = 4096;

// As Call::what says it, and above these, in the bits between op and root:
inline constexpr uint64_t kFailed = 1 << 24;
inline constexpr uint64_t kBackground = 1 << 25;  // nobody waits for it yet

struct alignas(64) TraceEntry {
    std::atomic<uint64_t> stamp;     // its place among the rank's operations, + 1; 0 while the rest is written
    std::atomic<uint64_t> what;
    std::atomic<uint64_t> place;     // number of the group | tag << 32
    std::atomic<uint64_t> sequence;  // in its group; 0 for messages
    std::atomic<uint64_t> bytes;
    std::atomic<uint64_t> begin;
    std::atomic<uint64_t> waited;
    std::atomic<uint64_t> end;       // 0 while it is under way

    void clear(uint64_t flag) { what.store(what.load(std::memory_order_relaxed) & ~flag, std::memory_order_relaxed); }
    // Who a message came from, and its tag, where any would do.
    void tell_peer(int peer, int tag) {
        what.store((what.load(std::memory_order_relaxed) & UINT32_MAX) | uint64_t(uint32_t(peer)) << 32, std::memory_order_relaxed);
        place.store((place.load(std::memory_order_relaxed) & UINT32_MAX) | uint64_t(uint32_t(tag)) << 32, std::memory_order_relaxed);
    }
};
static_assert(sizeof(TraceEntry) == 64);

inline TraceEntry* trace_of(const SegmentHeader& header, int rank) {
    auto* base = reinterpret_cast<uint8_t*>(const_cast<SegmentHeader*>(&header));
    return reinterpret_cast<TraceEntry*>(base + header.traces) + size_t(rank) * kTraced;
}

// The writing side: one for each communicator of a rank.
class Tracer {
public:
    Tracer(Segment& segment, int rank) : record_(segment.record(rank)), ring_(trace_of(segment.header(), rank)) {}

    // nullptr where all entries are of operations under way.
    TraceEntry* begin(uint64_t what, uint32_t group, int tag, uint64_t sequence, uint64_t bytes, uint64_t at);
    // entry may be nullptr.
    void end(TraceEntry* entry, uint64_t at, uint64_t waited, uint64_t flags = 0);
    // Add to the rank's totals.
    void moved(uint64_t bytes) { record_.bytes.fetch_add(bytes, std::memory_order_relaxed); }
    void waited(uint64_t ticks) { record_.waited.fetch_add(ticks, std::memory_order_relaxed); }

private:
    RankRecord& record_;
    TraceEntry* ring_;
};

// What an entry says, as a reader sees it. Times in ns, `begin` and `end` since the epoch.
struct Operation {
    uint64_t number;                   // among the rank's operations
    Op kind;
    uint32_t group;                    // 0: all ranks; the others are numbered as they are made
    uint64_t sequence;                 // in its group; 0 for messages
    std::optional<DType> dtype;        // where it has one, as the next three
    std::optional<ReduceOp> op;
    std::optional<int> root;
    std::optional<int> peer, tag;      // of a message; -1: any
    uint64_t bytes;                    // of this rank's argument
    int64_t begin, waited;
    std::optional<int64_t> end;        // absent while it is under way
    bool failed;                       // it ended in an error
    bool background;                   // a message that this rank does not wait for
};

// Where a rank is: its present operation, or the last where `inside` is false.
struct Whereabouts {
    std::optional<Operation> operation;  // absent before the first
    bool inside = false;
    int64_t since = 0;                   // ns that it has been there
    // Whether the ranks have met and this one has begun an operation of the program.
    bool begun() const { return operation && operation->kind != Op::Join; }
};

// The operations still in the trace, in the order they began.
std::vector<Operation> operations(const SegmentHeader& header, int rank);
Whereabouts whereabouts(const SegmentHeader& header, int rank);
int64_t ns_of_ticks(const SegmentHeader& header, uint64_t ticks);

// "all_reduce #3", "recv from rank 1, tag 4", "barrier #2 of group 5" where that is not `group`.
std::string words(const Operation& operation, uint32_t group);
// "in all_reduce #3 for 4.2 s", "outside any collective for 1 s, last was barrier #2".
std::string words(const Whereabouts& where, uint32_t group);

// A segment as seen from outside its ranks, mapped for reading alone.
class SegmentView {
public:
    // The descriptor is not kept. Throws BadArgument where it is no segment of this version.
    explicit SegmentView(int fd);
    ~SegmentView();
    SegmentView(const SegmentView&) = delete;
    const SegmentHeader& header() const { return *static_cast<const SegmentHeader*>(base_); }

private:
    void* base_;
    size_t bytes_;
};

}  // namespace rankwise
