// The shared memory of the ranks of one host: a memfd that every rank maps, with a record for each
// rank and a heap for groups, channels and buffers.
//
// The file is sparse and as large as the machine's memory allows; only committed heap blocks have pages. It never moves
// and is sealed against resizing, so an offset stays valid in every rank until the job ends.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sync/clock.hpp"
#include "sync/waiting.hpp"

namespace rankwise {

inline constexpr uint64_t kSegmentMagic = 0x32657369776b6e72;  // "rnkwise2"
inline constexpr int kMaxRanks = 1024;     // ranks of one host
inline constexpr size_t kCacheLine = 128;  // two lines: the hardware prefetches a line together with its neighbour
inline constexpr int32_t kStatusUnknown = INT32_MIN;

// Each rank writes its own record; all ranks read it.
struct alignas(kCacheLine) RankRecord {
    std::atomic<int32_t> pid;
    std::atomic<uint32_t> joined;
    std::atomic<uint32_t> exited;         // its process has ended
    std::atomic<uint32_t> groups_failed;  // and all its groups have been failed
    std::atomic<uint32_t> ending;         // its interpreter is about to end
    std::atomic<int32_t> exit_status;     // exit code, minus the signal, or kStatusUnknown
    // For stacks.hpp: the doorbell is a pipe, identified by its descriptor + 1 and inode. `stacks` is the offset of the
    // text that answers request number stacks_answered.
    std::atomic<int32_t> doorbell;
    std::atomic<uint32_t> stacks_requested, stacks_answered;
    std::atomic<uint64_t> doorbell_inode, stacks;
    alignas(kCacheLine) std::atomic<uint64_t> operations;  // begun so far: the number of the next one in the trace
    std::atomic<uint64_t> bytes;          // moved by these; small operations are added a few KiB at a time
    std::atomic<uint64_t> waited;         // ticks that it waited for other ranks, without the shortest waits
};

struct SegmentHeader {
    uint64_t magic;
    uint64_t bytes;
    int32_t world_size;
    std::atomic<uint32_t> heap_owner;         // rank + 1 of the holder of the heap's lock
    alignas(kCacheLine) std::atomic<uint32_t> roster;  // futex: incremented when a rank joins or exits
    uint64_t world_group;                     // offset of the group of all ranks
    uint64_t traces;                          // offset of the traces: kTraced entries for each rank (trace.hpp)
    uint64_t first_block;                     // offset of the heap; what precedes it never moves
    std::atomic<uint32_t> groups;             // created so far
    std::atomic<uint32_t> statuses_expected;  // a launcher will report how each rank ended
    ClockReading started;                     // when the segment was created
    RankRecord ranks[];
};

enum class BlockKind : uint32_t { Free, GroupSegment, Channel, Buffer };

class Segment : public std::enable_shared_from_this<Segment> {
public:
    // Throws OutOfMemory, which says how much is needed and how much available, and BadArgument.
    static std::shared_ptr<Segment> create(int world_size);
    // Maps the segment behind `fd`, which is duplicated. Throws Error if it is not a segment.
    static std::shared_ptr<Segment> attach(int fd);
    ~Segment();
    Segment(const Segment&) = delete;

    int fd() const { return fd_; }
    int world_size() const { return header_->world_size; }
    SegmentHeader& header() const { return *header_; }
    RankRecord& record(int rank) const { return header_->ranks[rank]; }
    template <class T = uint8_t> T* at(uint64_t offset) const { return reinterpret_cast<T*>(base_ + offset); }
    // Whether these bytes lie in the segment.
    bool contains(const void* p, size_t bytes) const {
        const size_t offset = offset_of(p);  // wraps around for an address before the segment
        return offset < mapped_ && bytes <= mapped_ - offset;
    }
    uint64_t offset_of(const void* p) const { return uint64_t(static_cast<const uint8_t*>(p) - base_); }

    // Page-aligned zeroed memory in the segment; returns its offset. Throws OutOfMemory.
    uint64_t allocate(size_t bytes, BlockKind kind);
    void release(uint64_t offset);
    size_t allocated_blocks() const;
    // `callback` is called before this process unmaps the segment.
    void before_unmap(std::function<void()> callback) { before_unmap_ = std::move(callback); }

    // Record that the process of `rank` has ended, and fail every group that it had not left.
    void mark_exited(int rank, int32_t status);
    // How a rank ended: "was killed by SIGKILL", "exited with status 3". Waits for the exit status, longer if a launcher
    // is sure to report it, and briefly even if the rank has only left its groups, because it is then mostly about to
    // exit. Throws Interrupted.
    std::string how_it_ended(int rank) const;

private:
    Segment(int fd, uint8_t* base, size_t bytes);
    struct HeapLock;
    int fd_;
    uint8_t* base_;
    size_t mapped_;
    SegmentHeader* header_;
    std::function<void()> before_unmap_;
};

// Bytes that can still be allocated before the machine or the cgroup runs out of memory.
size_t available_memory();
std::string mib(size_t bytes);  // "3 MiB"

}  // namespace rankwise
