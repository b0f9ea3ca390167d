// The algorithm `registered`: collectives in place on registered buffers (memory/registered.hpp), after the ranks have
// agreed that all of them passed one. If some rank did not, another algorithm runs, with the same bits as result.
#pragma once
#include "kernels/kernels.hpp"
#include "transport/transport.hpp"

namespace rankwise {

// Finds whether all ranks passed registered buffers to an operation. Posts a step. Only a rank that passed one waits
// for the others; the others only post.
class AllRegistered {
public:
    // memory: the buffer that peers would access; null or empty if they need none from this rank.
    AllRegistered(Transport& t, const void* memory, size_t bytes);
    // True if all buffers are registered; then of(rank) is that rank's buffer.
    explicit operator bool() const { return agreed_; }
    uint8_t* of(int rank) const { return rank == t_.rank ? own_ : t_.segment.at(offset_of(rank)); }

private:
    uint64_t offset_of(int rank) const {
        uint64_t offset;
        std::memcpy(&offset, t_.ring.payload(rank, step_), sizeof offset);
        return offset;
    }
    Transport& t_;
    uint8_t* own_;
    uint64_t step_;
    bool agreed_ = false;
};

// The period in which ranks write into each other's memory. If the operation ends in an exception, the destructor waits
// until no peer writes into this rank's memory any more.
class PeerWrites {
public:
    explicit PeerWrites(Transport& t) : s_(t.ring), memory_(t.memory) {
        memory_.set_exposed(true);
        memory_.set_writing(true);
    }
    ~PeerWrites() { memory_.await_no_writers(); }
    PeerWrites(const PeerWrites&) = delete;
    // Throws if the group has failed, because then no more may be written.
    void check() { memory_.check(); }
    // Announce that this rank has finished, and wait until all ranks have finished too.
    void finish_all() {
        memory_.set_writing(false);
        s_.await_all(s_.post());
        memory_.set_exposed(false);
    }

private:
    StepRing& s_;
    PeerMemory& memory_;
};

namespace collectives {

// Every rank reduces its share of all ranks' data and writes the result into the data of all ranks, or, if `root` is
// not negative, of rank `root` alone.
void reduce_registered(Transport& t, const AllRegistered& data, size_t bytes, size_t item, ReduceKernel kernel,
                       int root);
// Reduces `mine` bytes of all ranks' memory, from `offset` on, into `recv`.
void reduce_block_registered(Transport& t, const AllRegistered& send, uint8_t* recv, size_t offset, size_t mine,
                             size_t item, ReduceKernel kernel);

}  // namespace collectives
}  // namespace rankwise
