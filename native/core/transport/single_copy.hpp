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

// Block size from which the peers' memory wins over slots.
inline constexpr size_t kDirectFrom = 24 << 10;
// And from which a rank writes its block into the memory of those who get it, rather than that they read it.
// It reads the block once for all of them, and the results are not yet in their caches; large ones do not fit there.
inline constexpr size_t kGivenFrom = 1 << 20;
inline constexpr size_t kGivenInTurnsFrom = 256 << 10;  // where ranks take turns on cores

// Bytes from which reductions go direct. Measured with arrays that the ranks had just written: others gain earlier.
inline bool all_reduces_direct(const Steps& s, size_t bytes) {
    return s.direct() && bytes >= (s.region().crowded ? 1 << 20 : 256 << 10);
}
inline bool reduces_direct(const Steps& s, size_t bytes) { return s.direct() && s.region().crowded && bytes >= 1 << 20; }
inline bool reduce_scatters_direct(const Steps& s, size_t bytes) {
    const bool stuck = s.region().crowded && !s.takes_turns();  // a turn costs more than the copies
    return s.direct() && bytes >= (stuck ? 1 << 20 : 4 << 20);
}

// Whether an operation on blocks of `bytes` goes direct; `lent` is what this rank will lend in it, if
// anything. Where ranks cannot reach each other's memory, that it does where all of that is registered.
inline bool goes_direct(Steps& s, size_t bytes, const void* lent, size_t lent_bytes) {
    return bytes >= kDirectFrom && (s.direct() || InPlace(s, lent, lent_bytes));
}

// The same for what all ranks get and read (broadcast, all_gather). Where they take turns on cores it goes through
// the slots: the second of a core finds a piece there in the cache, since the first has just read it.
inline bool spreads_direct(Steps& s, size_t bytes, const void* lent, size_t lent_bytes) {
    if (!s.takes_turns()) return goes_direct(s, bytes, lent, lent_bytes);
    return bytes >= kDirectFrom && InPlace(s, lent, lent_bytes);
}

}  // namespace rankwise
