// Every rank receives the blocks of all ranks.
//
// inline: in the step header. staged: each rank writes its block into its slots, piece by piece, and copies out the
// other ranks' blocks. single_copy, registered: each rank reads the blocks from its peers' memory. single_copy_put,
// registered_put: each rank writes its block into its peers' memory.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

namespace {

// In the ranks' own memory, as in_exposed_memory.
bool get_blocks(Transport& t, Choice& choice, const uint8_t* send, uint8_t* recv, const Blocks& blocks) {
    return in_exposed_memory(t, choice, {send, blocks.size(t.rank)}, {}, -1, [&](ExposedBuffers& exposed) {
        copy_own_block(t.steps, recv + blocks.offset(t.rank), send, blocks.size(t.rank), blocks.total() * size_t(t.n));
        for (int i = 1; i < t.n; ++i) {
            const int from = (t.rank + i) % t.n;
            exposed.get(from, recv + blocks.offset(from), 0, blocks.size(from));
        }
    });
}

// The same; a rank writes a piece to all ranks before the next one, because after the first rank it is in the cache.
bool put_block(Transport& t, Choice& choice, const uint8_t* send, uint8_t* recv, const Blocks& blocks) {
    const size_t mine = blocks.size(t.rank), begin = blocks.offset(t.rank);
    return in_exposed_memory(t, choice, {}, {recv, blocks.total()}, -1, [&](ExposedBuffers& exposed) {
        for (size_t at = 0; at < mine; at += kPutPiece) {
            const size_t length = std::min(kPutPiece, mine - at);
            copy_own_block(t.steps, recv + begin + at, send + at, length, blocks.total() * size_t(t.n));
            for (int i = 1; i < t.n; ++i) exposed.put((t.rank + i) % t.n, send + at, begin + at, length);
        }
    });
}

void all_gather_staged(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& blocks) {
    StepRing& s = t.steps;
    const size_t mine = blocks.size(s.rank), largest = blocks.largest(), piece = s.slot_bytes();
    uint8_t* own = recv + blocks.offset(s.rank);
    const Copy copy_out = s.copy_for(blocks.total() * size_t(s.n));
    pipeline(
        t, rounds_of(largest, piece), std::min(largest, piece), kAllWrite, Started::kAll,
        [=, &s](uint64_t position, uint64_t k) {
            const Piece p(k, piece, mine);
            copy_for_peers(s.slot(s.rank, position), send + p.offset, p.bytes);
        },
        [=, &s](uint64_t position, uint64_t k, uint64_t step) {
            s.await_all(step);
            const Piece here(k, piece, mine);
            if (own != send) copy_out(own + here.offset, send + here.offset, here.bytes);  // while it is in the cache
            for (int i = 1; i < s.n; ++i) {  // from the next rank on, so that the ranks do not all read the same slot
                const int from = (s.rank + i) % s.n;
                const Piece p(k, piece, blocks.size(from));
                copy_out(recv + blocks.offset(from) + p.offset, s.slot(from, position), p.bytes);
            }
        });
}

}  // namespace

void all_gather(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& blocks) {
    StepRing& s = t.steps;
    const size_t mine = blocks.size(s.rank), total = blocks.total();
    uint8_t* own = recv + blocks.offset(s.rank);
    if (s.n == 1) return copy_own_block(s, own, send, mine, mine);  // a group of one has no staging
    Choice choice = chosen(t, Op::AllGather, {blocks.largest(), total}, s.non_temporal(total * size_t(s.n)));
    for (;;) {
        switch (choice.first()) {
        case Algorithm::Inline: {
            const uint64_t step = s.post(send, mine);
            return t.complete_at(step, Started::kAll, [=, &s] {
                s.await_all(step);
                for (int p = 0; p < s.n; ++p)
                    if (p != s.rank) copy_bytes(recv + blocks.offset(p), s.payload(p, step), blocks.size(p));
                copy_own_block(s, own, send, mine, 0);
            });
        }
        case Algorithm::Registered:
        case Algorithm::SingleCopy:
            if (get_blocks(t, choice, send, recv, blocks)) return;
            continue;
        case Algorithm::RegisteredPut:
        case Algorithm::SingleCopyPut:
            if (put_block(t, choice, send, recv, blocks)) return;
            continue;
        case Algorithm::Staged: return all_gather_staged(t, send, recv, blocks);
        default: none_can_run(t);
        }
    }
}

}  // namespace rankwise::collectives
