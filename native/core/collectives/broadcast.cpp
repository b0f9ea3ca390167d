// All ranks receive root's data.
//
// inline: in the slot header. staged: root writes each piece into its slot, and the other ranks copy it out.
// single_copy, registered: the other ranks read root's memory.
// single_copy_split, registered_split: between two ranks, root writes half of the data while the other reads the rest.
// by_node: by_node.cpp.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

// Returns false, with nothing done, if the memory cannot be accessed.
static bool broadcast_single_copy(Transport& t, uint8_t* data, size_t bytes, int root, bool split) {
    StepRing& s = t.ring;
    const size_t read = split ? bytes / 2 : bytes;
    const bool from_me = s.rank == root, written = split && !from_me;
    uint8_t* buffer = from_me || written ? t.memory.reachable(data, bytes) : nullptr;
    ExposedBuffers exposed(t, from_me ? buffer : nullptr, written ? buffer : nullptr);
    if (split) exposed.await(1 - s.rank);
    else if (!from_me) exposed.await_all();  // all calls have been compared: a mismatched call must not change data
    if (!(from_me ? buffer != nullptr : exposed.exposes(root, false)) || (split && !exposed.exposes(1 - root, true)))
        return exposed.finish_all(), false;
    if (from_me) {
        if (split) exposed.put(1 - root, data + read, read, bytes - read);
        exposed.finish_all();
    } else {
        exposed.get(root, data, 0, read);
        exposed.finish_with(root);
    }
    return true;
}

static void broadcast_staged(StepRing& s, uint8_t* data, size_t bytes, int root) {
    const bool from_me = s.rank == root;
    const size_t piece = s.slot_bytes();
    const Copy copy_out = s.copy_for(bytes * size_t(s.n));
    const uint64_t rounds = rounds_of(bytes, piece);
    pipeline(
        s, rounds, std::min(bytes, piece), from_me,
        [&](uint64_t position, uint64_t k) {
            const Piece p(k, piece, bytes);
            std::memcpy(s.slot(root, position), data + p.offset, p.bytes);
        },
        [&](uint64_t position, uint64_t k, uint64_t step) {
            if (from_me) return;
            const Piece p(k, piece, bytes);
            if (k == 0 && rounds > 1) s.await_all(step);  // compares all calls: a mismatched call must not change data
            else s.await(root, step);
            copy_out(data + p.offset, s.slot(root, position), p.bytes);
        });
}

void broadcast(Transport& t, uint8_t* data, size_t bytes, int root) {
    StepRing& s = t.ring;
    if (s.n == 1) return;  // a group of one has no staging
    const bool from_me = s.rank == root;
    Choice choice = chosen(t, bytes, [&](const Conditions& c) { return tuning::broadcast(c, bytes); });
    for (;; choice = choice.rest()) {
        const bool split = tuning::splits(choice.first());
        switch (choice.first()) {
        case Algorithm::Inline: {
            const uint64_t step = s.post(data, from_me ? bytes : 0);
            if (from_me) return;
            s.await_sender(root, step);
            std::memcpy(data, s.payload(root, step), bytes);
            return;
        }
        case Algorithm::Registered:
        case Algorithm::RegisteredSplit:
            if (!AllRegistered(t, split || from_me ? data : nullptr, bytes)) continue;
            [[fallthrough]];
        case Algorithm::SingleCopy:
        case Algorithm::SingleCopySplit:
            if (broadcast_single_copy(t, data, bytes, root, split)) return;
            continue;
        case Algorithm::Staged: return broadcast_staged(s, data, bytes, root);
        case Algorithm::ByNode: return broadcast_by_node(t, data, bytes, root);
        default: none_can_run(t);
        }
    }
}

}  // namespace rankwise::collectives
