// Reductions without the slots, in the ranks' own memory: single_copy and registered. All ranks synchronise before and
// after.
//
// Each rank reduces its share of all data, and writes the result into its peers' memory while it is in the cache. Half
// as many cache lines move between cores as through the slots, and ranks that share a core need not alternate for every
// piece. registered: the kernel works on the peers' buffers themselves. single_copy: it works on what the rank has read
// from them.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

namespace {

// Reduces `mine` bytes, from `offset` on, of the buffers that all ranks expose. The result goes to `result`, or to
// scratch memory if that is null. Calls done(reduced, offset, bytes) for each piece while it is in the cache.
template <class Done>
void reduce_pieces(Transport& t, ExposedBuffers& exposed, const uint8_t* own, size_t offset, uint8_t* result,
                   size_t mine, size_t item, ReduceKernel kernel, Done&& done) {
    const size_t piece = kScratch / size_t(t.n) / 64 * 64;
    const void* sources[kMaxRanks];
    for (size_t at = 0; at < mine; at += piece) {
        const size_t length = std::min(piece, mine - at);
        uint8_t* room = t.scratch();
        for (int r = 0; r < t.n; ++r) {
            sources[r] = r == t.rank ? own + offset + at : room;
            if (r == t.rank) continue;
            exposed.get(r, room, offset + at, length);
            room += piece;
        }
        uint8_t* to = result ? result + at : room;
        kernel(to, sources, t.n, length / item, t.n);
        done(to, offset + at, length);
    }
}

// Every rank's registered buffer of this many bytes.
struct RegisteredBuffers {
    uint8_t* of[kMaxRanks];
    RegisteredBuffers(const Transport& t, const ExposedBuffers& exposed, const uint8_t* own, size_t bytes) {
        for (int r = 0; r < t.n; ++r) of[r] = r == t.rank ? const_cast<uint8_t*>(own) : exposed.registered(r, bytes);
    }
};

void reduce_registered(Transport& t, const RegisteredBuffers& data, size_t bytes, size_t item, ReduceKernel kernel,
                       int root) {
    const PeerMemory::Writing writing(t.memory);
    const bool receives = root < 0 || t.rank == root;
    const Shares shares(bytes, t.n);
    const size_t end = shares.end(t.rank);
    for (size_t at = shares.begin(t.rank), next_check = 0; at < end; at += kCacheBlock) {
        if (at >= next_check) {
            t.memory.check();
            next_check = at + kBytesPerCheck;
        }
        const size_t length = std::min(kCacheBlock, end - at);
        const void* sources[kMaxRanks];
        for (int r = 0; r < t.n; ++r) sources[r] = data.of[r] + at;
        uint8_t* result = receives ? data.of[t.rank] + at : t.scratch();
        kernel(result, sources, t.n, length / item, t.n);
        for (int i = 1; i < t.n; ++i) {
            const int to = (t.rank + i) % t.n;
            // Its lines were read a moment ago: non-temporal stores would be slower, at any size.
            if (root < 0 || to == root) copy_bytes(data.of[to] + at, result, length);
        }
    }
}

void reduce_single_copy(Transport& t, ExposedBuffers& exposed, uint8_t* data, size_t bytes, size_t item,
                        ReduceKernel kernel, int root) {
    const Shares shares(bytes, t.n);
    const size_t begin = shares.begin(t.rank), mine = shares.end(t.rank) - begin;
    reduce_pieces(t, exposed, data, begin, root < 0 || t.rank == root ? data + begin : nullptr, mine, item, kernel,
                  [&](const uint8_t* reduced, size_t at, size_t length) {
                      for (int i = 1; i < t.n; ++i)
                          if (const int to = (t.rank + i) % t.n; root < 0 || to == root)
                              exposed.put(to, reduced, at, length);
                  });
}

}  // namespace

bool reduce_exposed(Transport& t, Choice& choice, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel,
                    int root) {
    const bool receives = root < 0 || t.rank == root;
    return in_exposed_memory(t, choice, {data, bytes}, {receives ? data : nullptr, bytes}, -1,
                             [&](ExposedBuffers& exposed) {
                                 if (choice.first() == Algorithm::Registered)
                                     reduce_registered(t, {t, exposed, data, bytes}, bytes, item, kernel, root);
                                 else reduce_single_copy(t, exposed, data, bytes, item, kernel, root);
                             });
}

bool reduce_scatter_exposed(Transport& t, Choice& choice, const uint8_t* send, uint8_t* recv, const Blocks& blocks,
                            size_t item, ReduceKernel kernel) {
    const size_t offset = blocks.offset(t.rank), mine = blocks.size(t.rank);
    return in_exposed_memory(t, choice, {send, blocks.total()}, {}, -1, [&](ExposedBuffers& exposed) {
        if (choice.first() != Algorithm::Registered)
            return reduce_pieces(t, exposed, send, offset, recv, mine, item, kernel,
                                 [](const uint8_t*, size_t, size_t) {});
        const RegisteredBuffers all(t, exposed, send, blocks.total());
        for (size_t at = 0; at < mine; at += kBytesPerCheck) {
            t.memory.check();
            const size_t length = std::min(kBytesPerCheck, mine - at);
            const void* sources[kMaxRanks];
            for (int r = 0; r < t.n; ++r) sources[r] = all.of[r] + offset + at;
            kernel(recv + at, sources, t.n, length / item, t.n);
        }
    });
}

}  // namespace rankwise::collectives
