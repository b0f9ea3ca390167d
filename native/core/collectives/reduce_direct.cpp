// Reductions for ranks that share cores. There a message costs less in copies than in the turns of its
// ranks: through the slots they must come one after the other for every piece. Here each does all of
// its part between two meetings, and reads the peers' memory in place.
#include "collectives.hpp"

namespace rankwise::collectives {

namespace {

constexpr size_t kChunk = 64 << 10;  // of each peer, read and reduced while it is in the cache

// `mine` bytes of what all lend, from `offset` on, reduced into `result`, or without one into memory of
// rank `root`.
void reduce_lent(Steps& s, Loan& loan, const uint8_t* own, size_t offset, uint8_t* result, size_t mine, size_t item, ReduceKernel kernel, int root = -1) {
    const size_t chunk = std::min(kChunk, kScratch / size_t(s.n) / 64 * 64);
    const void* sources[kMaxRanks];
    for (size_t at = 0; at < mine; at += chunk) {
        const size_t length = std::min(chunk, mine - at);
        uint8_t* room = s.scratch();
        for (int r = 0; r < s.n; ++r) {
            if (r == s.rank) {
                sources[r] = own + offset + at;
                continue;
            }
            loan.read(r, room, offset + at, length);
            sources[r] = room;
            room += chunk;
        }
        kernel(result ? result + at : room, sources, s.n, length / item, s.n);
        if (!result) loan.write(root, room, offset + at, length);
    }
}

}  // namespace

void all_reduce_direct(Steps& s, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel) {
    const Shares shares(bytes, s.n);
    const auto size = [&](int r) { return shares.end(r) - shares.begin(r); };
    Loan loan(s, data);
    loan.await_all();
    reduce_lent(s, loan, data, shares.begin(s.rank), data + shares.begin(s.rank), size(s.rank), item, kernel);
    s.await_all(s.post());  // all shares are there, and nobody reads what is overwritten now
    for (int i = 1; i < s.n; ++i) {
        const int from = (s.rank + i) % s.n;
        loan.read(from, data + shares.begin(from), shares.begin(from), size(from));
    }
    loan.finish_all();
}

void reduce_direct(Steps& s, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel, int root) {
    const Shares shares(bytes, s.n);
    const size_t begin = shares.begin(s.rank), mine = shares.end(s.rank) - begin;
    const bool to_me = s.rank == root;
    Loan loan(s, data, to_me ? data : nullptr);
    loan.await_all();
    reduce_lent(s, loan, data, begin, to_me ? data + begin : nullptr, mine, item, kernel, root);
    loan.finish_all();
}

void reduce_scatter_direct(Steps& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks, size_t item, ReduceKernel kernel) {
    Loan loan(s, send);
    loan.await_all();
    reduce_lent(s, loan, send, blocks.offset(s.rank), recv, blocks.size(s.rank), item, kernel);
    loan.finish_all();
}

}  // namespace rankwise::collectives
