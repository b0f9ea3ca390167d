// Single copy: a rank reads or writes a peer's memory directly, in place of two copies through the slots.
//
// Ranks that are threads of one process share all memory. Processes access each other's memory with process_vm_readv
// and process_vm_writev if the system allows it (same user, no ptrace restriction); the ranks try that once, when the
// group is created. A process that stops being dumpable afterwards exposes its private memory no longer. Registered
// buffers (memory/registered.hpp) lie in the segment, which every rank has mapped.
//
// A rank that exposes memory stays in the operation until every peer has finished with it. So only in a failing
// operation can a peer read memory that its owner has reused, and then the result is discarded. A rank that exposes
// memory for writing does not leave a failing operation until no peer writes there any more, or, at the timeout, with
// an error that names the peer that may still write.
#pragma once
#include "transport/slot_protocol.hpp"

namespace rankwise {

// The buffers that the ranks expose to each other in one operation. The constructor posts a step, and so do finish_all
// and finish_with.
class ExposedBuffers {
public:
    // Exposes `readable` to get, and `writable` to put; null exposes nothing.
    ExposedBuffers(SlotProtocol& s, const void* readable, void* writable = nullptr) : s_(s) {
        const uint64_t both[2] = {s.describe_buffer(readable), s.describe_buffer(writable)};
        s.set_exposed(writable != nullptr);
        step_ = s.post(both, sizeof both);
    }
    // An operation that ends in an exception must not return while a peer still writes here.
    ~ExposedBuffers() { s_.await_no_writers(); }
    ExposedBuffers(const ExposedBuffers&) = delete;

    // Wait until `peer` has entered the operation, which the calls below require.
    void await(int peer) { s_.await(peer, step_); }
    void await_all() { s_.await_all(step_); }
    // Wait for all ranks, and return whether every one exposes a readable buffer. If not, the step is finished and the
    // operation may continue with another algorithm.
    bool all_exposed() {
        await_all();
        for (int r = 0; r < s_.n; ++r)
            if (!address(r, 0)) return finish_all(), false;
        return true;
    }
    // Whether a rank exposes a readable or a writable buffer, and whether that buffer is registered.
    bool exposes(int rank, bool writable) const { return address(rank, writable); }
    bool registered(int rank, bool writable) const { return address(rank, writable) & SlotProtocol::kInSegment; }
    // Copy from a buffer that the peer exposes, or into it.
    void get(int peer, void* dst, size_t offset, size_t bytes) { s_.get(peer, dst, address(peer, 0) + offset, bytes); }
    void put(int peer, const void* src, size_t offset, size_t bytes) {
        s_.put(peer, src, address(peer, 1) + offset, bytes);
    }

    // Announce that this rank has finished, and wait until all ranks, or one peer, have finished too.
    void finish_all() {
        s_.await_all(s_.post());
        s_.set_exposed(false);
    }
    void finish_with(int peer) {
        s_.await(peer, s_.post());
        s_.set_exposed(false);
    }

private:
    uint64_t address(int peer, int which) const {
        uint64_t both[2];
        std::memcpy(both, s_.payload(peer, step_), sizeof both);
        return both[which];
    }
    SlotProtocol& s_;
    uint64_t step_;
};

}  // namespace rankwise
