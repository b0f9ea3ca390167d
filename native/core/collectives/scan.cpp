// Each rank receives the reduction of the data of the ranks up to itself, or of those before it.
//
// The data travels in the step headers if it is short, and otherwise through the slots, piece by piece. Every rank
// reduces what the ranks before it have put there, in the order of the ranks; the last rank puts nothing.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

void scan(Transport& t, const uint8_t* send, uint8_t* recv, size_t count, size_t item, ReduceKernel kernel,
          bool exclusive) {
    StepRing& s = t.steps;
    const size_t bytes = count * item;
    // from(r): the piece of a rank before this one that corresponds to `mine`.
    const auto reduce = [=, &s](uint8_t* result, const uint8_t* mine, size_t length, uint64_t step, const auto& from) {
        const void* sources[kMaxRanks];
        for (int r = 0; r < s.rank; ++r) {
            s.await_sender(r, step);
            sources[r] = from(r);
        }
        sources[s.rank] = mine;
        const int summands = s.rank + !exclusive;
        if (summands > 1) kernel(result, sources, summands, length / item, s.n);
        else if (summands == 1) move_bytes(result, sources[0], length);
    };
    if (bytes <= kInline) {
        const uint64_t step = s.post(send, bytes);
        const auto complete = [=, &s] { reduce(recv, send, bytes, step, [&](int r) { return s.payload(r, step); }); };
        return s.rank == 0 ? complete() : t.complete_at(step, Started::kAll, complete);
    }
    const size_t piece = s.slot_bytes();
    const uint64_t rounds = rounds_of(bytes, piece);
    pipeline(
        t, rounds, std::min(bytes, piece), s.rank < s.n - 1, Started::kAll,
        [=, &s](uint64_t position, uint64_t k) {
            const Piece p(k, piece, bytes);
            copy_for_peers(s.slot(s.rank, position), send + p.offset, p.bytes);
        },
        [=, &s](uint64_t position, uint64_t k, uint64_t step) {
            const Piece p(k, piece, bytes);
            if (k == 0 && rounds > 1) s.await_all(step);  // compares all calls: a mismatched call must not change data
            reduce(recv + p.offset, send + p.offset, p.bytes, step, [&](int r) { return s.slot(r, position); });
        });
}

}  // namespace rankwise::collectives
