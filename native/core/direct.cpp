#include "direct.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/copy.hpp"

namespace rankwise {

namespace {

constexpr size_t kChunk = 512 << 10;  // copied between two looks at whether the group has failed

}  // namespace

uint8_t* Steps::scratch() {
    if (!scratch_) scratch_.reset(new (std::align_val_t(64)) uint8_t[kScratch]);
    return scratch_.get();
}

template <class Transfer>
void Steps::move_memory(int peer, uint8_t* here, uint64_t address, size_t bytes, Transfer&& transfer) {
    const pid_t pid = segment_.record(region_.member()[peer]).pid.load(std::memory_order_relaxed);
    for (size_t done = 0; done < bytes;) {
        const iovec local{here + done, std::min(kChunk, bytes - done)};
        const iovec remote{reinterpret_cast<void*>(address + done), local.iov_len};
        const ssize_t moved = transfer(pid, local, remote);
        if (moved <= 0) {
            const std::string why = std::strerror(errno);
            if (errno == ESRCH) lost(peer, name(call_.op()), int64_t(calls_));
            fail_region(region_, Cause::PeerLost, rank, calls_, "could not reach the memory of rank " + std::to_string(peer) + " (" + why + ")");
            throw_failure();
        }
        done += size_t(moved);
        check();
    }
}

void Steps::copy_in_segment(uint8_t* to, const uint8_t* from, size_t bytes) {
    const Copy copy = copy_for(bytes);
    for (size_t done = 0; done < bytes; done += kChunk) {
        check();
        copy(to + done, from + done, std::min(kChunk, bytes - done));
    }
}

void Steps::read_memory(int peer, void* dst, uint64_t address, size_t bytes) {
    if (address & kInSegment) return copy_in_segment(static_cast<uint8_t*>(dst), segment_.at(address & ~kInSegment), bytes);
    const pid_t own = record_.pid.load(std::memory_order_relaxed);
    move_memory(peer, static_cast<uint8_t*>(dst), address, bytes, [own](pid_t pid, iovec local, iovec remote) -> ssize_t {
        if (pid != own) return process_vm_readv(pid, &local, 1, &remote, 1, 0);
        std::memcpy(local.iov_base, remote.iov_base, local.iov_len);
        return ssize_t(local.iov_len);
    });
}

void Steps::write_memory(int peer, const void* src, uint64_t address, size_t bytes) {
    struct Writing {
        Steps& s;
        explicit Writing(Steps& s) : s(s) { s.set_writing(true); }
        ~Writing() { s.set_writing(false); }
    } writing(*this);
    check();
    if (address & kInSegment) return copy_in_segment(segment_.at(address & ~kInSegment), static_cast<const uint8_t*>(src), bytes);
    const pid_t own = record_.pid.load(std::memory_order_relaxed);
    move_memory(peer, static_cast<uint8_t*>(const_cast<void*>(src)), address, bytes, [own](pid_t pid, iovec local, iovec remote) -> ssize_t {
        if (pid != own) return process_vm_writev(pid, &local, 1, &remote, 1, 0);
        std::memcpy(remote.iov_base, local.iov_base, local.iov_len);
        return ssize_t(local.iov_len);
    });
}

void Steps::await_no_writers() {
    // The group has failed, or it will now: the owner of the memory is leaving.
    fail_region(region_, Cause::PeerLost, rank, calls_, std::string("left ") + name(call_.op()));
    const auto until = Clock::now() + std::chrono::seconds(5);  // a peer stopped in the middle cannot hold us for ever
    for (int p = 0; p < n; ++p) {
        if (p == rank) continue;
        const RankRecord& r = segment_.record(region_.member()[p]);
        while (region_.seats[p].writing.load() && !r.exited.load() && Clock::now() < until) usleep(100);
    }
}

bool Steps::can_read(int peer, uint64_t address, uint64_t expected) {
    const pid_t pid = segment_.record(region_.member()[peer]).pid.load();
    if (pid == record_.pid.load()) return true;
    uint64_t word = 0;
    const iovec local{&word, sizeof word}, remote{reinterpret_cast<void*>(address), sizeof word};
    return process_vm_readv(pid, &local, 1, &remote, 1, 0) == ssize_t(sizeof word) && word == expected;
}

}  // namespace rankwise
