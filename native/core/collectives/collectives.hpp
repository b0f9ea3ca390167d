// The collectives, one file each, over the step ring and the peers' memory. Callers have checked the arguments.
//
// Each collective takes from the tuning table the algorithms to try, and runs the first for which the ranks have the
// memory.
#pragma once
#include <functional>
#include <optional>

#include "base/copy.hpp"
#include "collectives/blocks.hpp"
#include "collectives/tuning.hpp"
#include "kernels/kernels.hpp"
#include "transport/exposed_buffers.hpp"
#include "transport/transport.hpp"

namespace rankwise {
class Messages;
}

namespace rankwise::collectives {

using tuning::Choice;
using tuning::Extent;

void barrier(Transport& t);
void broadcast(Transport& t, uint8_t* data, size_t bytes, int root);
void all_reduce(Transport& t, uint8_t* data, size_t count, size_t item, ReduceKernel kernel);
void reduce(Transport& t, uint8_t* data, size_t count, size_t item, ReduceKernel kernel, int root);
// exclusive: this rank's own data is not part of its result. recv of rank 0 then stays as it is; send may be recv.
void scan(Transport& t, const uint8_t* send, uint8_t* recv, size_t count, size_t item, ReduceKernel kernel,
          bool exclusive);
// The staged algorithm of both: only rank `root` receives the result, or every rank if root is negative.
void reduce_staged(Transport& t, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel, int root);

// Reductions in the ranks' own memory, as in_exposed_memory. root: as in reduce_staged.
bool reduce_exposed(Transport& t, Choice& choice, uint8_t* data, size_t bytes, size_t item, ReduceKernel kernel,
                    int root);
bool reduce_scatter_exposed(Transport& t, Choice& choice, const uint8_t* send, uint8_t* recv, const Blocks& blocks,
                            size_t item, ReduceKernel kernel);

// The forced algorithm of the current call, or the tuning table's choice. op: of the call, or the operation of which it
// is the vector variant. non_temporal: as in tuning::choose.
[[gnu::always_inline]] inline Choice chosen(const Transport& t, Op op, const Extent& extent,
                                            bool non_temporal = false) {
    const Algorithm forced = t.conditions().forced[size_t(t.log.op())];
    if (forced != Algorithm::None && extent.total) [[unlikely]]
        return tuning::forced(t.conditions(), t.log.op(), extent, forced);
    return tuning::choose(t.conditions(), op, extent, non_temporal);
}
// Throws: all ranks have found that the forced algorithm cannot run.
[[noreturn]] inline void none_can_run(const Transport& t) { tuning::none_can_run(t.conditions(), t.log.op()); }

// Exposes the buffers to all ranks. If the memory suffices for an algorithm of `choice`, runs work(exposed) and returns
// true. Otherwise does nothing, and removes from `choice` what cannot run. root: as in await_end.
template <class Work>
bool in_exposed_memory(Transport& t, Choice& choice, const OwnBuffer& readable, const OwnBuffer& writable, int root,
                       Work&& work) {
    ExposedBuffers exposed(t, choice.memory(), readable, writable);
    choice = choice.in(exposed.exposure());
    if (exposed.exposure() == Exposure::None) return false;
    work(exposed);
    exposed.await_end(root);
    return true;
}

// Runs `rounds` pieces of at most `bytes`, two of them in flight: fill(position, k) writes this rank's piece of round
// k, if `writes`; drain(position, k, step) awaits and reads the peers' pieces. Copying in is one round ahead of
// waiting. awaited: the peer whose pieces this rank reads, Started::kAll, or this rank itself, if it reads none. A
// single piece may be drained later: the functions capture by value. Not inlined: an operation's inline algorithm is
// faster if this is not in the same function.
inline constexpr bool kAllWrite = true;
template <class Fill, class Drain>
[[gnu::noinline]] void pipeline(Transport& t, uint64_t rounds, size_t bytes, bool writes, int awaited, Fill&& fill,
                                Drain&& drain) {
    StepRing& s = t.steps;
    uint64_t previous_step = 0, previous_position = 0;
    for (uint64_t k = 0; k <= rounds; ++k) {
        uint64_t step = 0, position = 0;
        if (k < rounds) {
            position = s.reserve(bytes);
            if (writes) {
                s.await_free(position);
                fill(position, k);
            }
            step = s.post();
        }
        if (rounds == 1) {
            if (awaited == t.rank) return;
            if (!t.started) return drain(position, 0, step);
            return t.complete_at(step, awaited, [=] { drain(position, 0, step); });
        }
        if (k > 0) {
            drain(previous_position, k - 1, previous_step);
            s.release(previous_position);
        }
        previous_step = step;
        previous_position = position;
    }
}

// Each other rank's share of a slot, in bytes: whole cache lines.
inline size_t share_of_slot(const StepRing& s) { return s.slot_bytes() / size_t(std::max(1, s.n - 1)) / 64 * 64; }

// A slot that holds a piece for every other rank, where the ranks' blocks have at most `largest` bytes.
struct DividedSlot {
    size_t piece, bytes;  // of one piece, and of all pieces of a round
    uint64_t rounds;
    DividedSlot(const StepRing& s, size_t largest)
        : piece(std::min(share_of_slot(s), (largest + 63) / 64 * 64)), bytes(piece * size_t(s.n - 1)),
          rounds(piece ? rounds_of(largest, piece) : 0) {}
    size_t offset(int from, int to) const {
        return size_t(to < from ? to : to - 1) * piece;
    }  // none for a rank's own block
};

// If the operation has a single step: the bytes that it puts into a rank's slot at most, or kInHeader. kSeveral if it
// has several steps. blocks: equal on all ranks, as all know.
inline constexpr size_t kInHeader = 0, kSeveral = ~size_t(0);
size_t bytes_of_only_step(const Transport& t, Op op, const Blocks& blocks);

// Copies a rank's own block from the buffer it sends to the one it receives into, unless they are the same memory.
// written: bytes of all ranks' results.
inline void copy_own_block(const StepRing& s, uint8_t* to, const uint8_t* from, size_t bytes, size_t written) {
    if (to != from) s.copy_for(written)(to, from, bytes);
}

// Block j of `blocks` belongs to rank j.
void all_gather(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& blocks);
void gather(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& blocks, int root);
void scatter(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& blocks, int root);
void reduce_scatter(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& blocks, size_t item,
                    ReduceKernel kernel);
void all_to_all(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& blocks);
// The same for blocks of different sizes. largest: of those that any rank sends to another one. begins: where this
// rank's block begins in the memory that each rank sends from.
void all_to_all_uneven(Transport& t, const uint8_t* send, uint8_t* recv, const Blocks& out, const Blocks& in,
                       size_t largest, const std::vector<size_t>& begins);

// ---- blocks whose sizes only the ranks themselves know ----

// A count is a number of items of `item` bytes. Each function below calls its `room` once, when this rank knows how
// many items it receives from each rank. It returns the memory for these blocks, which follow each other, or throws.
using Room = std::function<uint8_t*(const Counts&)>;
// The same where each block has memory of its own: an address for each rank.
using RoomForEach = std::function<std::vector<uint8_t*>(const Counts&)>;

// room: called on root alone.
void gather_sized(Transport& t, Messages& messages, const uint8_t* block, uint64_t count, size_t item,
                  const RoomForEach& room, int root, const CallOptions& options);
void all_gather_sized(Transport& t, const uint8_t* block, uint64_t count, size_t item, const Room& room);
// Block j of `blocks` goes to rank j.
void all_to_all_sized(Transport& t, const uint8_t* blocks, const Counts& counts, size_t item, const Room& room);

// What root divides among the ranks. The other ranks receive all of it but the blocks.
struct Division {
    size_t item = 1;              // the bytes of an item
    Counts counts;                // each rank's items
    std::vector<uint64_t> words;  // further ones, which are the caller's
    // If the ranks share the items evenly, with one more for each of the first ones where a rest is left, as every rank
    // says beforehand: their number, in place of the counts.
    std::optional<uint64_t> items = std::nullopt;

    uint64_t count(int rank, int n) const {
        return items ? *items / uint64_t(n) + (uint64_t(rank) < *items % uint64_t(n)) : counts[size_t(rank)];
    }
    Blocks blocks(int n) const;
};
// Returns the memory for this rank's block of this many bytes, once the division is known, or throws.
using PartBuffer = std::function<uint8_t*(size_t)>;
// data, blocks: root's.
void scatter_sized(Transport& t, Division& division, const uint8_t* data, const Blocks& blocks,
                   const PartBuffer& part_buffer, int root);

}  // namespace rankwise::collectives
