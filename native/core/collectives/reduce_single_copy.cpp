// Large reductions without the slots: between two meetings each rank reduces its share of what all have,
// and writes the result where it belongs. The share is read from the peers' memory in place, and what
// was reduced is written into theirs while it is in the cache: half as many lines go from core to core
// as through the slots, and ranks that share cores need not come one after the other for every piece.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

namespace {

// Reduces `mine` bytes of what all lend, from `offset` on, into `result`, or without one into memory that is
// used again; then hands each piece to done(reduced, offset, bytes), while it is in the cache.
template <class Done>
void reduce_lent(Steps& s, Loan& loan, const uint8_t* own, size_t offset, uint8_t* result, size_t mine, size_t item, ReduceKernel kernel, Done&& done) {
    const size_t piece = kScratch / size_t(s.n) / 64 * 64;
    const void* sources[kMaxRanks];
    for (size_t at = 0; at < mine; at += piece) {
        const size_t length = std::min(piece, mine - at);
        uint8_t* room = s.scratch();
        for (int r = 0; r < s.n; ++r) {
            sources[r] = r == s.rank ? own + offset + at : room;
            if (r == s.rank) continue;
            loan.read(r, room, offset + at, length);
            room += piece;
        }
        uint8_t* to = result ? result + at : room;
        kernel(to, sources, s.n, length / item, s.n);
        done(to, offset + at, length);
    }
}

}  // namespace

bool all_reduce_single_copy(Steps& s, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel) {
    uint8_t* lent = s.readable(data, bytes);
    Loan loan(s, lent, lent);
    if (!loan.all_lend()) return false;
    const Shares shares(bytes, s.n);
    const size_t begin = shares.begin(s.rank), mine = shares.end(s.rank) - begin;
    reduce_lent(s, loan, data, begin, data + begin, mine, item, kernel, [&](const uint8_t* reduced, size_t at, size_t length) {
        for (int i = 1; i < s.n; ++i) loan.write((s.rank + i) % s.n, reduced, at, length);
    });
    loan.finish_all();
    return true;
}

bool reduce_single_copy(Steps& s, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel, int root) {
    const bool to_me = s.rank == root;
    uint8_t* lent = s.readable(data, bytes);
    Loan loan(s, lent, to_me ? lent : nullptr);
    if (!loan.all_lend()) return false;
    const Shares shares(bytes, s.n);
    const size_t begin = shares.begin(s.rank), mine = shares.end(s.rank) - begin;
    reduce_lent(s, loan, data, begin, to_me ? data + begin : nullptr, mine, item, kernel, [&](const uint8_t* reduced, size_t at, size_t length) {
        if (!to_me) loan.write(root, reduced, at, length);
    });
    loan.finish_all();
    return true;
}

bool reduce_scatter_single_copy(Steps& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks, size_t item, ReduceKernel kernel) {
    Loan loan(s, s.readable(send, blocks.total()));
    if (!loan.all_lend()) return false;
    reduce_lent(s, loan, send, blocks.offset(s.rank), recv, blocks.size(s.rank), item, kernel, [](const uint8_t*, size_t, size_t) {});
    loan.finish_all();
    return true;
}

}  // namespace rankwise::collectives
