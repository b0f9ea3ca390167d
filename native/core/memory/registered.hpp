// Memory in the segment, on which peers work in place: nothing passes through staging.
//
// The segment's heap is one sparse file, as large as the machine's memory allows and mapped by every
// rank from the start, so a buffer needs no mapping of its own and never moves. It is told to the
// peers by its offset. Any rank makes buffers when it likes, and of any size: a collective goes in
// place where all ranks gave such memory, and its usual way, with the same bits, where one did not.
#pragma once
#include <memory>

#include "kernels/kernels.hpp"
#include "transport/slot_protocol.hpp"

namespace rankwise {

// A buffer of this rank, freed with this object; it keeps the segment mapped, also after its group was
// closed. Zeroed. Throws OutOfMemory.
class Registered {
public:
    Registered(std::shared_ptr<Segment> segment, size_t bytes);
    ~Registered();
    Registered(const Registered&) = delete;
    uint8_t* data() const { return segment_->at(offset_); }
    size_t bytes() const { return bytes_; }

private:
    std::shared_ptr<Segment> segment_;
    const size_t bytes_;
    const uint64_t offset_;
    const int owner_;  // pid: a forked child sees the buffer too, and is not to free it
};

// The agreement of the ranks that all gave registered memory to one operation. Posts a step. Only a
// rank that gave such memory waits for the others': for the rest it is one store more.
class InPlace {
public:
    // memory: what peers would work on; null or empty, where they need nothing of this rank.
    InPlace(Steps& s, const void* memory, size_t bytes);
    // Whether it is so on all ranks; then `of` tells where a rank's memory is.
    explicit operator bool() const { return agreed_; }
    uint8_t* of(int rank) const { return rank == s_.rank ? own_ : s_.segment().at(told(rank)); }

private:
    uint64_t told(int rank) const {
        uint64_t word;
        std::memcpy(&word, s_.payload(rank, step_), sizeof word);
        return word;
    }
    Steps& s_;
    uint8_t* own_;
    uint64_t step_;
    bool agreed_ = false;
};

// The time in which this rank works on its peers' memory, and they on its own. One whose operation
// ends in an exception does not leave before nobody writes there any more.
class Visit {
public:
    explicit Visit(Steps& s) : s_(s) { s.set_writing(true); }
    ~Visit() {
        s_.set_writing(false);
        if (!ended_) s_.await_no_writers();
    }
    Visit(const Visit&) = delete;
    // Throws where the group has failed: then no more may be written.
    void go_on() { s_.check(); }
    // This rank has done its part; returns when all have.
    void end() {
        s_.set_writing(false);
        s_.await_all(s_.post());
        ended_ = true;
    }

private:
    Steps& s_;
    bool ended_ = false;
};

namespace collectives {

// Every rank reduces its share of all ranks' data, and writes it into the data of all; of rank `root`
// alone, where that is not negative.
void reduce_in_place(Steps& s, const InPlace& data, size_t bytes, size_t item, ReduceKernel kernel, int root);
// `mine` bytes of all ranks' memory, from `offset` on, reduced into `recv`.
void reduce_block_in_place(Steps& s, const InPlace& send, uint8_t* recv, size_t offset, size_t mine, size_t item, ReduceKernel kernel);

}  // namespace collectives
}  // namespace rankwise
