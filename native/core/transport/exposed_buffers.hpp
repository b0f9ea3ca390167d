// The buffers that the ranks expose to each other in one operation.
#pragma once
#include "transport/transport.hpp"

namespace rankwise {

// The constructor posts a step, and so do finish_all and finish_with.
class ExposedBuffers {
public:
    // Exposes `readable` to get, and `writable` to put; null exposes nothing.
    ExposedBuffers(Transport& t, const void* readable, void* writable = nullptr) : s_(t.ring), memory_(t.memory) {
        const uint64_t both[2] = {memory_.describe(readable), memory_.describe(writable)};
        memory_.set_exposed(writable != nullptr);
        step_ = s_.post(both, sizeof both);
    }
    // An operation that ends in an exception must not return while a peer still writes here.
    ~ExposedBuffers() { memory_.await_no_writers(); }
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
    bool registered(int rank, bool writable) const { return address(rank, writable) & PeerMemory::kInSegment; }
    // Copy from a buffer that the peer exposes, or into it.
    void get(int peer, void* dst, size_t offset, size_t bytes) {
        memory_.get(peer, dst, address(peer, 0) + offset, bytes);
    }
    void put(int peer, const void* src, size_t offset, size_t bytes) {
        memory_.put(peer, src, address(peer, 1) + offset, bytes);
    }

    // Announce that this rank has finished, and wait until all ranks, or one peer, have finished too.
    void finish_all() {
        s_.await_all(s_.post());
        memory_.set_exposed(false);
    }
    void finish_with(int peer) {
        s_.await(peer, s_.post());
        memory_.set_exposed(false);
    }

private:
    uint64_t address(int peer, int which) const {
        uint64_t both[2];
        std::memcpy(both, s_.payload(peer, step_), sizeof both);
        return both[which];
    }
    StepRing& s_;
    PeerMemory& memory_;
    uint64_t step_;
};

}  // namespace rankwise
