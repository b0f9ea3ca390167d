// Large reductions without the slots. Each rank reads its share of all data from its peers' memory, reduces it, and
// writes the result into their memory while it is in the cache. Half as many cache lines move between cores as through
// the slots, and ranks that share a core need not alternate for every piece. All ranks synchronise before and after.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

namespace {

// Reduces `mine` bytes, from `offset` on, of the buffers that all ranks expose. The result goes to `result`, or to
// scratch memory if that is null. Calls done(reduced, offset, bytes) for each piece while it is in the cache.
template <class Done>
void reduce_exposed(Transport& t, ExposedBuffers& exposed, const uint8_t* own, size_t offset, uint8_t* result,
                    size_t mine, size_t item, ReduceKernel kernel, Done&& done) {
    StepRing& s = t.ring;
    const size_t piece = kScratch / size_t(s.n) / 64 * 64;
    const void* sources[kMaxRanks];
    for (size_t at = 0; at < mine; at += piece) {
        const size_t length = std::min(piece, mine - at);
        uint8_t* room = t.scratch();
        for (int r = 0; r < s.n; ++r) {
            sources[r] = r == s.rank ? own + offset + at : room;
            if (r == s.rank) continue;
            exposed.get(r, room, offset + at, length);
            room += piece;
        }
        uint8_t* to = result ? result + at : room;
        kernel(to, sources, s.n, length / item, s.n);
        done(to, offset + at, length);
    }
}

}  // namespace

bool all_reduce_single_copy(Transport& t, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel) {
    StepRing& s = t.ring;
    uint8_t* buffer = t.memory.reachable(data, bytes);
    ExposedBuffers exposed(t, buffer, buffer);
    if (!exposed.all_exposed()) return false;
    const Shares shares(bytes, s.n);
    const size_t begin = shares.begin(s.rank), mine = shares.end(s.rank) - begin;
    reduce_exposed(t, exposed, data, begin, data + begin, mine, item, kernel,
                   [&](const uint8_t* reduced, size_t at, size_t length) {
                       for (int i = 1; i < s.n; ++i) exposed.put((s.rank + i) % s.n, reduced, at, length);
                   });
    exposed.finish_all();
    return true;
}

bool reduce_single_copy(Transport& t, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel, int root) {
    StepRing& s = t.ring;
    const bool to_me = s.rank == root;
    uint8_t* buffer = t.memory.reachable(data, bytes);
    ExposedBuffers exposed(t, buffer, to_me ? buffer : nullptr);
    if (!exposed.all_exposed()) return false;
    const Shares shares(bytes, s.n);
    const size_t begin = shares.begin(s.rank), mine = shares.end(s.rank) - begin;
    reduce_exposed(t, exposed, data, begin, to_me ? data + begin : nullptr, mine, item, kernel,
                   [&](const uint8_t* reduced, size_t at, size_t length) {
                       if (!to_me) exposed.put(root, reduced, at, length);
                   });
    exposed.finish_all();
    return true;
}

bool reduce_scatter_single_copy(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& blocks, size_t item,
                                ReduceKernel kernel) {
    StepRing& s = t.ring;
    ExposedBuffers exposed(t, t.memory.reachable(send, blocks.total()));
    if (!exposed.all_exposed()) return false;
    reduce_exposed(t, exposed, send, blocks.offset(s.rank), recv, blocks.size(s.rank), item, kernel,
                   [](const uint8_t*, size_t, size_t) {});
    exposed.finish_all();
    return true;
}

}  // namespace rankwise::collectives
