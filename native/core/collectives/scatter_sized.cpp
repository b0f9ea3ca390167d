// Scatter of blocks whose sizes only root knows.
//
// Root's slot header carries the total size of the blocks. The division and the blocks follow, in the header or in
// root's slot. If the blocks are too long, or an algorithm is forced, only the division does, and the blocks follow as
// those of a scatter_v.
#include <numeric>

#include "collectives/collectives.hpp"

namespace rankwise::collectives {

namespace {

constexpr size_t kWord = sizeof(uint64_t);

struct DivisionHeader {
    uint64_t item, total, words;  // bytes of an item and of all blocks; further words of the division
};

// What accompanies the header, which all ranks know from it.
struct Sent {
    Sent(const Transport& t, const DivisionHeader& header)
        : counts(size_t(t.n) * kWord), table(counts + header.words * kWord),
          blocks(t.conditions().forced[size_t(Op::Scatter)] == Algorithm::None &&
                 header.total <= std::min(t.ring.slot_bytes() - table, t.conditions().thresholds.single_copy_scatter)),
          bytes(table + (blocks ? header.total : 0)), in_header(sizeof header + bytes <= kInline) {}
    const size_t counts, table;  // bytes of the counts, and of these and the words
    const bool blocks;
    const size_t bytes;
    const bool in_header;
};

void put(const Sent& sent, uint8_t* to, const Division& division, const uint8_t* blocks) {
    copy_bytes(to, division.counts.data(), sent.counts);
    if (sent.table > sent.counts) copy_bytes(to + sent.counts, division.words.data(), sent.table - sent.counts);
    if (sent.bytes > sent.table) copy_bytes(to + sent.table, blocks, sent.bytes - sent.table);
}

size_t offset_of(const Division& division, int rank) {
    const auto begin = division.counts.begin();
    return std::accumulate(begin, begin + rank, uint64_t(0)) * division.item;
}

void send_sized(StepRing& s, const Sent& sent, const DivisionHeader& header, const Division& division,
                const uint8_t* blocks) {
    uint8_t payload[kInline];
    copy_bytes(payload, &header, sizeof header);
    if (sent.in_header) {
        put(sent, payload + sizeof header, division, blocks);
        s.post(payload, sizeof header + sent.bytes);
        return;
    }
    const uint64_t position = s.reserve(sent.bytes);
    s.await_free(position);
    put(sent, s.slot(s.rank, position), division, blocks);
    s.post(payload, sizeof header);
    s.release(position);
}

// Returns the memory for this rank's block, which is there if it was sent.
uint8_t* receive_sized(StepRing& s, const Sent& sent, uint64_t step, Division& division, const PartBuffer& part_buffer,
                       int root) {
    const uint64_t position = sent.in_header ? 0 : s.reserve(sent.bytes);
    const uint8_t* const from =
        sent.in_header ? s.payload(root, step) + sizeof(DivisionHeader) : s.slot(root, position);
    copy_bytes(division.counts.data(), from, sent.counts);
    if (sent.table > sent.counts) copy_bytes(division.words.data(), from + sent.counts, sent.table - sent.counts);
    const size_t mine = checked_bytes(division.counts[size_t(s.rank)], division.item);
    uint8_t* const to = part_buffer(mine);
    if (sent.blocks && mine) copy_bytes(to, from + sent.table + offset_of(division, s.rank), mine);
    if (!sent.in_header) s.release(position);
    return to;
}

}  // namespace

void scatter_sized(Transport& t, Division& division, const uint8_t* blocks, const PartBuffer& part_buffer, int root) {
    StepRing& s = t.ring;
    const bool from_me = s.rank == root;
    DivisionHeader header{division.item, offset_of(division, from_me ? s.n : 0), division.words.size()};
    uint64_t step = 0;
    if (!from_me) {
        step = s.post();
        s.await_sender(root, step);
        copy_bytes(&header, s.payload(root, step), sizeof header);
        if (header.words > s.slot_bytes() / kWord - size_t(s.n)) t.failures.throw_overwritten("a slot header", root);
        division.item = header.item;
        division.counts.resize(size_t(s.n));
        division.words.resize(header.words);
    }
    const Sent sent(t, header);
    if (from_me && s.n > 1) send_sized(s, sent, header, division, blocks);  // a group of one has no slots
    const size_t mine = from_me ? division.counts[size_t(root)] * division.item : 0;
    uint8_t* const to = from_me ? part_buffer(mine) : receive_sized(s, sent, step, division, part_buffer, root);
    if (!sent.blocks && s.n > 1) scatter(t, blocks, to, Blocks(division.counts.data(), s.n, division.item), root);
    else if (mine) copy_own_block(s, to, blocks + offset_of(division, root), mine, header.total);
}

}  // namespace rankwise::collectives
