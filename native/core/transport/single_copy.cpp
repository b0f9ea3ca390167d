#include "transport/single_copy.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>


namespace rankwise {

namespace {

constexpr size_t kChunk = 512 << 10;  // bytes copied between two checks for a failure of the group

}  // namespace

uint8_t* SlotProtocol::scratch() {
    if (!scratch_) scratch_.reset(new (std::align_val_t(64)) uint8_t[kScratch]);
    return scratch_.get();
}

// Copies up to `bytes` to or from another rank's memory. Returns how many, or -1 with errno.
ssize_t SlotProtocol::transfer(int peer, bool writes, void* here, uint64_t there, size_t bytes) const {
    const pid_t pid = segment_.record(group_.member()[peer]).pid.load(std::memory_order_relaxed);
    const iovec local{here, bytes}, remote{reinterpret_cast<void*>(there), bytes};
    if (pid != record_.pid.load(std::memory_order_relaxed)) return (writes ? process_vm_writev : process_vm_readv)(pid, &local, 1, &remote, 1, 0);
    std::memcpy((writes ? remote : local).iov_base, (writes ? local : remote).iov_base, bytes);
    return ssize_t(bytes);
}

bool SlotProtocol::reach(int peer, bool writes, uint8_t* here, uint64_t there, size_t bytes) const {
    for (size_t done = 0; done < bytes;) {
        const ssize_t moved = transfer(peer, writes, here + done, there + done, bytes - done);
        if (moved <= 0) {
            const int why = errno;
            if (why != ESRCH)
                fail_group(group_, Cause::PeerLost, rank, group_.peers[rank].calls.load(), "could not reach the memory of rank " + std::to_string(peer) + " (" + std::strerror(why) + "); with RANKWISE_DIRECT=0 nobody tries");
            return false;
        }
        done += size_t(moved);
    }
    return true;
}

void SlotProtocol::copy_peer_memory(int peer, bool writes, uint8_t* here, uint64_t there, size_t bytes) {
    uint8_t* const in_segment = there & kInSegment ? segment_.at(there & ~kInSegment) : nullptr;
    const Copy copy = this->copy_for(bytes * size_t(n));
    const auto go_on = [&](bool reached) {
        if (reached && !group_.failed()) return;
        set_writing(false);  // before the words are made: peers may wait for it
        if (!reached) lost(peer, name(call_.op()), int64_t(calls_));
        check();
    };
    go_on(true);
    for (size_t done = 0; done < bytes; done += kChunk) {
        const size_t length = std::min(kChunk, bytes - done);
        if (in_segment) copy((writes ? in_segment : here) + done, (writes ? here : in_segment) + done, length);
        go_on(in_segment || reach(peer, writes, here + done, there + done, length));  // after the last one too: what was read from a rank that has left is worth nothing
    }
}

void SlotProtocol::get(int peer, void* dst, uint64_t address, size_t bytes) { copy_peer_memory(peer, false, static_cast<uint8_t*>(dst), address, bytes); }

void SlotProtocol::put(int peer, const void* src, uint64_t address, size_t bytes) {
    struct Writing {
        SlotProtocol& s;
        explicit Writing(SlotProtocol& s) : s(s) { s.set_writing(true); }
        ~Writing() { s.set_writing(false); }
    } writing(*this);
    copy_peer_memory(peer, true, static_cast<uint8_t*>(const_cast<void*>(src)), address, bytes);
}

void SlotProtocol::await_no_writers() {
    // The group has failed, or it will now: the owner of the memory is leaving.
    fail_group(group_, Cause::PeerLost, rank, calls_, std::string("left ") + name(call_.op()));
    const auto until = Clock::now() + std::chrono::seconds(5);  // a peer stopped in the middle cannot hold us for ever
    for (int p = 0; p < n; ++p) {
        if (p == rank) continue;
        const RankRecord& r = segment_.record(group_.member()[p]);
        while (group_.peers[p].writing.load() && !r.exited.load() && Clock::now() < until) usleep(100);
    }
}

bool SlotProtocol::can_read(int peer, uint64_t address, uint64_t expected) const {
    uint64_t word = 0;
    return transfer(peer, false, &word, address, sizeof word) == ssize_t(sizeof word) && word == expected;
}

uint8_t* SlotProtocol::readable(const void* memory, size_t bytes, Reached& reached) const {
    static uint8_t nothing;
    if (bytes == 0) return &nothing;
    auto* const p = static_cast<uint8_t*>(const_cast<void*>(memory));
    const pid_t own = record_.pid.load(std::memory_order_relaxed);
    const bool threads = own == segment_.record(group_.member()[(rank + 1) % n]).pid.load(std::memory_order_relaxed);
    if (threads || reached.has(p, bytes) || segment_.holds(p, bytes)) return p;
    char ends[2];
    const iovec local{ends, sizeof ends}, remote[2] = {{p, 1}, {p + bytes - 1, 1}};
    if (process_vm_readv(own, &local, 1, remote, 2, 0) != ssize_t(sizeof ends)) return nullptr;
    reached.add(p, bytes);
    return p;
}

}  // namespace rankwise
