// To one rank: of two ranks, or for a small message, root reduces everything, which came beside the
// flag or through the slots; otherwise every rank reduces a share and root collects the shares, or
// is given them (reduce_direct.cpp).
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

void reduce(Steps& s, uint8_t* data, size_t count, size_t item, ReduceKernel kernel, int root) {
    const size_t bytes = count * item;
    const size_t piece = s.slot_bytes();
    if (bytes >= kInPlaceFrom)
        if (const InPlace all(s, data, bytes); all) return reduce_in_place(s, all, bytes, item, kernel, root);
    if (reduces_direct(s, bytes) && reduce_direct(s, data, bytes, item, kernel, root)) return;
    if (s.n > 2 && bytes > (16 << 10)) return reduce_in_shares(s, data, bytes, item, kernel, root);
    const bool to_me = s.rank == root;
    if (bytes <= kInline) {
        const uint64_t step = s.post(data, to_me ? 0 : bytes);
        if (!to_me) return;
        s.await_givers(step);
        const void* sources[kMaxRanks];
        for (int r = 0; r < s.n; ++r) sources[r] = r == root ? data : s.payload(r, step);
        return kernel(data, sources, s.n, count, s.n);
    }
    pipeline(
        s, rounds_of(bytes, piece), std::min(bytes, piece), !to_me,
        [&](uint64_t g, uint64_t k) {
            const Piece p(k, piece, bytes);
            std::memcpy(s.slot(s.rank, g), data + p.offset, p.bytes);
        },
        [&](uint64_t g, uint64_t k, uint64_t step) {
            if (!to_me) return;
            const Piece p(k, piece, bytes);
            const void* sources[kMaxRanks];
            for (int r = 0; r < s.n; ++r) sources[r] = r == root ? data + p.offset : s.slot(r, g);
            s.await_all(step);
            kernel(data + p.offset, sources, s.n, p.bytes / item, s.n);
        });
}

}  // namespace rankwise::collectives
