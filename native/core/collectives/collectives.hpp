// The collectives, one file each, over the slot protocol. Callers have checked the arguments.
//
// Each asks the tuning table which algorithms to try, and runs the first that reaches the memory it needs.
#pragma once
#include <functional>

#include "collectives/blocks.hpp"
#include "collectives/tuning.hpp"
#include "kernels/kernels.hpp"
#include "transport/single_copy.hpp"
#include "transport/slot_protocol.hpp"

namespace rankwise::collectives {

using tuning::Choice;
using tuning::Extent;

void barrier(SlotProtocol& s);
void broadcast(SlotProtocol& s, uint8_t* data, size_t bytes, int root);
void all_reduce(SlotProtocol& s, uint8_t* data, size_t count, size_t item, ReduceKernel kernel);
void reduce(SlotProtocol& s, uint8_t* data, size_t count, size_t item, ReduceKernel kernel, int root);
// The staged algorithm of both: rank `root` alone receives, or all where it is negative.
void reduce_staged(SlotProtocol& s, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel, int root);

// The single-copy algorithms of the reductions. All ranks meet before and after, and work in each other's memory
// in between. False where a rank's memory cannot be reached; then nothing was done.
bool all_reduce_single_copy(SlotProtocol& s, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel);
bool reduce_single_copy(SlotProtocol& s, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel, int root);
bool reduce_scatter_single_copy(SlotProtocol& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks, size_t item, ReduceKernel kernel);

// The forced algorithm of the present call, or what the tuning table says.
template <class Table> inline Choice chosen(const SlotProtocol& s, const Extent& extent, Table&& table) {
    const Algorithm forced = s.conditions().forced[size_t(s.op())];
    if (forced != Algorithm::None && extent.total) [[unlikely]] return tuning::forced(s.conditions(), s.op(), extent, forced);
    return table(s.conditions());
}
// The call was to run a forced algorithm, and all ranks have found that it cannot.
[[noreturn]] inline void none_can_run(const SlotProtocol& s) { tuning::none_can_run(s.conditions(), s.op()); }

// A slot divided among the other ranks, in whole cache lines.
inline size_t share_of_slot(const SlotProtocol& s) { return s.slot_bytes() / size_t(std::max(1, s.n - 1)) / 64 * 64; }

// Pieces for every other rank, side by side, of blocks of at most `largest` bytes.
struct SideBySide {
    size_t piece, bytes;  // of one, and of all of a round
    uint64_t rounds;
    SideBySide(const SlotProtocol& s, size_t largest)
        : piece(std::min(share_of_slot(s), (largest + 63) / 64 * 64)), bytes(piece * size_t(s.n - 1)), rounds(piece ? rounds_of(largest, piece) : 0) {}
    size_t place(int from, int to) const { return size_t(to < from ? to : to - 1) * piece; }  // a rank keeps its own block
};

// A rank's own block, from what it sends to what it receives; nothing where they are the same memory.
// written: bytes of all ranks' results.
inline void keep_own(const SlotProtocol& s, uint8_t* to, const uint8_t* from, size_t bytes, size_t written) {
    if (to != from) s.copy_for(written)(to, from, bytes);
}

// Block j of `blocks` belongs to rank j.
void all_gather(SlotProtocol& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks);
void gather(SlotProtocol& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks, int root);
void scatter(SlotProtocol& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks, int root);
void reduce_scatter(SlotProtocol& s, const uint8_t* send, uint8_t* recv, const Blocks& blocks, size_t item, ReduceKernel kernel);
void all_to_all(SlotProtocol& s, const uint8_t* send, uint8_t* recv, const Blocks& out, const Blocks& in, size_t largest);

// The header of a scatter whose array only root knows: its dtype and shape, of which the first axis is to be cut. An
// array of more dimensions than fit is described by other means. Behind what is in use there is room for short parts.
struct ArrayHeader {
    static constexpr int kDims = kInline / 8 - 2;
    int64_t dtype = 0, dims = 0, dim[kDims] = {};
    size_t bytes() const {  // of the array
        size_t all = itemsize(DType(dtype));
        for (int i = 0; i < std::min<int64_t>(dims, kDims); ++i) all *= size_t(dim[i]);
        return all;
    }
    size_t used() const { return size_t(2 + std::min<int64_t>(dims, kDims)) * 8; }  // bytes of the header
};
static_assert(sizeof(ArrayHeader) == kInline);
// Where a rank's part is to go, of so many bytes.
using Place = std::function<uint8_t*(size_t)>;
// Scatter to ranks that do not know what is to come: they learn root's header, and equal, short parts travel with it.
// Returns whether they did: root's own is in recv then, another's where `place` said, asked once the header is there.
bool scatter_described(SlotProtocol& s, ArrayHeader& header, const uint8_t* send, uint8_t* recv, const Place& place, int root);

}  // namespace rankwise::collectives
