// Each rank's slot holds a piece of every other rank's block, side by side; each rank reduces the
// pieces of its own block, in the order of the ranks.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

void reduce_scatter(Steps& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks, size_t item, ReduceKernel kernel) {
    const uint8_t* own = send + blocks.offset(s.rank);
    const size_t mine = blocks.size(s.rank);
    if (blocks.total() <= kInline) {  // beside the flag: all of it to all
        const uint64_t step = s.post(send, blocks.total());
        const void* sources[kMaxRanks];
        for (int r = 0; r < s.n; ++r) sources[r] = r == s.rank ? own : s.payload(r, step) + blocks.offset(s.rank);
        s.await_all(step);
        if (mine) kernel(recv, sources, s.n, mine / item, s.n);
        return;
    }
    if (blocks.total() >= kInPlaceFrom)
        if (const InPlace all(s, send, blocks.total()); all) return reduce_block_in_place(s, all, recv, blocks.offset(s.rank), mine, item, kernel);
    if (reduce_scatters_direct(s, blocks.total()) && reduce_scatter_direct(s, send, recv, blocks, item, kernel)) return;
    const SideBySide cut(s, blocks.largest());
    pipeline(
        s, cut.rounds, cut.bytes, true,
        [&](uint64_t g, uint64_t k) {
            for (int to = 0; to < s.n; ++to) {
                if (to == s.rank) continue;
                const Piece p(k, cut.piece, blocks.size(to));
                std::memcpy(s.slot(s.rank, g) + cut.place(s.rank, to), send + blocks.offset(to) + p.offset, p.bytes);
            }
        },
        [&](uint64_t g, uint64_t k, uint64_t step) {
            const Piece p(k, cut.piece, mine);
            const void* sources[kMaxRanks];
            for (int from = 0; from < s.n; ++from)
                sources[from] = from == s.rank ? own + p.offset : s.slot(from, g) + cut.place(from, s.rank);
            s.await_all(step);
            if (p.bytes) kernel(recv + p.offset, sources, s.n, p.bytes / item, s.n);
        });
}

}  // namespace rankwise::collectives
