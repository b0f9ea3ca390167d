// Single copy: a rank reads or writes a peer's memory directly, in place of two copies through the slots.
//
// Ranks that are threads of one process share all memory. Processes reach each other's with process_vm_readv and
// process_vm_writev where the system allows it (same user, no ptrace restriction); the ranks try that once, when the
// group is made. Registered buffers (memory/registered.hpp) lie in the segment, which every rank has mapped.
//
// A rank that exposes memory stays in the operation until every peer has finished with it. So only in a failing
// operation can a peer read memory that its owner has reused, and then the result is discarded. A rank that exposes
// memory for writing waits, before it leaves a failing operation, until no peer writes there any more.
#pragma once
#include "memory/registered.hpp"

namespace rankwise {

// The buffers that the ranks expose to each other in one operation. Its constructor posts a step, and so does finish.
class ExposedBuffers {
public:
    // Exposes `readable` to get, and `written` to put as well; null exposes nothing.
    ExposedBuffers(SlotProtocol& s, const void* readable, void* written = nullptr) : s_(s) {
        const uint64_t both[2] = {s.describe_buffer(readable), s.describe_buffer(written)};
        exposes_ = written != nullptr;
        step_ = s.post(both, sizeof both);
    }
    // An operation that ends in an exception must not leave while a peer still writes here.
    ~ExposedBuffers() {
        if (exposes_ && !finished_) s_.await_no_writers();
    }
    ExposedBuffers(const ExposedBuffers&) = delete;

    // Wait until `peer` has entered the operation; then the other calls may name it.
    void await(int peer) { s_.await(peer, step_); }
    void await_all() { s_.await_all(step_); }
    // Wait for all, and return whether every rank exposes a buffer. If not, the operation may go on by another algorithm.
    bool all_exposed() {
        await_all();
        for (int r = 0; r < s_.n; ++r)
            if (!address(r, 0)) return finish_all(), false;
        return true;
    }
    // Whether a rank exposes a buffer to get, or to put, and whether that is registered. Known after await_all.
    bool exposes(int rank, bool written) const { return address(rank, written); }
    bool registered(int rank, bool written) const { return address(rank, written) & SlotProtocol::kInSegment; }
    // Copy from a buffer that the peer exposes, or into it.
    void get(int peer, void* dst, size_t offset, size_t bytes) { s_.get(peer, dst, address(peer, 0) + offset, bytes); }
    void put(int peer, const void* src, size_t offset, size_t bytes) { s_.put(peer, src, address(peer, 1) + offset, bytes); }

    // Announce that this rank has finished, and wait until all ranks, or one, have.
    void finish_all() {
        s_.await_all(s_.post());
        finished_ = true;
    }
    void finish_with(int peer) {
        s_.await(peer, s_.post());
        finished_ = true;
    }

private:
    uint64_t address(int peer, int which) const {
        uint64_t both[2];
        std::memcpy(both, s_.payload(peer, step_), sizeof both);
        return both[which];
    }
    SlotProtocol& s_;
    uint64_t step_;
    bool exposes_ = false, finished_ = false;
};

}  // namespace rankwise
