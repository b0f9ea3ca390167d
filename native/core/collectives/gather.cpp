// Root receives the blocks of all ranks.
//
// inline: in the step header. staged: every rank but root writes its block into its slots, piece by piece, and root
// copies the pieces out. single_copy, registered: every rank writes its block into root's memory.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

// In the ranks' own memory, as in_exposed_memory. Every rank writes its block into root's memory; of two ranks root
// reads a part of the other's block, so that both copy for the same time.
static bool gather_exposed(Transport& t, Choice& choice, const uint8_t* send, uint8_t* recv, const Blocks& blocks,
                           int root) {
    const bool to_me = t.rank == root, read = t.n == 2 && !to_me;
    const OwnBuffer readable{read ? send : nullptr, blocks.size(t.rank), true},
        writable{to_me ? recv : nullptr, blocks.total()};
    return in_exposed_memory(t, choice, readable, writable, root, [&](ExposedBuffers& exposed) {
        const bool non_temporal = t.steps.non_temporal(blocks.total()) && !exposed.writable_registered(root);
        const auto written = [&](int from) {  // by the rank itself
            const size_t block = blocks.size(from);
            return exposed.readable(from) ? block - tuning::gathered_by_root(t.conditions(), block, non_temporal)
                                          : block;
        };
        if (!to_me) return exposed.put(root, send, blocks.offset(t.rank), written(t.rank));
        copy_own_block(t.steps, recv + blocks.offset(root), send, blocks.size(root), blocks.total());
        for (int from = 0; from < t.n; ++from) {
            if (from == root) continue;
            const size_t already = written(from);
            exposed.get(from, recv + blocks.offset(from) + already, already, blocks.size(from) - already);
        }
    });
}

static void gather_staged(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& blocks, int root) {
    StepRing& s = t.steps;
    const bool to_me = s.rank == root;
    const size_t mine = blocks.size(s.rank), largest = blocks.largest();
    const Copy copy_out = s.copy_for(blocks.total());
    const size_t piece = s.slot_bytes();
    pipeline(
        t, rounds_of(largest, piece), std::min(largest, piece), !to_me, to_me ? Started::kAll : t.rank,
        [=, &s](uint64_t position, uint64_t k) {
            const Piece p(k, piece, mine);
            copy_for_peers(s.slot(s.rank, position), send + p.offset, p.bytes);
        },
        [=, &s](uint64_t position, uint64_t k, uint64_t step) {
            if (!to_me) return;
            s.await_all(step);
            if (k == 0) copy_own_block(s, recv + blocks.offset(root), send, mine, blocks.total());
            for (int from = 0; from < s.n; ++from) {
                if (from == root) continue;
                const Piece p(k, piece, blocks.size(from));
                copy_out(recv + blocks.offset(from) + p.offset, s.slot(from, position), p.bytes);
            }
        });
}

void gather(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& blocks, int root) {
    StepRing& s = t.steps;
    const bool to_me = s.rank == root;
    const size_t mine = blocks.size(s.rank);
    Choice choice = chosen(t, Op::Gather, {blocks.largest(), blocks.total()});
    for (;;) {
        switch (choice.first()) {
        case Algorithm::Inline: {
            const uint64_t step = s.post(send, to_me ? 0 : mine);
            if (!to_me) return;
            return t.complete_at(step, Started::kAll, [=, &s] {
                s.await_senders(step);
                copy_own_block(s, recv + blocks.offset(root), send, mine, 0);
                for (int p = 0; p < s.n; ++p)
                    if (p != root) copy_bytes(recv + blocks.offset(p), s.payload(p, step), blocks.size(p));
            });
        }
        case Algorithm::Registered:
        case Algorithm::SingleCopy:
            if (gather_exposed(t, choice, send, recv, blocks, root)) return;
            continue;
        case Algorithm::Staged: return gather_staged(t, send, recv, blocks, root);
        default: none_can_run(t);
        }
    }
}

}  // namespace rankwise::collectives
