// Every rank sends blocks whose sizes only it knows.
//
// The step header carries the size of the longest block and of all. The counts and the blocks follow, in the header or
// in the slot. If some rank's blocks are too long, the counts alone do: then all ranks know where their blocks begin in
// their peers' memory, and the blocks follow as those of an all_to_all.
#include "collectives/collectives.hpp"

namespace rankwise::collectives {

namespace {

struct BlocksHeader {
    uint64_t largest, total;  // bytes of what the rank sends to others
    uint8_t data[kInline - 2 * sizeof(uint64_t)];

    bool is_short() const { return total <= tuning::kShortBlocks; }
    size_t with(size_t table) const { return table + (is_short() ? total : 0); }  // bytes that travel with it
    bool holds(size_t table) const { return with(table) <= sizeof data; }
};
static_assert(sizeof(BlocksHeader) == kInline);

uint64_t post_blocks(StepRing& s, const uint8_t* send, const Counts& counts, const Blocks& out, uint64_t position) {
    const size_t table = size_t(s.n) * sizeof(uint64_t);
    BlocksHeader header{0, out.total() - out.size(s.rank), {}};
    for (int to = 0; to < s.n; ++to)
        if (to != s.rank) header.largest = std::max<uint64_t>(header.largest, out.size(to));
    const bool in_header = header.holds(table);
    if (!in_header) s.await_free(position);
    uint8_t* const place = in_header ? header.data : s.slot(s.rank, position);
    copy_bytes(place, counts.data(), table);
    if (header.is_short() && header.total) {
        const size_t before = out.offset(s.rank), after = before + out.size(s.rank);
        copy_bytes(place + table, send, before);
        if (out.total() > after) copy_bytes(place + table + before, send + after, out.total() - after);
    }
    return s.post(&header, offsetof(BlocksHeader, data) + (in_header ? header.with(table) : 0));
}

// What this rank learns from the headers and counts of all ranks.
struct Learnt {
    Learnt(Transport& t, uint64_t step, uint64_t position, const Counts& counts, size_t item)
        : receives(size_t(t.n), counts[size_t(t.rank)]), begins(size_t(t.n)), short_blocks(size_t(t.n)) {
        const StepRing& s = t.steps;
        const size_t table = size_t(s.n) * sizeof(uint64_t);
        for (int from = 0; from < s.n; ++from) {
            BlocksHeader header;
            copy_bytes(&header, s.payload(from, step), sizeof header);
            largest = std::max(largest, header.largest);
            all_short = all_short && header.is_short();
            if (from == s.rank) continue;
            const uint8_t* const place =
                header.holds(table) ? s.payload(from, step) + offsetof(BlocksHeader, data) : s.slot(from, position);
            size_t begin = 0, before = 0;  // of this rank's block in all blocks, and in those to other ranks
            for (int to = 0; to <= s.rank; ++to) {
                uint64_t count;
                copy_bytes(&count, place + size_t(to) * sizeof count, sizeof count);
                const size_t bytes = checked_bytes(count, item);
                if (to == s.rank) {
                    receives[size_t(from)] = count;
                    if (before + bytes > header.total) t.failures.throw_overwritten("a step header", from);
                } else {
                    begin = checked_bytes(begin + bytes);
                    before += to == from ? 0 : bytes;
                }
            }
            begins[size_t(from)] = begin;
            short_blocks[size_t(from)] = place + table + before;
        }
    }
    Counts receives;
    std::vector<size_t> begins;                // of this rank's block in what each rank sends
    std::vector<const uint8_t*> short_blocks;  // if all_short: this rank's blocks
    uint64_t largest = 0;                      // block of all ranks
    bool all_short = true;
};

}  // namespace

void all_to_all_sized(Transport& t, const uint8_t* send, const Counts& counts, size_t item, const Room& room) {
    StepRing& s = t.steps;
    const Blocks out(counts.data(), s.n, item);
    if (s.n == 1) return copy_own_block(s, room(counts), send, out.total(), out.total());
    const uint64_t position = s.reserve(size_t(s.n) * sizeof(uint64_t) + tuning::kShortBlocks);
    const uint64_t step = post_blocks(s, send, counts, out, position);
    s.await_all(step);
    const Learnt learnt(t, step, position, counts, item);
    const Blocks in(learnt.receives.data(), s.n, item);
    uint8_t* const to = room(learnt.receives);
    s.release(position);
    if (!learnt.all_short) return all_to_all_uneven(t, send, to, out, in, learnt.largest, learnt.begins);
    for (int from = 0; from < s.n; ++from)
        if (from != s.rank && in.size(from))
            copy_bytes(to + in.offset(from), learnt.short_blocks[size_t(from)], in.size(from));
    if (out.size(s.rank))
        copy_own_block(s, to + in.offset(s.rank), send + out.offset(s.rank), out.size(s.rank), in.total());
}

}  // namespace rankwise::collectives
