// The shared memory of the ranks of one host: a memfd that every rank maps, a record for each
// rank, and a heap from which groups, channels and buffers are cut.
//
// The file is as large as the machine's memory allows and sparse: pages exist where a heap block
// has been committed. It never moves and is sealed against resizing, so an offset is valid in every
// rank for as long as the job lives.
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
inline constexpr size_t kCacheLine = 128;  // two lines: the neighbour is fetched along with a line
inline constexpr int32_t kStatusUnknown = INT32_MIN;

// Each rank writes its own; everyone reads.
struct alignas(kCacheLine) RankRecord {
    std::atomic<int32_t> pid;
    std::atomic<uint32_t> joined;
    std::atomic<uint32_t> exited;      // its process has ended
    std::atomic<uint32_t> told;        // and every group knows
    std::atomic<uint32_t> ending;      // its interpreter is about to end
    std::atomic<int32_t> exit_status;  // exit code, minus the signal, or kStatusUnknown
    // Stacks (stacks.hpp): the pipe at which it is asked, as descriptor + 1 and inode; how often it was asked, and
    // which question the text answers, of which this is the offset.
    std::atomic<int32_t> doorbell;
    std::atomic<uint32_t> stacks_asked, stacks_told;
    std::atomic<uint64_t> doorbell_inode, stacks;
    alignas(kCacheLine) std::atomic<uint64_t> operations;  // how many it has begun: the next one's place in its trace
    std::atomic<uint64_t> bytes;       // moved by these; small operations are added up a few KiB at a time
    std::atomic<uint64_t> waited;      // ticks that it waited for others, beyond the shortest waits
};

struct SegmentHeader {
    uint64_t magic;
    uint64_t bytes;
    int32_t world_size;
    std::atomic<uint32_t> heap_owner;         // rank + 1 of the holder of the heap's lock
    alignas(kCacheLine) std::atomic<uint32_t> roster;  // bumped at each joining and exit; joiners sleep on it
    uint64_t world_group;                    // offset of the group of all ranks
    uint64_t traces;                          // likewise: kTraced entries for each rank (trace.hpp)
    uint64_t first_block;                     // likewise: where the heap begins; what is before it never moves
    std::atomic<uint32_t> groups;             // made so far
    std::atomic<uint32_t> statuses_come;      // a launcher is there that says how each rank ended
    ClockReading started;                     // when the segment was made
    RankRecord ranks[];
};

enum class BlockKind : uint32_t { Free, GroupSegment, Channel, Buffer };

class Segment : public std::enable_shared_from_this<Segment> {
public:
    // Throws OutOfMemory (needed and available named), BadArgument.
    static std::shared_ptr<Segment> create(int world_size);
    // Maps the segment behind `fd`, which is duplicated. Throws Error where it is no segment.
    static std::shared_ptr<Segment> attach(int fd);
    ~Segment();
    Segment(const Segment&) = delete;

    int fd() const { return fd_; }
    int world_size() const { return header_->world_size; }
    SegmentHeader& header() const { return *header_; }
    RankRecord& record(int rank) const { return header_->ranks[rank]; }
    template <class T = uint8_t> T* at(uint64_t offset) const { return reinterpret_cast<T*>(base_ + offset); }
    // Whether these bytes lie in the segment; then their offset.
    bool holds(const void* p, size_t bytes) const {
        const size_t offset = offset_of(p);  // wraps round for what lies before it
        return offset < mapped_ && bytes <= mapped_ - offset;
    }
    uint64_t offset_of(const void* p) const { return uint64_t(static_cast<const uint8_t*>(p) - base_); }

    // Page-aligned zeroed memory of the segment; the offset of its first byte. Throws OutOfMemory.
    uint64_t allocate(size_t bytes, BlockKind kind);
    void release(uint64_t offset);
    size_t allocated_blocks() const;
    // Called when this process lets go of the segment.
    void at_end(std::function<void()> then) { at_end_ = std::move(then); }

    // The process of `rank` ended: record it, and fail every group in which it still sat.
    void mark_exited(int rank, int32_t status);
    // "was killed by SIGKILL", "exited with status 3": what is known of a rank that ended. Waits for whoever
    // reaps the process to say how, longer where that is sure to come; for a moment also where the rank has
    // left its groups, as it is mostly about to exit. Throws Interrupted.
    std::string how_it_ended(int rank) const;

private:
    Segment(int fd, uint8_t* base, size_t bytes);
    struct HeapLock;
    int fd_;
    uint8_t* base_;
    size_t mapped_;
    SegmentHeader* header_;
    std::function<void()> at_end_;
};

// Bytes that may still be taken before the machine or the cgroup runs out.
size_t available_memory();
std::string mib(size_t bytes);  // "3 MiB"

}  // namespace rankwise
