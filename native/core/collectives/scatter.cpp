// Each rank receives one of root's blocks.
//
// inline: the step header carries all blocks to all ranks. staged: root's slot holds a piece for every other rank, and
// each rank copies out its own. single_copy, registered: each rank reads its block from root's memory.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

// In the ranks' own memory, as in_exposed_memory. The others read their blocks in root's memory while it copies its
// own, and of two ranks some of the other's.
static bool scatter_exposed(Transport& t, Choice& choice, const uint8_t* send, uint8_t* recv, const Blocks& blocks,
                            int root) {
    const bool from_me = t.rank == root;
    const size_t some = tuning::copied_by_root(t.conditions(), blocks.size(t.n == 2 ? 1 - root : 0),
                                               t.steps.non_temporal(blocks.total()));
    const OwnBuffer readable{from_me ? send : nullptr, blocks.total()},
        writable{some && !from_me ? recv : nullptr, blocks.size(t.rank), true};
    return in_exposed_memory(t, choice, readable, writable, root, [&](ExposedBuffers& exposed) {
        const size_t taken = some && exposed.writable(1 - root) && !exposed.readable_registered(root) ? some : 0;
        if (!from_me) return exposed.get(root, recv, blocks.offset(t.rank), blocks.size(t.rank) - taken);
        copy_own_block(t.steps, recv, send + blocks.offset(root), blocks.size(root), blocks.total());
        if (const int other = 1 - root; taken) {
            const size_t read = blocks.size(other) - taken;
            exposed.put(other, send + blocks.offset(other) + read, read, taken);
        }
    });
}

static void scatter_staged(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& blocks, int root) {
    StepRing& s = t.steps;
    const bool from_me = s.rank == root;
    const size_t mine = blocks.size(s.rank);
    const Copy copy_out = s.copy_for(blocks.total());
    const DividedSlot divided(s, blocks.largest());
    pipeline(
        t, divided.rounds, divided.bytes, from_me, root,
        [=, &s](uint64_t position, uint64_t k) {
            for (int to = 0; to < s.n; ++to) {
                if (to == root) continue;
                const Piece p(k, divided.piece, blocks.size(to));
                copy_for_peers(s.slot(root, position) + divided.offset(root, to), send + blocks.offset(to) + p.offset,
                               p.bytes);
            }
        },
        [=, &s](uint64_t position, uint64_t k, uint64_t step) {
            if (from_me) return;
            const Piece p(k, divided.piece, mine);
            if (k == 0 && divided.rounds > 1)
                s.await_all(step);  // compares all calls: a mismatched call must not change recv
            else s.await(root, step);
            copy_out(recv + p.offset, s.slot(root, position) + divided.offset(root, s.rank), p.bytes);
        });
    if (from_me) copy_own_block(s, recv, send + blocks.offset(root), mine, blocks.total());
}

void scatter(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& blocks, int root) {
    StepRing& s = t.steps;
    const bool from_me = s.rank == root;
    const size_t mine = blocks.size(s.rank);
    const Extent extent(blocks.largest(), blocks.total());
    Choice choice = chosen(t, Op::Scatter, extent);
    for (;;) {
        switch (choice.first()) {
        case Algorithm::Inline: {
            const uint64_t step = s.post(send, from_me ? extent.total : 0);
            if (from_me) return copy_own_block(s, recv, send + blocks.offset(s.rank), mine, 0);
            return t.complete_at(step, root, [=, &s, offset = blocks.offset(s.rank)] {
                s.await_sender(root, step);
                copy_bytes(recv, s.payload(root, step) + offset, mine);
            });
        }
        case Algorithm::Registered:
        case Algorithm::SingleCopy:
            if (scatter_exposed(t, choice, send, recv, blocks, root)) return;
            continue;
        case Algorithm::Staged: return scatter_staged(t, send, recv, blocks, root);
        default: none_can_run(t);
        }
    }
}

}  // namespace rankwise::collectives
