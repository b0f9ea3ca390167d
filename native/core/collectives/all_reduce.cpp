// All ranks receive the reduction of all ranks' data. Every algorithm reduces in the order of the ranks, so that all
// ranks get the same bits.
//
// inline: the data travels in the step headers, and every rank reduces all of it. flat: the same through one slot of
// each rank. staged: the data is cut into pieces, and each piece into one share per rank. A rank writes the other
// ranks' shares into its slot, reduces its own share from all slots, and copies out the other ranks' results (a
// reduce-scatter followed by an all-gather: Rabenseifner, "Optimization of Collective Reduction Operations", ICCS
// 2004). single_copy, registered: the same in the ranks' own memory.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

void reduce_staged(Transport& t, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel, int root) {
    StepRing& s = t.steps;
    const size_t piece = s.slot_bytes();
    const uint64_t rounds = rounds_of(bytes, piece);
    const bool receives = root < 0 || s.rank == root;
    const Copy to_result = s.copy_for(bytes * size_t(s.n));
    // Of each piece in flight: its position, and the steps that announce that it is filled and reduced.
    uint64_t position[kSlots], filled[kSlots], reduced[kSlots];

    auto fill = [&](uint64_t k) {
        const Piece p(k, piece, bytes);
        const Shares shares(p.bytes, s.n);
        position[k % kSlots] = s.reserve(p.bytes);
        s.await_free(position[k % kSlots]);
        uint8_t* slot = s.slot(s.rank, position[k % kSlots]);
        const size_t b = shares.begin(s.rank), e = shares.end(s.rank);
        copy_for_peers(slot, data + p.offset, b);
        copy_for_peers(slot + e, data + p.offset + e, p.bytes - e);
        filled[k % kSlots] = s.post();
    };
    auto reduce_share = [&](uint64_t k) {
        const Piece p(k, piece, bytes);
        const Shares shares(p.bytes, s.n);
        s.await_all(filled[k % kSlots]);
        for (size_t at = shares.begin(s.rank), end = shares.end(s.rank); at < end; at += kCacheBlock) {
            const size_t length = std::min(kCacheBlock, end - at);
            const void* sources[kMaxRanks];
            for (int r = 0; r < s.n; ++r)
                sources[r] = (r == s.rank ? data + p.offset : s.slot(r, position[k % kSlots])) + at;
            // Reduce into this rank's own memory and copy the result from there: memcpy does not fetch the slot's lines
            // from the peers that read them last, as the kernel's stores would.
            uint8_t* result = receives ? data + p.offset + at : t.scratch();
            kernel(result, sources, s.n, length / item, s.n);
            copy_for_peers(s.slot(s.rank, position[k % kSlots]) + at, result, length);
        }
        reduced[k % kSlots] = s.post();
    };
    auto copy_out = [&](uint64_t k) {
        const Piece p(k, piece, bytes);
        const Shares shares(p.bytes, s.n);
        for (int i = 1; receives && i < s.n; ++i) {
            const int from = (s.rank + i) % s.n;
            s.await(from, reduced[k % kSlots]);
            const size_t b = shares.begin(from), e = shares.end(from);
            to_result(data + p.offset + b, s.slot(from, position[k % kSlots]) + b, e - b);
        }
        s.release(position[k % kSlots]);
    };
    for (uint64_t k = 0; k < rounds + 2; ++k) {
        if (k < rounds) fill(k);
        if (k >= 1 && k - 1 < rounds) reduce_share(k - 1);
        if (k >= 2) copy_out(k - 2);
    }
}

static void all_reduce_flat(Transport& t, uint8_t* data, size_t count, size_t item, ReduceKernel kernel) {
    StepRing& s = t.steps;
    const size_t bytes = count * item;
    const uint64_t position = s.reserve(bytes);
    s.await_free(position);
    copy_for_peers(s.slot(s.rank, position), data, bytes);
    const uint64_t step = s.post();
    t.complete_at(step, Started::kAll, [=, &s] {
        const void* sources[kMaxRanks];
        s.await_all(step);
        for (int r = 0; r < s.n; ++r) sources[r] = r == s.rank ? data : s.slot(r, position);
        kernel(data, sources, s.n, count, s.n);
    });
}

void all_reduce(Transport& t, uint8_t* data, size_t count, size_t item, ReduceKernel kernel) {
    StepRing& s = t.steps;
    const size_t bytes = count * item;
    Choice choice = chosen(t, Op::AllReduce, bytes);
    for (;;) {
        switch (choice.first()) {
        case Algorithm::Inline: {
            const uint64_t step = s.post(data, bytes);
            return t.complete_at(step, Started::kAll, [=, &s] {
                const void* sources[kMaxRanks];
                s.await_all(step);
                for (int r = 0; r < s.n; ++r) sources[r] = r == s.rank ? data : s.payload(r, step);
                kernel(data, sources, s.n, count, s.n);
            });
        }
        case Algorithm::Flat: return all_reduce_flat(t, data, count, item, kernel);
        case Algorithm::Registered:
        case Algorithm::SingleCopy:
            if (reduce_exposed(t, choice, data, bytes, item, kernel, -1)) return;
            continue;
        case Algorithm::Staged: return reduce_staged(t, data, bytes, item, kernel, -1);
        default: none_can_run(t);
        }
    }
}

}  // namespace rankwise::collectives
