// The shared memory of the trace (trace/trace.hpp).
#pragma once
#include <atomic>
#include <cstdint>

#include "memory/segment.hpp"

namespace rankwise {

inline constexpr uint64_t kBeingWritten = UINT64_MAX;

// Flags in TraceEntry::what, in bits that Call::what does not use.
inline constexpr uint64_t kFailed = 1 << 24;
inline constexpr uint64_t kBackground = 1 << 25;  // the program does not wait for the operation yet
inline constexpr uint64_t kPart = 1 << 26;        // a part of an operation that has its own entry
inline constexpr uint64_t kOnStream =
    1 << 27;  // a collective that a stream's thread waits in; the program may be elsewhere
inline constexpr uint64_t kSynchronous = 1 << 28;  // a send that waits for its receive

struct alignas(64) TraceEntry {
    std::atomic<uint64_t> stamp;          // number of the operation + 1; 0 if unused, or kBeingWritten
    std::atomic<uint64_t> what;           // Call::what and flags
    std::atomic<uint64_t> group_and_tag;  // number of the group | tag << 32
    std::atomic<uint64_t> sequence;       // in its group; 0 for messages
    std::atomic<uint64_t> bytes;
    std::atomic<uint64_t> begin;
    std::atomic<uint64_t> waited;
    std::atomic<uint64_t> end;  // 0 while it is in progress

    void set(uint64_t flag) { what.store(what.load(std::memory_order_relaxed) | flag, std::memory_order_relaxed); }
    void clear(uint64_t flag) { what.store(what.load(std::memory_order_relaxed) & ~flag, std::memory_order_relaxed); }
    // The source and tag of the message, for a receive from any rank or with any tag.
    void set_peer(int peer, int tag) {
        what.store((what.load(std::memory_order_relaxed) & UINT32_MAX) | uint64_t(uint32_t(peer)) << 32,
                   std::memory_order_relaxed);
        group_and_tag.store((group_and_tag.load(std::memory_order_relaxed) & UINT32_MAX) | uint64_t(uint32_t(tag))
                                                                                               << 32,
                            std::memory_order_relaxed);
    }
};
static_assert(sizeof(TraceEntry) == 64);

// A segment as the readers of its traces see it. world_size: as it was when it was checked.
struct TracedSegment {
    const SegmentHeader& header;
    const int world_size;
    TracedSegment(const SegmentHeader& header, int world_size) : header(header), world_size(world_size) {}
    TracedSegment(const Segment& segment) : TracedSegment(segment.header(), segment.world_size()) {}
};

inline TraceEntry* trace_of(const TracedSegment& segment, int rank) {
    auto* base = reinterpret_cast<uint8_t*>(const_cast<SegmentHeader*>(&segment.header));
    return reinterpret_cast<TraceEntry*>(base + SegmentLayout(segment.world_size).traces) + size_t(rank) * kTraced;
}

}  // namespace rankwise
