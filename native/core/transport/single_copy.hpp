// Working in a peer's memory in place: one copy instead of two, and no piece by piece.
//
// Ranks that are threads of one process share all memory; processes reach each other's with
// process_vm_readv and process_vm_writev, where the system allows it (same user, and no ptrace restriction: it is tried
// once, when the ranks meet). Registered memory (registered.hpp) lies in the segment, before everyone's
// eyes. A rank that lends its memory stays in the operation until everyone has
// said to be done with it, so only in a failing operation can a reader find memory that its owner
// has reused, and what it reads then nobody will see. A rank that lends memory for writing
// waits, before it leaves a failing operation, until nobody writes there any more.
#pragma once
#include "memory/registered.hpp"

namespace rankwise {

// The addresses that every rank lends to its peers in one operation. Posts a step when it is made
// and one in finish().
class Loan {
public:
    // Lends memory for reading, and `written` for writing too; nothing where that is null.
    Loan(Steps& s, const void* readable, void* written = nullptr) : s_(s) {
        const uint64_t both[2] = {s.lend(readable), s.lend(written)};
        lends_ = written != nullptr;
        step_ = s.post(both, sizeof both);
    }
    // An operation that ends in an exception must not leave while a peer still writes here.
    ~Loan() {
        if (lends_ && !finished_) s_.await_no_writers();
    }
    Loan(const Loan&) = delete;

    // Wait until `peer` is in the operation too; then the other calls may name it.
    void await(int peer) { s_.await(peer, step_); }
    void await_all() { s_.await_all(step_); }
    // The same, and whether all lend something. If not, the operation may go on another way.
    bool all_lend() {
        await_all();
        for (int r = 0; r < s_.n; ++r)
            if (!address(r, 0)) return finish_all(), false;
        return true;
    }
    // Whether a rank lends something for reading, or for writing, and whether that is registered memory; known after await_all.
    bool lends(int rank, bool written) const { return address(rank, written); }
    bool registered(int rank, bool written) const { return address(rank, written) & Steps::kInSegment; }
    // Copy from what the peer lends, or to it.
    void read(int peer, void* dst, size_t offset, size_t bytes) { s_.read_memory(peer, dst, address(peer, 0) + offset, bytes); }
    void write(int peer, const void* src, size_t offset, size_t bytes) { s_.write_memory(peer, src, address(peer, 1) + offset, bytes); }

    // Say that this rank has done its part, and wait until all, or one, have done theirs.
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
    Steps& s_;
    uint64_t step_;
    bool lends_ = false, finished_ = false;
};

}  // namespace rankwise
