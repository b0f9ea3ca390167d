// Root's slot holds a piece for every other rank, side by side; each copies out its own, or
// reads it in place.
#include "collectives.hpp"

namespace rankwise::collectives {

// The others read their blocks in root's memory; of two ranks root writes half of it, so that both copy.
static void scatter_direct(Steps& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks, int root) {
    const auto read = [&](int to) { return s.n == 2 ? blocks.size(to) / 2 : blocks.size(to); };
    if (s.rank != root) {
        Loan loan(s, nullptr, recv);
        loan.await_all();  // from here on all agree: what others refuse must not change recv
        loan.read(root, recv, blocks.offset(s.rank), read(s.rank));
        return loan.finish_with(root);
    }
    Loan loan(s, send);
    loan.await_all();
    keep_own(recv, send + blocks.offset(root), blocks.size(root), blocks.size(root));
    if (s.n == 2) {
        const int to = 1 - root;
        loan.write(to, send + blocks.offset(to) + read(to), read(to), blocks.size(to) - read(to));
    }
    loan.finish_all();
}

void scatter(Steps& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks, int root) {
    const bool from_me = s.rank == root;
    const size_t mine = blocks.size(s.rank);
    if (blocks.total() <= kInline) {  // beside the flag: all of it to all
        const uint64_t step = s.post(send, from_me ? blocks.total() : 0);
        if (!from_me) s.await(root, step);
        if (mine) std::memcpy(recv, (from_me ? send : s.payload(root, step)) + blocks.offset(s.rank), mine);
        return;
    }
    const uint8_t* lent = from_me ? send : s.n == 2 ? recv : nullptr;
    if (goes_direct(s, blocks.largest(), lent, from_me ? blocks.total() : mine)) return scatter_direct(s, send, recv, blocks, root);
    const Copy copy_out = copy_for(mine);
    const size_t piece = share_of_slot(s);
    auto place = [&](int j) { return size_t(j < root ? j : j - 1) * piece; };  // root keeps its own block
    const uint64_t rounds = rounds_of(blocks.largest(), piece);
    pipeline(
        s, rounds, from_me,
        [&](uint64_t g, uint64_t k) {
            for (int to = 0; to < s.n; ++to) {
                if (to == root) continue;
                const Piece p(k, piece, blocks.size(to));
                std::memcpy(s.slot(root, g) + place(to), send + blocks.offset(to) + p.offset, p.bytes);
            }
        },
        [&](uint64_t g, uint64_t k, uint64_t step) {
            if (from_me) return;
            const Piece p(k, piece, mine);
            if (k == 0 && rounds > 1) s.await_all(step);  // a call that others refuse must not change recv
            else s.await(root, step);
            copy_out(recv + p.offset, s.slot(root, g) + place(s.rank), p.bytes);
        });
    if (from_me) keep_own(recv, send + blocks.offset(root), mine, mine);
}

}  // namespace rankwise::collectives
