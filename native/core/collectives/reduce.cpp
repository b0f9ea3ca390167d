// Root receives the reduction of all ranks' data.
//
// inline: the data travels in the step headers, and root reduces all of it. flat: the same through the slots. staged:
// every rank reduces a share of each piece, and root copies the shares out (all_reduce.cpp). single_copy, registered:
// every rank reduces a share and writes it into root's memory.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

static void reduce_flat(Transport& t, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel, int root) {
    StepRing& s = t.steps;
    const bool to_me = s.rank == root;
    const size_t piece = s.slot_bytes();
    pipeline(
        t, rounds_of(bytes, piece), std::min(bytes, piece), !to_me, to_me ? Started::kAll : t.rank,
        [=, &s](uint64_t position, uint64_t k) {
            const Piece p(k, piece, bytes);
            copy_for_peers(s.slot(s.rank, position), data + p.offset, p.bytes);
        },
        [=, &s](uint64_t position, uint64_t k, uint64_t step) {
            if (!to_me) return;
            const Piece p(k, piece, bytes);
            const void* sources[kMaxRanks];
            for (int r = 0; r < s.n; ++r) sources[r] = r == root ? data + p.offset : s.slot(r, position);
            s.await_all(step);
            kernel(data + p.offset, sources, s.n, p.bytes / item, s.n);
        });
}

void reduce(Transport& t, uint8_t* data, size_t count, size_t item, ReduceKernel kernel, int root) {
    StepRing& s = t.steps;
    const size_t bytes = count * item;
    const bool to_me = s.rank == root;
    Choice choice = chosen(t, Op::Reduce, bytes);
    for (;;) {
        switch (choice.first()) {
        case Algorithm::Inline: {
            const uint64_t step = s.post(data, to_me ? 0 : bytes);
            if (!to_me) return;
            return t.complete_at(step, Started::kAll, [=, &s] {
                s.await_senders(step);
                const void* sources[kMaxRanks];
                for (int r = 0; r < s.n; ++r) sources[r] = r == root ? data : s.payload(r, step);
                kernel(data, sources, s.n, count, s.n);
            });
        }
        case Algorithm::Registered:
        case Algorithm::SingleCopy:
            if (reduce_exposed(t, choice, data, bytes, item, kernel, root)) return;
            continue;
        case Algorithm::Staged: return reduce_staged(t, data, bytes, item, kernel, root);
        case Algorithm::Flat: return reduce_flat(t, data, bytes, item, kernel, root);
        default: none_can_run(t);
        }
    }
}

}  // namespace rankwise::collectives
