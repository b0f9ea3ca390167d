// The collectives, one file each, over the step protocol. Callers have checked the arguments.
#pragma once
#include <functional>

#include "collectives/blocks.hpp"
#include "kernels/kernels.hpp"
#include "transport/single_copy.hpp"
#include "transport/slot_protocol.hpp"

namespace rankwise::collectives {

void barrier(Steps& s);
void broadcast(Steps& s, uint8_t* data, size_t bytes, int root);
void all_reduce(Steps& s, uint8_t* data, size_t count, size_t item, ReduceKernel kernel);
void reduce(Steps& s, uint8_t* data, size_t count, size_t item, ReduceKernel kernel, int root);
// What both use for large messages: rank `root` alone receives, or all where it is negative.
void reduce_in_shares(Steps& s, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel, int root);

// All meet before, and after, and do the rest in each other's memory. False where that of one cannot be
// reached; then nothing was done.
bool all_reduce_direct(Steps& s, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel);
bool reduce_direct(Steps& s, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel, int root);
bool reduce_scatter_direct(Steps& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks, size_t item, ReduceKernel kernel);

// A slot divided among the other ranks, in whole cache lines.
inline size_t share_of_slot(const Steps& s) { return s.slot_bytes() / size_t(std::max(1, s.n - 1)) / 64 * 64; }

// Pieces for every other rank, side by side, of blocks of at most `largest` bytes.
struct SideBySide {
    size_t piece, bytes;  // of one, and of all of a round
    uint64_t rounds;
    SideBySide(const Steps& s, size_t largest)
        : piece(std::min(share_of_slot(s), (largest + 63) / 64 * 64)), bytes(piece * size_t(s.n - 1)), rounds(piece ? rounds_of(largest, piece) : 0) {}
    size_t place(int from, int to) const { return size_t(to < from ? to : to - 1) * piece; }  // a rank keeps its own block
};

// A rank's own block, from what it sends to what it receives; nothing where they are the same memory.
// written: bytes of all ranks' results.
inline void keep_own(const Steps& s, uint8_t* to, const uint8_t* from, size_t bytes, size_t written) {
    if (to != from) s.copy_for(written)(to, from, bytes);
}

// Of two ranks that copy a block each, root its own and the other its own to root's memory or from it: so much of
// the other's root can take over, since it is done sooner where it copies past the cache, which the system never does.
inline size_t to_take_over(const Steps& s, const Blocks& blocks, int root) {
    return s.n == 2 && s.past_cache(blocks.total()) ? blocks.size(1 - root) / 4 / 64 * 64 : 0;
}

// Block j of `blocks` belongs to rank j.
void all_gather(Steps& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks);
void gather(Steps& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks, int root);
void scatter(Steps& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks, int root);
// What a root tells of its array, whose first axis is to be cut: more dimensions than fit are told elsewhere. Behind
// what is in use there is room for short parts.
struct ArrayWords {
    static constexpr int kDims = kInline / 8 - 2;
    int64_t dtype = 0, dims = 0, dim[kDims] = {};
    size_t bytes() const {  // of the array
        size_t all = itemsize(DType(dtype));
        for (int i = 0; i < std::min<int64_t>(dims, kDims); ++i) all *= size_t(dim[i]);
        return all;
    }
    size_t told() const { return size_t(2 + std::min<int64_t>(dims, kDims)) * 8; }  // bytes of them in use
};
static_assert(sizeof(ArrayWords) == kInline);
// Where a rank's part is to go, of so many bytes.
using Place = std::function<uint8_t*(size_t)>;
// Scatter to ranks that do not know what is to come: they learn root's `words`, and where the parts are equal
// and short these come along. Returns whether they did: root's own is in recv then, another's where `place`
// said, asked once the words are there.
bool scatter_told(Steps& s, ArrayWords& words, const uint8_t* send, uint8_t* recv, const Place& place, int root);
void reduce_scatter(Steps& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks, size_t item, ReduceKernel kernel);
void all_to_all(Steps& s, const uint8_t* send, uint8_t* recv, const Blocks& out, const Blocks& in, size_t largest);

}  // namespace rankwise::collectives
