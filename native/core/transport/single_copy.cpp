#include "transport/single_copy.hpp"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace rankwise {

namespace {

constexpr int kDumpable = 1;  // what PR_GET_DUMPABLE returns for a process whose memory others of its user may access

// Whether other processes may access the memory of this one. The answer holds for a tick of the coarse clock, a few
// milliseconds at most: to ask each time made messages of 16 to 64 KiB 6 to 9 % slower.
bool is_dumpable() {
    static std::atomic<int64_t> asked{-1};
    static std::atomic<bool> dumpable;
    timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    const int64_t tick = now.tv_sec * 1'000'000'000 + now.tv_nsec;
    if (asked.load(std::memory_order_acquire) != tick) {
        dumpable.store(prctl(PR_GET_DUMPABLE) == kDumpable, std::memory_order_relaxed);
        asked.store(tick, std::memory_order_release);
    }
    return dumpable.load(std::memory_order_relaxed);
}

}  // namespace

uint8_t* SlotProtocol::scratch() {
    if (!scratch_) scratch_.reset(new (std::align_val_t(64)) uint8_t[kScratch]);
    return scratch_.get();
}

QualifiedPid SlotProtocol::pid_of(int peer) const { return group_.peers[peer].pid.load(std::memory_order_relaxed); }

bool SlotProtocol::is_thread_of_own_process(int peer) const { return pid_of(peer) == pid_of(rank); }

// Copies up to `bytes` to or from another rank's memory. Returns how many were copied, or -1 with errno.
ssize_t SlotProtocol::transfer(int peer, bool writes, void* here, uint64_t there, size_t bytes) const {
    const iovec local{here, bytes}, remote{reinterpret_cast<void*>(there), bytes};
    // A process that replaced the peer has another pid.
    if (!is_thread_of_own_process(peer))
        return (writes ? process_vm_writev : process_vm_readv)(pid_of(peer).number, &local, 1, &remote, 1, 0);
    std::memcpy((writes ? remote : local).iov_base, (writes ? local : remote).iov_base, bytes);
    return ssize_t(bytes);
}

bool SlotProtocol::try_copy(int peer, bool writes, uint8_t* here, uint64_t there, size_t bytes) const {
    for (size_t done = 0; done < bytes;) {
        const ssize_t moved = transfer(peer, writes, here + done, there + done, bytes - done);
        if (moved <= 0) {
            const int why = errno;
            if (why != ESRCH)
                fail_group(group_, Cause::PeerLost, rank, group_.peers[rank].calls.load(),
                           "could not access the memory of rank " + std::to_string(peer) + " (" + std::strerror(why) +
                               "); RANKWISE_DIRECT=0 avoids such access");
            return false;
        }
        done += size_t(moved);
    }
    return true;
}

void SlotProtocol::copy_peer_memory(int peer, bool writes, uint8_t* here, uint64_t there, size_t bytes) {
    uint8_t* const in_segment = there & kInSegment ? segment_.at(there & ~kInSegment) : nullptr;
    const Copy copy = this->copy_for(bytes * size_t(n));
    const auto check_copied = [&](bool copied) {
        if (copied && !group_.failed()) return;
        set_writing(false);  // before the error is put together, because peers may wait for this
        if (!copied) lost(peer, name(call_.op()), int64_t(calls_));
        check();
    };
    check_copied(true);
    if (in_segment && !segment_.contains(in_segment, bytes)) {
        set_writing(false);
        address_overwritten(peer);
    }
    for (size_t done = 0; done < bytes; done += kBytesPerCheck) {
        const size_t length = std::min(kBytesPerCheck, bytes - done);
        if (in_segment) copy((writes ? in_segment : here) + done, (writes ? here : in_segment) + done, length);
        // After the last chunk too: data read from a rank that has left may be overwritten.
        check_copied(in_segment || try_copy(peer, writes, here + done, there + done, length));
    }
}

void SlotProtocol::get(int peer, void* dst, uint64_t address, size_t bytes) {
    copy_peer_memory(peer, false, static_cast<uint8_t*>(dst), address, bytes);
}

void SlotProtocol::put(int peer, const void* src, uint64_t address, size_t bytes) {
    struct WriteMark {
        SlotProtocol& s;
        explicit WriteMark(SlotProtocol& s) : s(s) { s.set_writing(true); }
        ~WriteMark() { s.set_writing(false); }
    } mark(*this);
    copy_peer_memory(peer, true, static_cast<uint8_t*>(const_cast<void*>(src)), address, bytes);
}

// Returns "", or a text about the ranks that are still writing, which only a rank that is stopped can do for so long.
std::string SlotProtocol::await_no_writers(std::chrono::duration<double> limit, Waiter::Interruptible interruptible) {
    if (!exposed_) return "";
    set_writing(false);  // else two ranks would wait for each other
    // Fail the group unless it has failed already, because the owner of the memory is leaving the operation.
    fail_group(group_, Cause::PeerLost, rank, calls_, std::string("left ") + name(call_.op()));
    Waiter waiter(limit);
    std::vector<int> writers;
    for (int p = 0; p < n; ++p) {
        const auto stopped = [&] { return p == rank || !group_.peers[p].writing.load() || ended(p); };
        if (!waiter.watch(std::chrono::microseconds(100), stopped, interruptible)) writers.push_back(p);
    }
    exposed_ = false;
    if (writers.empty()) return "";
    std::string text = "\n";
    text += list_ranks(writers) +
            " may have been stopped in the middle of writing into this rank's array; do not use the array before ";
    return text +=
           writers.size() == 1 ? "that rank has raised an error or ended" : "these ranks have raised errors or ended";
}

void SlotProtocol::address_overwritten(int peer) {
    fail_group(group_, Cause::PeerLost, rank, calls_,
               "found that the address of an array of rank " + std::to_string(peer) +
                   " had been overwritten in shared memory, perhaps by an array access outside its bounds");
    throw_failure();
}

bool SlotProtocol::can_access(int peer, uint64_t address, uint64_t expected) const {
    if (!pid_of(peer).in_own_namespace()) return false;
    // Writing requires the same permission as reading, but a seccomp filter may forbid one of the two system calls.
    if (!is_thread_of_own_process(peer) && process_vm_writev(pid_of(peer).number, nullptr, 0, nullptr, 0, 0) != 0)
        return false;
    uint64_t word = 0;
    return transfer(peer, false, &word, address, sizeof word) == ssize_t(sizeof word) && word == expected;
}

uint8_t* SlotProtocol::reachable(const void* memory, size_t bytes, ReachableRanges& known) const {
    static uint8_t empty;
    if (bytes == 0) return &empty;
    auto* const p = static_cast<uint8_t*>(const_cast<void*>(memory));
    if (segment_.contains(p, bytes)) return p;
    if (!conditions_.single_copy) return nullptr;
    if (is_thread_of_own_process((rank + 1) % n)) return p;
    if (!is_dumpable()) return nullptr;
    if (known.contains(p, bytes)) return p;
    char ends[2];
    const iovec local{ends, sizeof ends}, remote[2] = {{p, 1}, {p + bytes - 1, 1}};
    if (process_vm_readv(pid_of(rank).number, &local, 1, remote, 2, 0) != ssize_t(sizeof ends)) return nullptr;
    known.add(p, bytes);
    return p;
}

}  // namespace rankwise
