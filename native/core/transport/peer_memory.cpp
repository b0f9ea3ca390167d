#include "transport/peer_memory.hpp"

#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/copy.hpp"
#include "kernels/non_temporal.hpp"

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

bool single_copies_are_slow() {
    static const bool slow = [] {
        std::vector<uint8_t> both(2 * kSingleCopyTimed);
        const iovec local{both.data(), kSingleCopyTimed}, remote{both.data() + kSingleCopyTimed, kSingleCopyTimed};
        std::chrono::nanoseconds best = kSlowSingleCopy;
        for (int i = 0; i < kSingleCopiesTimed; ++i) {
            const auto begin = Clock::now();
            if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != ssize_t(kSingleCopyTimed)) break;
            best = std::min(best, std::chrono::nanoseconds(Clock::now() - begin));
        }
        return best == kSlowSingleCopy;
    }();
    return slow;
}

void PeerMemory::set_joined(bool single_copy) {
    single_copy_ = single_copy;
    for (int p = 0; p < n_; ++p) pids_.push_back(group_.peers[p].pid.load());
}

// Copies up to `bytes` to or from another rank's memory. Returns how many were copied, or -1 with errno.
ssize_t PeerMemory::transfer(int peer, Direction direction, void* here, uint64_t there, size_t bytes) const {
    const bool get = direction == Direction::Get;
    void* const theirs = reinterpret_cast<void*>(there);
    void *const to = get ? here : theirs, *const from = get ? theirs : here;
    if (is_thread_of_own_process(peer)) {
        copy_bytes(to, from, bytes);
        return ssize_t(bytes);
    }
    const auto copy = [&](void* memory, size_t length) {
        const iovec local{memory, length}, remote{theirs, length};
        // A process that replaced the peer has another pid.
        return (get ? process_vm_readv : process_vm_writev)(pid_of(peer).number, &local, 1, &remote, 1, 0);
    };
    if (bytes < kPage || !meet_in_page(to, from) || !copies_slowly_within_pages()) return copy(here, bytes);
    // By way of memory that meets neither: 32 KiB take 7 us in place of 21.
    constexpr size_t kChunk = 32 << 10;
    alignas(kPage) uint8_t between[kPage + kChunk];
    uint8_t* const through = between + (reinterpret_cast<uintptr_t>(from) + 64) % kPage;
    const size_t chunk = std::min(bytes, kChunk);
    if (!get) copy_bytes(through, here, chunk);
    const ssize_t copied = copy(through, chunk);
    if (get && copied > 0) copy_bytes(here, through, size_t(copied));
    return copied;
}

bool PeerMemory::try_copy(int peer, Direction direction, uint8_t* here, uint64_t there, size_t bytes) const {
    for (size_t done = 0; done < bytes;) {
        const ssize_t moved = transfer(peer, direction, here + done, there + done, bytes - done);
        if (moved <= 0) {
            const int why = errno;
            if (why != ESRCH)
                fail_group(group_, Cause::PeerLost, rank_, group_.peers[rank_].calls.load(),
                           "could not access the memory of rank " + std::to_string(peer) + " (" + std::strerror(why) +
                               "); RANKWISE_DIRECT=0 avoids such access");
            return false;
        }
        done += size_t(moved);
    }
    return true;
}

bool PeerMemory::try_copy(int peer, Direction direction, uint8_t* whole, std::span<const iovec> parts) const {
    const bool get = direction == Direction::Get;
    size_t bytes = 0;
    for (const iovec& part : parts) bytes += part.iov_len;
    if (parts.size() > 1 && !is_thread_of_own_process(peer)) {
        const iovec one{whole, bytes}, *const many = parts.data();
        const size_t n = parts.size();
        const ssize_t moved = get ? process_vm_readv(pid_of(peer).number, &one, 1, many, n, 0)
                                  : process_vm_writev(pid_of(peer).number, many, n, &one, 1, 0);
        if (moved == ssize_t(bytes)) return true;
    }
    return std::ranges::all_of(parts, [&](const iovec& part) {
        uint8_t* const at = std::exchange(whole, whole + part.iov_len);
        auto* const other = static_cast<uint8_t*>(part.iov_base);
        return try_copy(peer, direction, get ? at : other, reinterpret_cast<uint64_t>(get ? other : at), part.iov_len);
    });
}

void PeerMemory::throw_address_overwritten(int peer) {
    set_writing(false);  // before the error is put together, because peers may wait for this
    failures_.throw_overwritten("the address of an array", peer);
    __builtin_unreachable();  // which GCC does not see, and warns
}

uint8_t* PeerMemory::in_segment(int peer, uint64_t described, size_t bytes) {
    uint8_t* const memory = segment_.at(described & ~kInSegment);
    if (!segment_.contains_data(memory, bytes)) throw_address_overwritten(peer);
    return memory;
}

void PeerMemory::copy_peer_memory(int peer, Direction direction, uint8_t* here, uint64_t there, size_t bytes) {
    const Copy copy = copy_for(bytes * size_t(n_) >= group_.non_temporal_from);
    const auto check_copied = [&](bool copied = true) {
        if (copied && !group_.failed()) return;
        set_writing(false);
        if (!copied) failures_.throw_lost(peer);
        check();
    };
    check_copied();
    if (!bytes) return;
    uint8_t* const in_segment = there & kInSegment ? this->in_segment(peer, there, bytes) : nullptr;
    for (size_t done = 0; done < bytes; done += kBytesPerCheck) {
        const size_t length = std::min(kBytesPerCheck, bytes - done);
        if (in_segment && direction == Direction::Get) copy(here + done, in_segment + done, length);
        else if (in_segment) copy(in_segment + done, here + done, length);
        // After the last chunk too: data read from a rank that has left may be overwritten.
        check_copied(in_segment || try_copy(peer, direction, here + done, there + done, length));
    }
}

void PeerMemory::get(int peer, void* dst, uint64_t address, size_t bytes) {
    copy_peer_memory(peer, Direction::Get, static_cast<uint8_t*>(dst), address, bytes);
}

void PeerMemory::put(int peer, const void* src, uint64_t address, size_t bytes) {
    const Writing writing(*this);
    copy_peer_memory(peer, Direction::Put, static_cast<uint8_t*>(const_cast<void*>(src)), address, bytes);
}

std::vector<int> PeerMemory::fail_and_await_writers(const Waiter& waiter) {
    std::vector<int> writers;
    if (!exposed_ || fork_.is_child()) return writers;
    set_writing(false);  // else two ranks would wait for each other
    // Fail the group unless it has failed already, because the owner of the memory is leaving the operation.
    fail_group(group_, Cause::PeerLost, rank_, log_.number(), {"left ", name(log_.op())});
    for (int p = 0; p < n_; ++p) {
        const auto stopped = [&] {
            return p == rank_ || !group_.peers[p].writing.load() ||
                   segment_.ended(members_[size_t(p)].world_rank, members_[size_t(p)].process);
        };
        if (!waiter.check_every(std::chrono::microseconds(100), stopped)) writers.push_back(p);
    }
    exposed_ = false;
    return writers;
}

bool PeerMemory::can_access(int peer, uint64_t address, uint64_t expected) const {
    if (!pid_of(peer).in_own_namespace()) return false;
    // Writing requires the same permission as reading, but a seccomp filter may forbid one of the two system calls.
    if (!is_thread_of_own_process(peer) && process_vm_writev(pid_of(peer).number, nullptr, 0, nullptr, 0, 0) != 0)
        return false;
    uint64_t word = 0;
    return transfer(peer, Direction::Get, &word, address, sizeof word) == ssize_t(sizeof word) && word == expected;
}

uint8_t* PeerMemory::reachable(const void* memory, size_t bytes, ReachableRanges& known) const {
    static uint8_t empty;
    if (bytes == 0) return &empty;
    auto* const p = static_cast<uint8_t*>(const_cast<void*>(memory));
    if (segment_.contains_data(p, bytes)) return p;
    if (!single_copy_) return nullptr;
    if (is_thread_of_own_process((rank_ + 1) % n_)) return p;
    if (!is_dumpable()) return nullptr;
    if (known.contains(p, bytes)) return p;
    char ends[2];
    const iovec local{ends, sizeof ends}, remote[2] = {{p, 1}, {p + bytes - 1, 1}};
    if (process_vm_readv(pid_of(rank_).number, &local, 1, remote, 2, 0) != ssize_t(sizeof ends)) return nullptr;
    known.add(p, bytes);
    return p;
}

}  // namespace rankwise
