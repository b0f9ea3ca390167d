// The peers' memory, which a rank reads or writes directly, in place of two copies through the slots.
//
// Single copy: ranks that are threads of one process share all memory. Processes access each other's memory with
// process_vm_readv and process_vm_writev if the system allows it (same user, no ptrace restriction); the ranks try that
// once, when the group is created. A process that stops being dumpable afterwards exposes its private memory no longer.
// Registered buffers (memory/registered.hpp) lie in the segment, which every rank has mapped.
//
// A rank that exposes memory stays in the operation until every peer has finished with it. So only in a failing
// operation can a peer read memory that its owner has reused, and then the result is discarded. A rank that exposes
// memory for writing does not leave a failing operation until no peer writes there any more, or, at the timeout, with
// an error that names the peer that may still write.
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/group_segment.hpp"
#include "sync/waiter.hpp"
#include "trace/call_log.hpp"
#include "transport/error_source.hpp"

namespace rankwise {

// Ranges of this rank's memory that were recently found to be accessible to peers. Programs reuse their arrays, and
// each test takes as long as a short message. If a range has been remapped since, the copy itself fails.
class ReachableRanges {
public:
    bool contains(const void* memory, size_t bytes) const {
        for (const Range& one : ranges_)
            if (one.memory == memory && one.bytes == bytes) return true;
        return false;
    }
    void add(const void* memory, size_t bytes) { ranges_[next_++ % kKnownRanges] = {memory, bytes}; }

private:
    struct Range {
        const void* memory = nullptr;
        size_t bytes = 0;
    } ranges_[kKnownRanges];
    size_t next_ = 0;
};

// Whether this machine needs long to copy from another process's memory, as measured once, in this process's own.
bool single_copies_are_slow();

class PeerMemory {
public:
    PeerMemory(Segment& segment, GroupSegment& group, const std::vector<Member>& members, int rank, const CallLog& log,
               ErrorSource& failures)
        : segment_(segment), group_(group), rank_(rank), n_(int(members.size())), members_(members), log_(log),
          failures_(failures) {}
    // All ranks have joined. single_copy: they may read and write each other's private memory.
    void set_joined(bool single_copy);

    // `memory` of this rank, or null if peers cannot access it, for example because a device driver mapped it, because
    // this process is no longer dumpable, or because ranks may not access private memory.
    uint8_t* reachable(const void* memory, size_t bytes) { return reachable(memory, bytes, reachable_); }
    // The same from any thread that owns `known`.
    uint8_t* reachable(const void* memory, size_t bytes, ReachableRanges& known) const;
    // Whether this rank can read and write a peer's memory. It reads a word that should have the expected value, and
    // writes nothing, only to see whether it may.
    bool can_access(int peer, uint64_t address, uint64_t expected) const;
    bool copies_slowly(int peer) const { return !is_thread_of_own_process(peer) && single_copies_are_slow(); }

    // How peers find memory of this rank: its address, or its offset in the segment with this bit set.
    static constexpr uint64_t kInSegment = uint64_t(1) << 63;
    uint64_t describe(const void* p) const {
        return segment_.contains_data(p, 1) ? segment_.offset_of(p) | kInSegment : reinterpret_cast<uint64_t>(p);
    }
    bool is_registered(const void* memory, size_t bytes) const { return segment_.contains_data(memory, bytes); }
    // Registered memory as a peer has described it; throws if there is none.
    uint8_t* in_segment(int peer, uint64_t described, size_t bytes);
    // Copy from or to the memory of a peer that is in the same operation.
    void get(int peer, void* dst, uint64_t address, size_t bytes);
    void put(int peer, const void* src, uint64_t address, size_t bytes);
    enum class Direction { Get, Put };  // Put: this rank writes
    // The same from any thread, at an address in the peer's process. Returns false if it fails: then the group has
    // failed, or will fail when the peer's death is noticed.
    bool try_copy(int peer, Direction direction, uint8_t* here, uint64_t there, size_t bytes) const;
    // The same between contiguous memory, which the peer has if this rank writes, and parts of the other's memory.
    bool try_copy(int peer, Direction direction, uint8_t* whole, std::span<const iovec> parts) const;

    // A rank sets this before it writes into a peer's memory, and then checks whether the group has failed. The
    // memory's owner fails the group first and checks this afterwards. So either the writer stops or the owner waits.
    void set_writing(bool now) { group_.peers[rank_].writing.store(now); }
    struct Writing {
        PeerMemory& memory;
        explicit Writing(PeerMemory& memory) : memory(memory) { memory.set_writing(true); }
        ~Writing() {
            if (!memory.fork_.is_child()) memory.set_writing(false);
        }
        Writing(const Writing&) = delete;
    };
    [[noreturn]] void throw_address_overwritten(int peer);
    // Throws if the group has failed.
    void check() {
        if (group_.failed()) failures_.throw_failure();
    }
    // Whether peers may write into this rank's memory, in the current operation.
    void set_exposed(bool now) { exposed_ = now; }
    // If so, fail the group, and wait until no peer writes there any more. Returns the ranks that are still writing,
    // which only a rank that is stopped can do for so long.
    std::vector<int> fail_and_await_writers(const Waiter& waiter = Waiter(kStoppedPeer));

private:
    QualifiedPid pid_of(int peer) const {
        return pids_.empty() ? group_.peers[peer].pid.load(std::memory_order_relaxed) : pids_[size_t(peer)];
    }
    bool is_thread_of_own_process(int peer) const { return pid_of(peer) == pid_of(rank_); }
    ssize_t transfer(int peer, Direction direction, void* here, uint64_t there, size_t bytes) const;
    void copy_peer_memory(int peer, Direction direction, uint8_t* here, uint64_t there, size_t bytes);

    Segment& segment_;
    GroupSegment& group_;
    const int rank_, n_;
    const std::vector<Member>& members_;
    const CallLog& log_;
    ErrorSource& failures_;
    std::vector<QualifiedPid> pids_;  // once all ranks have joined: a stray write must not lead to another process
    bool single_copy_ = false;
    bool exposed_ = false;  // peers may write into this rank's memory
    const ForkMark fork_;
    ReachableRanges reachable_;
};

}  // namespace rankwise
