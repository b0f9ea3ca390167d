// Each rank's slot holds a piece for every other rank, side by side; each copies out the pieces
// meant for it, or reads its blocks in place.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

void all_to_all(Steps& s, const uint8_t* send, uint8_t* recv, const Blocks& out, const Blocks& in, size_t largest) {
    if (out.equal() && out.total() <= kInline) {  // beside the flag: all of it to all
        const uint64_t step = s.post(send, out.total());
        s.await_all(step);
        for (int from = 0; from < s.n; ++from) {
            const uint8_t* there = from == s.rank ? send : s.payload(from, step);
            if (largest) std::memcpy(recv + in.offset(from), there + out.offset(s.rank), largest);
        }
        return;
    }
    if (out.equal() && goes_direct(s, largest, send, out.total())) {  // else only the peer knows where my block begins
        Loan loan(s, s.readable(send, out.total()));
        if (loan.all_lend()) {  // from here on all agree: what others refuse must not change recv
            keep_own(s, recv + in.offset(s.rank), send + out.offset(s.rank), out.size(s.rank), in.total() * size_t(s.n));
            for (int i = 1; i < s.n; ++i) {
                const int from = (s.rank + i) % s.n;
                loan.read(from, recv + in.offset(from), out.offset(s.rank), in.size(from));
            }
            return loan.finish_all();
        }
    }
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

}  // namespace rankwise::collectives
