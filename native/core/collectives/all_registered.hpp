// The algorithm `registered`: collectives in place on registered buffers (memory/registered.hpp), once the ranks have
// agreed that all of them gave one. Where one did not, another algorithm runs, with the same bits as result.
#pragma once
#include "kernels/kernels.hpp"
#include "transport/slot_protocol.hpp"

namespace rankwise {

// Whether all ranks gave registered buffers to one operation. Posts a step. Only a rank that gave one waits for the
// others; for the rest it costs one more store.
class AllRegistered {
public:
    // memory: the buffer that peers would access; null or empty where they need none of this rank.
    AllRegistered(SlotProtocol& s, const void* memory, size_t bytes);
    // True where all are registered; then of(rank) is that rank's buffer.
    explicit operator bool() const { return agreed_; }
    uint8_t* of(int rank) const { return rank == s_.rank ? own_ : s_.segment().at(told(rank)); }

private:
    uint64_t told(int rank) const {
        uint64_t word;
        std::memcpy(&word, s_.payload(rank, step_), sizeof word);
        return word;
    }
    SlotProtocol& s_;
    uint8_t* own_;
    uint64_t step_;
    bool agreed_ = false;
};

// The time in which ranks write into each other's memory. A rank whose operation ends in an exception stays until no
// peer writes into its memory any more.
class PeerWrites {
public:
    explicit PeerWrites(SlotProtocol& s) : s_(s) { s.set_writing(true); }
    ~PeerWrites() {
        s_.set_writing(false);
        if (!ended_) s_.await_no_writers();
    }
    PeerWrites(const PeerWrites&) = delete;
    // Throws once the group has failed: then nothing more may be written.
    void go_on() { s_.check(); }
    // This rank has finished; returns when all have.
    void end() {
        s_.set_writing(false);
        s_.await_all(s_.post());
        ended_ = true;
    }

private:
    SlotProtocol& s_;
    bool ended_ = false;
};

namespace collectives {

// Every rank reduces its share of all ranks' data, and writes it into the data of all; of rank `root`
// alone, where that is not negative.
void reduce_registered(SlotProtocol& s, const AllRegistered& data, size_t bytes, size_t item, ReduceKernel kernel, int root);
// `mine` bytes of all ranks' memory, from `offset` on, reduced into `recv`.
void reduce_block_registered(SlotProtocol& s, const AllRegistered& send, uint8_t* recv, size_t offset, size_t mine, size_t item, ReduceKernel kernel);

}  // namespace collectives
}  // namespace rankwise
