// The last operations of each rank, stored in the segment: any process that maps it can read them at any time, even
// after the rank has died.
//
// A rank writes an entry when an operation begins and completes it when the operation ends. Any of its threads may do
// so. An entry is not reused before its operation has ended, however long that takes, so a reader always finds the
// operation that a rank is in. Times are ticks of the processor's counter, which is cheaper to read than a clock; the
// segment's header has what is needed to convert them.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "memory/group_segment.hpp"
#include "memory/trace_entry.hpp"
#include "sync/forks.hpp"
#include "trace/totals.hpp"

namespace rankwise {

// Writes a rank's entries; each communicator has one. part: its operations are parts of other operations, which have
// their own entries; only these count in the rank's totals.
class Tracer {
public:
    Tracer(Segment& segment, int rank, bool part = false)
        : record_(segment.record(rank)), ring_(trace_of(segment, rank)), part_(part) {}

    // A message that nobody waits for may have an entry only if this returns true; then call unreserve when it has
    // ended. At most half of the entries are for such messages, however many are pending, so that the next free one is
    // soon found.
    bool reserve() {
        if (record_.pending_messages.fetch_add(1, std::memory_order_relaxed) < kTraced / 2) return true;
        unreserve();
        return false;
    }
    void unreserve() { record_.pending_messages.fetch_sub(1, std::memory_order_relaxed); }
    // Returns nullptr if the operations of all entries are in progress.
    TraceEntry* begin(uint64_t what, uint32_t group, int tag, uint64_t sequence, uint64_t bytes, uint64_t at);
    // entry may be nullptr. In a forked child, the operation goes on: it is the parent's.
    void end(TraceEntry* entry, uint64_t at, uint64_t waited, uint64_t flags = 0);
    // These two add to the rank's totals, but not from a forked child.
    void moved(uint64_t bytes) {
        if (!part_ && !fork_.is_child()) record_.bytes.fetch_add(bytes, std::memory_order_relaxed);
    }
    void waited(uint64_t ticks) {
        if (!part_ && !fork_.is_child()) record_.waited.fetch_add(ticks, std::memory_order_relaxed);
    }
    // Whether somebody measures what this rank's operations do. Each is then counted when it has ended.
    bool measured() const { return Totals::measuring() && counted_.load(std::memory_order_relaxed); }
    // False if these operations are parts of others, which are counted themselves.
    void set_counted(bool now) { counted_.store(now, std::memory_order_relaxed); }
    void count(Op op, uint64_t ticks, uint64_t waited, uint64_t bytes) const {
        Totals::add(op, {1, bytes, ticks, waited});
    }
    bool part() const { return part_; }

private:
    RankRecord& record_;
    TraceEntry* ring_;
    const bool part_;
    const ForkMark fork_;
    std::atomic<bool> counted_{true};
};

// Enters a call that is not a collective into the trace of the rank that makes it.
class TracedCall {
public:
    TracedCall(Segment& segment, int rank, Op op, uint32_t group, bool part)
        : tracer_(segment, rank, part), op_(op), began_(ticks()),
          entry_(tracer_.begin(uint64_t(op), group, 0, 0, 0, began_)) {
        tracer_.set_counted(!part);
    }
    ~TracedCall() {
        const uint64_t now = ticks(), took = now - began_;
        tracer_.end(entry_, now, took, std::uncaught_exceptions() > errors_ ? kFailed : 0);
        if (tracer_.measured()) tracer_.count(op_, took, took, 0);
    }
    TracedCall(const TracedCall&) = delete;

private:
    Tracer tracer_;
    const Op op_;
    const int errors_ = std::uncaught_exceptions();
    const uint64_t began_;
    TraceEntry* const entry_;
};
// Ends the entries that a rank's lost process left in progress.
void end_operations(const TracedSegment& segment, int rank);

// An entry as read. Times are in ns, `begin` and `end` since the epoch.
struct Operation {
    uint64_t number;  // among the rank's operations
    Op kind;
    uint32_t group;              // 0: all ranks; other groups are numbered in the order of their creation
    std::string group_name;      // "'world.tp'", or the number as text if the group has no name
    uint64_t sequence;           // in its group; 0 for messages
    std::optional<DType> dtype;  // absent, like the next four, if the operation has none
    std::optional<ReduceOp> op;
    std::optional<int> root;
    std::optional<int> peer, tag;  // of a message; -1: any
    uint64_t bytes;                // this rank's block, or all that it sends (Comm::Collective)
    int64_t begin, waited;
    std::optional<int64_t> end;  // absent while it is in progress
    bool failed;                 // it ended in an error
    bool background;             // a message that this rank does not wait for
    bool part;                   // a part of another operation, whose own entry says what the program called
    bool on_stream;              // a stream's thread waits in it; the program may be elsewhere
    bool synchronous;            // a send that waits for its receive
};

// What a rank is doing: `operation` is its current one, or, if `inside` is false, its last one. It is a part of another
// operation only if that operation has no entry.
struct Whereabouts {
    std::optional<Operation> operation;  // absent before the first
    bool inside = false;
    int64_t since = 0;              // ns since the operation began, or, if `inside` is false, ended
    std::vector<Operation> others;  // that are in progress besides, such as messages in the background; no parts
    // Whether the rank has joined and begun an operation of the program.
    bool begun() const { return operation && operation->kind != Op::Join; }
};

// The operations still in the trace, in the order in which they began.
std::vector<Operation> operations(const TracedSegment& segment, int rank);
Whereabouts whereabouts(const TracedSegment& segment, int rank);
int64_t ns_of_ticks(const SegmentHeader& header, uint64_t ticks);

// "all_reduce #3", "recv from rank 1, tag 4"; "barrier #2 of group 'world.tp'" if the operation is not in `group`.
std::string to_string(const Operation& operation, uint32_t group);
// "in all_reduce #3 for 4.2 s", "outside any collective for 1 s, last was barrier #2".
std::string to_string(const Whereabouts& where, uint32_t group);

// A segment as seen from outside its ranks, mapped read-only.
class SegmentView {
public:
    // The descriptor is not kept. Throws BadArgument if it is not a segment of this version. Nothing in it is trusted,
    // because root may read the segments of other users.
    explicit SegmentView(int fd);
    ~SegmentView();
    SegmentView(const SegmentView&) = delete;
    const SegmentHeader& header() const { return *static_cast<const SegmentHeader*>(base_); }
    int world_size() const { return world_size_; }
    operator TracedSegment() const { return {header(), world_size_}; }

private:
    void* base_;
    int world_size_;
    size_t bytes_;
};

// What a segment records about one rank.
struct RankState {
    QualifiedPid pid;
    bool joined, ended;
    std::optional<int> exit_status;
    uint64_t operations, bytes;
    int64_t waited;  // ns
    Whereabouts where;
};
RankState rank_state(const SegmentView& view, int rank);

}  // namespace rankwise
