// The shared memory of the ranks of one host: a memfd that every rank maps, with a record for each
// rank and a heap for groups, channels and buffers.
//
// The file is sparse and as large as the machine's memory allows; only allocated memory has pages. It never moves
// and is sealed against resizing, so an offset stays valid in every rank until the job ends.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/descriptor.hpp"
#include "base/policy.hpp"
#include "base/qualified_pid.hpp"
#include "memory/heap.hpp"
#include "sync/embedding.hpp"
#include "sync/waiting.hpp"

namespace rankwise {

inline constexpr uint64_t kSegmentMagic = 0x61657369776b6e72;  // "rnkwisea"
inline constexpr int32_t kStatusUnknown = INT32_MIN;

// Each rank writes its own record; all ranks read it. The launcher may start a lost rank again: the processes of a rank
// are numbered from 0. The counts only grow, so whoever notices a death late cannot mistake the next process for it.
struct alignas(kCacheLine) RankRecord {
    std::atomic<QualifiedPid> pid;            // of the latest process
    std::atomic<uint32_t> joined;             // processes up to the latest one that has joined
    std::atomic<uint32_t> ended;              // processes that have ended
    std::atomic<Clock::time_point> ended_at;  // when the end of the latest of them was noticed
    std::atomic<uint32_t> groups_failed;      // processes that have ended, and all of whose groups have been failed
    std::atomic<uint32_t> ending;             // processes up to the latest one whose interpreter is about to end
    std::atomic<uint32_t> given_up;           // no further process will be started
    std::atomic<uint64_t> exit_status;  // of the latest process whose status is known: its number + 1, and below it, in
                                        // 32 bits, the exit code or minus the signal
    // For stacks.hpp: the doorbell is a pipe, identified by its descriptor + 1 and inode. `stacks` is the offset of the
    // text that answers request number stacks_answered.
    std::atomic<int32_t> doorbell;
    std::atomic<uint32_t> stacks_requested, stacks_answered;
    std::atomic<uint64_t> doorbell_inode, stacks;
    // The offset of what an extension of the engine keeps for the rank, or 0.
    std::atomic<uint64_t> extension;
    alignas(kCacheLine) std::atomic<uint64_t> operations;  // begun so far: the number of the next one in the trace
    std::atomic<uint64_t> bytes;             // moved by these; small operations are added a few KiB at a time
    std::atomic<uint64_t> waited;            // ticks that it waited for other ranks, without the shortest waits
    std::atomic<uint32_t> pending_messages;  // that have an entry in the trace although nobody waits for them
    alignas(kCacheLine)
        std::atomic<uint32_t> progress_notifications;  // futex: incremented to wake the rank's ProgressThread
};

// The name of a group that is not the group of all ranks. Of two groups whose numbers differ by kNamedGroups, the later
// one replaces the name of the earlier one.
struct alignas(64) GroupName {
    static constexpr uint64_t kBeingWritten = UINT64_MAX;
    static constexpr size_t kWords = 7;
    std::atomic<uint64_t> number;  // of the group; 0 if there is no name here, or kBeingWritten
    std::atomic<uint64_t> words[kWords];
};

struct SegmentHeader {
    uint64_t magic;
    char release[16];  // of rankwise, on which the layout of all else depends: in each release these two are the first
    uint64_t bytes;
    std::atomic<int32_t> world_size;  // read once, since a stray write may change it
    alignas(kCacheLine)
        std::atomic<uint32_t> roster;   // futex: incremented when a rank joins, exits or meets the others again
    std::atomic<uint64_t> world_group;  // offset of the group of all ranks, the latest one if it was restored
    HeapHeader heap;
    std::atomic<uint32_t> next_group;         // the number of the next group
    uint32_t group_step;                      // added to next_group for each new group
    std::atomic<uint32_t> statuses_expected;  // a launcher will report how each rank ended
    std::atomic<uint32_t> restarts_expected;  // and start a lost rank again, unless it gives the rank up
    ClockReading started;                     // when the segment was created
    GroupName group_names[kNamedGroups];      // each at its group's number modulo kNamedGroups
    RankRecord ranks[];
};

// Where the parts of a segment of this many ranks begin. Nobody reads that from the segment, where a stray write may
// have changed it.
struct SegmentLayout {
    uint64_t traces;    // kTraced entries for each rank (trace.hpp)
    uint64_t restores;  // the agreements by which all ranks of the job meet again (recovery.cpp)
    uint64_t heap;
    explicit SegmentLayout(int world_size);
};
inline bool valid_world_size(int64_t ranks) { return ranks >= 1 && ranks <= kMaxRanks; }

// The bytes of the file behind `fd`. Throws BadArgument unless that is a memfd whose size is sealed, so that none of
// its pages can vanish while somebody uses them.
size_t sealed_bytes(int fd);

// Throws BadArgument unless this begins a segment of this release. fd: of the segment, for the text.
void check_release(const SegmentHeader& header, int fd);

// "'world.tp'", or "3" if the group has no name: what messages show behind the word group.
std::string name_of_group(const SegmentHeader& header, uint32_t number);

class ProgressThread;
class Watcher;

class Segment : public std::enable_shared_from_this<Segment> {
public:
    // Throws OutOfMemory, which says how much is needed and how much available, and BadArgument.
    // node, nodes: for the ranks of one of several nodes of a job. Then no two groups of the job have the same number,
    // and none has 0, the number of the group of all ranks, which is in no segment.
    static std::shared_ptr<Segment> create(int world_size, int node = 0, int nodes = 1);
    // Maps the segment behind `fd`, which is duplicated. Throws Error if it is not a segment.
    static std::shared_ptr<Segment> attach(int fd);
    ~Segment();
    Segment(const Segment&) = delete;

    int fd() const { return fd_.get(); }
    int world_size() const { return world_size_; }
    SegmentHeader& header() const { return *header_; }
    RankRecord& record(int rank) const { return header_->ranks[rank]; }
    // The offset may be any number if nobody uses the pointer before Heap::contains or Heap::block_bytes has checked
    // it.
    template <class T = uint8_t> T* at(uint64_t offset) const {
        return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(base_) + offset);
    }
    // Whether these bytes lie where the segment's buffers and shared blocks do.
    bool contains_data(const void* p, size_t bytes) const { return heap_.contains(Area::Data, offset_of(p), bytes); }
    uint64_t offset_of(const void* p) const { return uint64_t(static_cast<const uint8_t*>(p) - base_); }

    const Heap& heap() const { return heap_; }
    // The pidfds of the first processes of ranks in other PID namespaces, whose pids are not valid here. `add_pidfd`
    // duplicates its argument and throws Error if it cannot; `take_pidfd` returns -1 if none was added.
    void add_pidfd(int rank, int pidfd);
    int take_pidfd(int rank);
    // This process is number `process` of `rank`: what it reserves and allocates from now on is freed after its death.
    void set_owner(int rank, uint32_t process) { heap_.set_owner(rank, process); }
    // This process's watcher of the other ranks (failure/watcher.hpp). Its thread ends when this is released.
    std::shared_ptr<Watcher> watcher;
    // For each rank of this process, the thread that moves its messages in the background (p2p/progress_thread.hpp).
    std::vector<std::shared_ptr<ProgressThread>> progress_threads;

    // This process of `rank` has ended: records that, and its status if it is known, fails every group that it had not
    // left, and releases the groups that nobody uses any more.
    void mark_ended(int rank, int32_t status, uint32_t process = 0);
    bool ended(int rank, uint32_t process) const { return record(rank).ended.load() > process; }
    // The rank's present process, or -1 if it has none that has joined and not ended.
    int64_t present_process(int rank) const;
    int32_t exit_status(int rank, uint32_t process) const;  // or kStatusUnknown
    // No further process of this rank will be started.
    void give_up(int rank);
    // How a process ended: "was killed by SIGKILL", "exited with status 3". Waits for the exit status, longer if a
    // launcher is sure to report it, and briefly even if the rank has only left its groups, because it is then mostly
    // about to exit. The wait counts from the end of the process, so that it is one for all that are lost together.
    // Throws Interrupted, by `program`.
    std::string await_how_it_ended(int rank, uint32_t process, Embedding& program) const;
    // A number for a new group, unique in the job.
    uint32_t new_group() { return header_->next_group.fetch_add(header_->group_step); }
    // Show a group by this name in messages and traces, cut to 56 characters; those that are not ASCII become "?".
    void name_group(uint32_t number, const std::string& name);
    // Wake whoever waits for ranks to join.
    void announce_roster();

private:
    Segment(Descriptor fd, size_t bytes);
    const Descriptor fd_;
    const size_t mapped_;
    uint8_t* const base_;
    SegmentHeader* const header_;
    int world_size_;  // as in the header, where a stray write may have changed it since
    Heap heap_;
    std::mutex pidfds_mutex_;
    std::map<int, int> pidfds_;  // by rank
};

}  // namespace rankwise
