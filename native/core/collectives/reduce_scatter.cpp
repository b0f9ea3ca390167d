// Each rank receives the reduction of its block. Every algorithm reduces in the order of the ranks.
//
// inline: the step headers carry all blocks to all ranks. staged: each rank's slot holds a piece of every other rank's
// block, and each rank reduces the pieces of its own block. single_copy, registered: each rank reduces its block from
// its peers' memory.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

static void reduce_scatter_staged(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& blocks, size_t item,
                                  ReduceKernel kernel) {
    StepRing& s = t.steps;
    const uint8_t* own = send + blocks.offset(s.rank);
    const size_t mine = blocks.size(s.rank);
    const DividedSlot divided(s, blocks.largest());
    pipeline(
        t, divided.rounds, divided.bytes, kAllWrite, Started::kAll,
        [=, &s](uint64_t position, uint64_t k) {
            for (int to = 0; to < s.n; ++to) {
                if (to == s.rank) continue;
                const Piece p(k, divided.piece, blocks.size(to));
                copy_for_peers(s.slot(s.rank, position) + divided.offset(s.rank, to),
                               send + blocks.offset(to) + p.offset, p.bytes);
            }
        },
        [=, &s](uint64_t position, uint64_t k, uint64_t step) {
            const Piece p(k, divided.piece, mine);
            const void* sources[kMaxRanks];
            for (int from = 0; from < s.n; ++from)
                sources[from] = from == s.rank ? own + p.offset : s.slot(from, position) + divided.offset(from, s.rank);
            s.await_all(step);
            if (p.bytes) kernel(recv + p.offset, sources, s.n, p.bytes / item, s.n);
        });
}

void reduce_scatter(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& blocks, size_t item,
                    ReduceKernel kernel) {
    StepRing& s = t.steps;
    const size_t mine = blocks.size(s.rank), total = blocks.total();
    Choice choice = chosen(t, Op::ReduceScatter, total);
    for (;;) {
        switch (choice.first()) {
        case Algorithm::Inline: {
            const uint64_t step = s.post(send, total);
            return t.complete_at(step, Started::kAll, [=, &s, offset = blocks.offset(s.rank)] {
                const void* sources[kMaxRanks];
                for (int r = 0; r < s.n; ++r) sources[r] = (r == s.rank ? send : s.payload(r, step)) + offset;
                s.await_all(step);
                if (mine) kernel(recv, sources, s.n, mine / item, s.n);
            });
        }
        case Algorithm::Registered:
        case Algorithm::SingleCopy:
            if (reduce_scatter_exposed(t, choice, send, recv, blocks, item, kernel)) return;
            continue;
        case Algorithm::Staged: return reduce_scatter_staged(t, send, recv, blocks, item, kernel);
        default: none_can_run(t);
        }
    }
}

}  // namespace rankwise::collectives
