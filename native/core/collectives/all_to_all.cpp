// Every rank sends a block to every other rank.
//
// inline: the step header carries all blocks to all ranks. staged: each rank's slot holds a piece for every other rank,
// and each rank copies out the pieces meant for it. single_copy, registered: each rank reads its blocks from its peers'
// memory. Blocks of different sizes are never inline.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

static void all_to_all_inline(Transport& t, const uint8_t* send, uint8_t* recv, size_t block) {
    StepRing& s = t.steps;
    const uint64_t step = s.post(send, block * size_t(s.n));
    t.complete_at(step, Started::kAll, [=, &s] {
        s.await_all(step);
        for (int from = 0; from < s.n; ++from) {
            const uint8_t* there = from == s.rank ? send : s.payload(from, step);
            copy_bytes(recv + block * size_t(from), there + block * size_t(s.rank), block);
        }
    });
}

// In the ranks' own memory, as in_exposed_memory. begin_of(r): where this rank's block begins in what rank r sends.
template <class BeginOf>
static bool all_to_all_get(Transport& t, Choice& choice, const uint8_t* send, uint8_t* recv, const Blocks& out,
                           const Blocks& in, const BeginOf& begin_of) {
    return in_exposed_memory(t, choice, {send, out.total()}, {}, -1, [&](ExposedBuffers& exposed) {
        copy_own_block(t.steps, recv + in.offset(t.rank), send + out.offset(t.rank), out.size(t.rank),
                       in.total() * size_t(t.n));
        for (int i = 1; i < t.n; ++i) {
            const int from = (t.rank + i) % t.n;
            if (in.size(from)) exposed.get(from, recv + in.offset(from), begin_of(from), in.size(from));
        }
    });
}

static void all_to_all_staged(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& out, const Blocks& in,
                              size_t largest) {
    StepRing& s = t.steps;
    const Copy copy_out = s.copy_for(in.total() * size_t(s.n));
    const DividedSlot divided(s, largest);
    if (!divided.rounds) return copy_out(recv + in.offset(s.rank), send + out.offset(s.rank), out.size(s.rank));
    pipeline(
        t, divided.rounds, divided.bytes, kAllWrite, Started::kAll,
        [=, &s](uint64_t position, uint64_t k) {
            for (int to = 0; to < s.n; ++to) {
                if (to == s.rank) continue;
                const Piece p(k, divided.piece, out.size(to));
                copy_for_peers(s.slot(s.rank, position) + divided.offset(s.rank, to), send + out.offset(to) + p.offset,
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

void all_to_all(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& blocks) {
    const size_t block = blocks.size(0), begin = blocks.offset(t.rank);
    Choice choice = chosen(t, Op::AllToAll, {block, blocks.total()});
    for (;;) {
        switch (choice.first()) {
        case Algorithm::Inline: return all_to_all_inline(t, send, recv, block);
        case Algorithm::Registered:
        case Algorithm::SingleCopy:
            if (all_to_all_get(t, choice, send, recv, blocks, blocks, [=](int) { return begin; })) return;
            continue;
        case Algorithm::Staged: return all_to_all_staged(t, send, recv, blocks, blocks, block);
        default: none_can_run(t);
        }
    }
}

void all_to_all_uneven(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& out, const Blocks& in,
                       size_t largest, const std::vector<size_t>& begins) {
    Choice choice =
        tuning::choice_for_blocks(t.conditions(), largest, t.conditions().thresholds.single_copy_all_to_all);
    if (choice.first() != Algorithm::Staged &&
        all_to_all_get(t, choice, send, recv, out, in, [&](int from) { return begins[size_t(from)]; }))
        return;
    all_to_all_staged(t, send, recv, out, in, largest);
}

}  // namespace rankwise::collectives
