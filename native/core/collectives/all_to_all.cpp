// Every rank sends a block to every other rank.
//
// inline: the slot header carries all blocks to all ranks. staged: each rank's slot holds a piece for every other rank,
// and each rank copies out the pieces meant for it. single_copy, registered: each rank reads its blocks from its peers'
// memory. Blocks of different lengths are always staged, because only the peer knows where this rank's block begins.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

static void all_to_all_inline(Transport& t, const uint8_t* send, uint8_t* recv, size_t block) {
    StepRing& s = t.ring;
    const uint64_t step = s.post(send, block * size_t(s.n));
    t.finish(step, Started::kAll, [=, &s] {
        s.await_all(step);
        for (int from = 0; from < s.n; ++from) {
            const uint8_t* there = from == s.rank ? send : s.payload(from, step);
            if (block) std::memcpy(recv + block * size_t(from), there + block * size_t(s.rank), block);
        }
    });
}

// In the ranks' own memory, as in_memory.
static bool all_to_all_get(Transport& t, Choice& choice, const uint8_t* send, uint8_t* recv, const Blocks& blocks) {
    const size_t block = blocks.size(0), mine = blocks.offset(t.rank);
    return in_memory(t, choice, {send, blocks.total()}, {}, -1, [&](ExposedBuffers& exposed) {
        copy_own_block(t.ring, recv + mine, send + mine, block, blocks.total() * size_t(t.n));
        for (int i = 1; i < t.n; ++i) {
            const int from = (t.rank + i) % t.n;
            exposed.get(from, recv + blocks.offset(from), mine, block);
        }
    });
}

static void all_to_all_staged(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& out, const Blocks& in,
                              size_t largest) {
    StepRing& s = t.ring;
    const Copy copy_out = s.copy_for(in.total() * size_t(s.n));
    const DividedSlot divided(s, largest);
    if (!divided.rounds) return copy_out(recv + in.offset(s.rank), send + out.offset(s.rank), out.size(s.rank));
    pipeline(
        t, divided.rounds, divided.bytes, true, Started::kAll,
        [=, &s](uint64_t position, uint64_t k) {
            for (int to = 0; to < s.n; ++to) {
                if (to == s.rank) continue;
                const Piece p(k, divided.piece, out.size(to));
                std::memcpy(s.slot(s.rank, position) + divided.offset(s.rank, to), send + out.offset(to) + p.offset,
                            p.bytes);
            }
        },
        [=, &s](uint64_t position, uint64_t k, uint64_t step) {
            s.await_all(step);
            if (k == 0) copy_out(recv + in.offset(s.rank), send + out.offset(s.rank), out.size(s.rank));
            for (int i = 1; i < s.n; ++i) {
                const int from = (s.rank + i) % s.n;
                const Piece p(k, divided.piece, in.size(from));
                copy_out(recv + in.offset(from) + p.offset, s.slot(from, position) + divided.offset(from, s.rank),
                         p.bytes);
            }
        });
}

void all_to_all(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& out, const Blocks& in, size_t largest) {
    StepRing& s = t.ring;
    if (!out.equal()) return all_to_all_staged(t, send, recv, out, in, largest);
    Choice choice = chosen(t, Op::AllToAll, {largest, out.total()});
    for (;;) {
        switch (choice.first()) {
        case Algorithm::Inline: return all_to_all_inline(t, send, recv, out.size(0));
        case Algorithm::Registered:
        case Algorithm::SingleCopy:
            if (all_to_all_get(t, choice, send, recv, out)) return;
            continue;
        case Algorithm::Staged: return all_to_all_staged(t, send, recv, out, in, largest);
        default: none_can_run(t);
        }
    }
}

}  // namespace rankwise::collectives
