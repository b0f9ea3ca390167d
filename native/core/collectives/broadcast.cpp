// All ranks receive root's data.
//
// inline: in the step header. staged: root writes each piece into its slot, and the other ranks copy it out.
// single_copy, registered: the other ranks read root's memory.
// single_copy_split, registered_split: between two ranks, root writes half of the data while the other reads the rest.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

// In the ranks' own memory, as in_exposed_memory.
static bool broadcast_exposed(Transport& t, Choice& choice, uint8_t* data, size_t bytes, int root) {
    const bool from_me = t.rank == root, split = tuning::splits(choice.first());
    const size_t read = split ? bytes / 2 : bytes;
    const OwnBuffer readable{from_me ? data : nullptr, bytes}, writable{split && !from_me ? data : nullptr, bytes};
    return in_exposed_memory(t, choice, readable, writable, root, [&](ExposedBuffers& exposed) {
        if (!from_me) exposed.get(root, data, 0, read);
        else if (split) exposed.put(1 - root, data + read, read, bytes - read);
    });
}

static void broadcast_staged(Transport& t, uint8_t* data, size_t bytes, int root) {
    StepRing& s = t.steps;
    const bool from_me = s.rank == root;
    const size_t piece = s.slot_bytes();
    const Copy copy_out = s.copy_for(bytes * size_t(s.n));
    const uint64_t rounds = rounds_of(bytes, piece);
    pipeline(
        t, rounds, std::min(bytes, piece), from_me, root,
        [=, &s](uint64_t position, uint64_t k) {
            const Piece p(k, piece, bytes);
            copy_for_peers(s.slot(root, position), data + p.offset, p.bytes);
        },
        [=, &s](uint64_t position, uint64_t k, uint64_t step) {
            if (from_me) return;
            const Piece p(k, piece, bytes);
            if (k == 0 && rounds > 1) s.await_all(step);  // compares all calls: a mismatched call must not change data
            else s.await(root, step);
            copy_out(data + p.offset, s.slot(root, position), p.bytes);
        });
}

void broadcast(Transport& t, uint8_t* data, size_t bytes, int root) {
    StepRing& s = t.steps;
    const bool from_me = s.rank == root;
    Choice choice = chosen(t, Op::Broadcast, bytes);
    for (;;) {
        switch (choice.first()) {
        case Algorithm::Inline: {
            const uint64_t step = s.post(data, from_me ? bytes : 0);
            if (from_me) return;
            return t.complete_at(step, root, [=, &s] {
                s.await_sender(root, step);
                copy_bytes(data, s.payload(root, step), bytes);
            });
        }
        case Algorithm::Registered:
        case Algorithm::RegisteredSplit:
        case Algorithm::SingleCopy:
        case Algorithm::SingleCopySplit:
            if (broadcast_exposed(t, choice, data, bytes, root)) return;
            continue;
        case Algorithm::Staged: return broadcast_staged(t, data, bytes, root);
        default: none_can_run(t);
        }
    }
}

}  // namespace rankwise::collectives
