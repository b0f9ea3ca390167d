// Gathers of blocks whose sizes only the ranks themselves know.
//
// The step header carries the count. A very short block travels in the header too, a short one in the slot. Of a
// gather, a long one travels as a message, so a rank with a short block waits only when it is several steps ahead. Of
// an all_gather, if any block is long or an algorithm is forced, all blocks follow as those of an all_gather_v.
#include "collectives/collectives.hpp"
#include "p2p/messages.hpp"

namespace rankwise::collectives {

namespace {

struct BlockHeader {
    uint64_t count;
    uint8_t data[kInline - sizeof(uint64_t)];  // the block, if it fits

    static bool holds(size_t bytes) { return bytes <= sizeof data; }
};
static_assert(sizeof(BlockHeader) == kInline);

// Posts this rank's header, and what travels with it. Returns the step.
uint64_t post_block(StepRing& s, const uint8_t* block, uint64_t count, size_t bytes, uint64_t position) {
    BlockHeader header{count, {}};
    const bool in_header = BlockHeader::holds(bytes);
    if (in_header && bytes) {
        copy_bytes(header.data, block, bytes);
    } else if (!in_header && bytes <= tuning::kShortBlock) {
        s.await_free(position);
        copy_for_peers(s.slot(s.rank, position), block, bytes);
    }
    return s.post(&header, sizeof header.count + (in_header ? bytes : 0));
}

// The counts of all ranks. This rank has awaited the step of each.
Counts counts_at(const StepRing& s, uint64_t step, uint64_t own) {
    Counts counts(size_t(s.n), own);
    for (int from = 0; from < s.n; ++from)
        if (from != s.rank) copy_bytes(&counts[size_t(from)], s.payload(from, step), sizeof own);
    return counts;
}

// Copies a block that travelled with its header.
void copy_short(const StepRing& s, int from, uint64_t step, uint64_t position, uint8_t* to, size_t bytes) {
    const uint8_t* const block =
        BlockHeader::holds(bytes) ? s.payload(from, step) + offsetof(BlockHeader, data) : s.slot(from, position);
    copy_bytes(to, block, bytes);
}

}  // namespace

void gather_sized(Transport& t, Messages& messages, const uint8_t* block, uint64_t count, size_t item,
                  const RoomForEach& room, int root, const CallOptions& options) {
    StepRing& s = t.steps;
    const size_t bytes = count * item;
    const uint64_t position = s.reserve(tuning::kShortBlock);
    if (s.rank != root) {
        const uint64_t step = post_block(s, block, count, bytes, position);
        s.release(position);
        if (bytes <= tuning::kShortBlock) return;
        s.await(root, step);  // a message alone would not call for a root that has deferred the operation
        const Send long_block{block, bytes, DType::U8, root, kBlockTag};
        return void(messages.exchange({&long_block, 1}, {}, options));
    }
    const uint64_t step = s.post();
    s.await_senders(step);
    const Counts counts = counts_at(s, step, count);
    const Blocks blocks(counts.data(), s.n, item);
    const std::vector<uint8_t*> to = room(counts);
    std::vector<Receive> long_blocks;
    for (int from = 0; from < s.n; ++from) {
        if (from == root) continue;
        if (blocks.size(from) > tuning::kShortBlock)
            long_blocks.push_back({to[size_t(from)], blocks.size(from), DType::U8, from, kBlockTag});
        else copy_short(s, from, step, position, to[size_t(from)], blocks.size(from));
    }
    s.release(position);
    uint8_t* const own = to[size_t(root)];
    const auto copy_own = [&] { move_bytes(own, block, bytes); };
    if (long_blocks.empty()) return copy_own();
    messages.exchange({}, long_blocks, options, copy_own);
}

void all_gather_sized(Transport& t, const uint8_t* block, uint64_t count, size_t item, const Room& room) {
    StepRing& s = t.steps;
    const size_t bytes = count * item;
    const uint64_t position = s.n > 1 ? s.reserve(tuning::kShortBlock) : 0;  // a group of one has no slots
    const uint64_t step = s.n > 1 ? post_block(s, block, count, bytes, position) : 0;
    s.await_all(step);
    const Counts counts = counts_at(s, step, count);
    const Blocks blocks(counts.data(), s.n, item);
    uint8_t* const to = room(counts);
    const bool forced = t.conditions().forced[size_t(Op::AllGather)] != Algorithm::None;
    if (s.n > 1 && (blocks.largest() > tuning::kShortBlock || forced)) return all_gather(t, block, to, blocks);
    for (int from = 0; from < s.n; ++from)
        if (from != s.rank) copy_short(s, from, step, position, to + blocks.offset(from), blocks.size(from));
    if (bytes) copy_own_block(s, to + blocks.offset(s.rank), block, bytes, blocks.total() * size_t(s.n));
    if (s.n > 1) s.release(position);
}

}  // namespace rankwise::collectives
