// Every rank has a block for every other.
//
// inline: in the slot header, all blocks to all ranks. staged: each rank's slot holds a piece for every other rank,
// side by side, and each copies out the pieces meant for it. single_copy, registered: each reads its blocks in the
// peers' memory. Blocks of different lengths are staged: only the peer knows where this rank's begins.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

static void all_to_all_inline(SlotProtocol& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks) {
    const uint64_t step = s.post(send, blocks.total());
    s.await_all(step);
    for (int from = 0; from < s.n; ++from) {
        const uint8_t* there = from == s.rank ? send : s.payload(from, step);
        if (blocks.size(0)) std::memcpy(recv + blocks.offset(from), there + blocks.offset(s.rank), blocks.size(0));
    }
}

// False where memory of one cannot be read; then nothing was done.
static bool all_to_all_get(SlotProtocol& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks) {
    ExposedBuffers exposed(s, s.readable(send, blocks.total()));
    if (!exposed.all_exposed()) return false;  // from here on all agree: what others refuse must not change recv
    const size_t block = blocks.size(0), mine = blocks.offset(s.rank);
    keep_own(s, recv + mine, send + mine, block, blocks.total() * size_t(s.n));
    for (int i = 1; i < s.n; ++i) {
        const int from = (s.rank + i) % s.n;
        exposed.get(from, recv + blocks.offset(from), mine, block);
    }
    exposed.finish_all();
    return true;
}

static void all_to_all_staged(SlotProtocol& s, const uint8_t* send, uint8_t* recv, const Blocks& out, const Blocks& in, size_t largest) {
    const Copy copy_out = s.copy_for(in.total() * size_t(s.n));
    const SideBySide cut(s, largest);
    pipeline(
        s, cut.rounds, cut.bytes, true,
        [&](uint64_t g, uint64_t k) {
            for (int to = 0; to < s.n; ++to) {
                if (to == s.rank) continue;
                const Piece p(k, cut.piece, out.size(to));
                std::memcpy(s.slot(s.rank, g) + cut.place(s.rank, to), send + out.offset(to) + p.offset, p.bytes);
            }
        },
        [&](uint64_t g, uint64_t k, uint64_t step) {
            s.await_all(step);
            for (int i = 1; i < s.n; ++i) {
                const int from = (s.rank + i) % s.n;
                const Piece p(k, cut.piece, in.size(from));
                copy_out(recv + in.offset(from) + p.offset, s.slot(from, g) + cut.place(from, s.rank), p.bytes);
            }
        });
    copy_out(recv + in.offset(s.rank), send + out.offset(s.rank), out.size(s.rank));
}

void all_to_all(SlotProtocol& s, const uint8_t* send, uint8_t* recv, const Blocks& out, const Blocks& in, size_t largest) {
    if (!out.equal()) return all_to_all_staged(s, send, recv, out, in, largest);
    const Extent extent(largest, out.total());
    Choice choice = chosen(s, extent, [&](const Conditions& c) { return tuning::all_to_all(c, extent); });
    for (;; choice = choice.rest()) {
        switch (choice.first()) {
        case Algorithm::Inline: return all_to_all_inline(s, send, recv, out);
        case Algorithm::Registered:
            if (!AllRegistered(s, send, out.total())) continue;
            [[fallthrough]];
        case Algorithm::SingleCopy:
            if (all_to_all_get(s, send, recv, out)) return;
            continue;
        case Algorithm::Staged: return all_to_all_staged(s, send, recv, out, in, largest);
        default: none_can_run(s);
        }
    }
}

}  // namespace rankwise::collectives
