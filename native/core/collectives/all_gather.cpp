// Every rank writes its block, piece by piece, and copies out the others'; or writes it into their memory.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

// Every rank reads the others' blocks, or gives them its own, which it writes into their memory: a piece at a
// time, which is in the cache when it goes to the next. False where memory of one cannot be reached; then
// nothing was done.
static bool all_gather_direct(Steps& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks, bool gives) {
    constexpr size_t kPiece = 256 << 10;
    const size_t mine = blocks.size(s.rank), begin = blocks.offset(s.rank);
    const uint8_t* lent = gives ? s.readable(recv, blocks.total()) : s.readable(send, mine);
    Loan loan(s, lent, gives && lent ? recv : nullptr);
    if (!loan.all_lend()) return false;  // from here on all agree: what others refuse must not change recv
    for (size_t at = 0; at < mine; at += kPiece) {
        const size_t length = std::min(kPiece, mine - at);
        keep_own(s, recv + begin + at, send + at, length, blocks.total() * size_t(s.n));
        for (int i = 1; gives && i < s.n; ++i) loan.write((s.rank + i) % s.n, send + at, begin + at, length);
    }
    for (int i = 1; !gives && i < s.n; ++i) {
        const int from = (s.rank + i) % s.n;
        loan.read(from, recv + blocks.offset(from), 0, blocks.size(from));
    }
    loan.finish_all();
    return true;
}

// Whether ranks write their blocks into the others' memory. Where they take turns on cores the slots are left for
// that alone, and not where the results go past the cache, as from the slots they can.
static bool gives_blocks(const Steps& s, size_t largest, size_t written) {
    return s.takes_turns() ? largest >= kGivenInTurnsFrom && !s.past_cache(written) : largest >= kGivenFrom;
}

void all_gather(Steps& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks) {
    const size_t mine = blocks.size(s.rank), largest = blocks.largest();
    uint8_t* own = recv + blocks.offset(s.rank);
    if (s.n == 1) return keep_own(s, own, send, mine, mine);  // a group of one has no staging
    if (largest <= kInline) {
        const uint64_t step = s.post(send, mine);
        s.await_all(step);
        for (int p = 0; p < s.n; ++p) {
            if (p == s.rank) continue;
            std::memcpy(recv + blocks.offset(p), s.payload(p, step), blocks.size(p));
        }
        return keep_own(s, own, send, mine, 0);
    }
    const bool gives = gives_blocks(s, largest, blocks.total() * size_t(s.n));
    if ((gives ? goes_direct : spreads_direct)(s, largest, gives ? recv : send, gives ? blocks.total() : mine) && all_gather_direct(s, send, recv, blocks, gives)) return;
    const size_t piece = s.slot_bytes();
    const Copy copy_out = s.copy_for(blocks.total() * size_t(s.n));
    pipeline(
        s, rounds_of(largest, piece), std::min(largest, piece), true,
        [&](uint64_t g, uint64_t k) {
            const Piece p(k, piece, mine);
            std::memcpy(s.slot(s.rank, g), send + p.offset, p.bytes);
        },
        [&](uint64_t g, uint64_t k, uint64_t step) {
            s.await_all(step);
            const Piece here(k, piece, mine);
            if (own != send) copy_out(own + here.offset, send + here.offset, here.bytes);  // while it is in the cache
            for (int i = 1; i < s.n; ++i) {  // start with the neighbour: not all at one rank's slot
                const int from = (s.rank + i) % s.n;
                const Piece p(k, piece, blocks.size(from));
                copy_out(recv + blocks.offset(from) + p.offset, s.slot(from, g), p.bytes);
            }
        });
}

}  // namespace rankwise::collectives
