// Scatter of blocks whose sizes only root knows.
//
// Root's step header carries the number of items, and the counts and words of the division, which are in root's slot if
// they do not fit. Short blocks travel with them, in the header or in the slot. If the blocks are long, or an algorithm
// is forced, a scatter_v with these counts follows.
#include <numeric>

#include "collectives/collectives.hpp"

namespace rankwise::collectives {

namespace {

constexpr size_t kWord = sizeof(uint64_t);

// Short, because the first 32 bytes of a payload arrive in the cache line of the step: of a scatter, two floats too.
struct DivisionHeader {
    uint64_t items;
    uint64_t item : 48, words : 16;  // bytes of an item, and how many words there are
};

// What accompanies the header, which all ranks know from it, and where it is.
struct Sent {
    Sent(const Transport& t, const DivisionHeader& header, size_t counts)
        : table((counts + header.words) * kWord), total(checked_bytes(header.items, header.item)),
          blocks(t.conditions().forced[size_t(Op::Scatter)] == Algorithm::None && table <= t.steps.slot_bytes() &&
                 total <= t.steps.slot_bytes() - table &&
                 total < t.conditions().thresholds.single_copy_scatter * size_t(t.n)),
          table_fits(sizeof header + table <= kInline),
          blocks_fit(blocks && table_fits && sizeof header + table + total <= kInline),
          in_header(sizeof header + (table_fits ? table : 0) + (blocks_fit ? total : 0)),
          in_slot((table_fits ? 0 : table) + (blocks && !blocks_fit ? total : 0)) {}
    // head: behind the header.
    template <class At> At table_at(At head, At slot) const { return table_fits ? head : slot; }
    template <class At> At blocks_at(At head, At slot) const {
        return blocks_fit ? head + table : table_fits ? slot : slot + table;
    }
    const size_t table, total;  // bytes of the counts and words, and of all blocks
    const bool blocks, table_fits, blocks_fit;
    const size_t in_header, in_slot;
};

void send_sized(StepRing& s, const Sent& sent, const DivisionHeader& header, const Division& division,
                const uint8_t* data, const Blocks& blocks) {
    uint8_t payload[kInline];
    uint8_t *const head = payload + sizeof header, *slot = nullptr;
    const uint64_t position = sent.in_slot ? s.reserve(sent.in_slot) : 0;
    if (sent.in_slot) {
        s.await_free(position);
        slot = s.slot(s.rank, position);
    }
    copy_bytes(payload, &header, sizeof header);
    uint8_t* const table = sent.table_at(head, slot);
    const size_t counts = division.counts.size() * kWord;
    copy_bytes(table, division.counts.data(), counts);
    copy_bytes(table + counts, division.words.data(), sent.table - counts);
    if (sent.blocks) {  // but this rank's own
        uint8_t* const to = sent.blocks_at(head, slot);
        const size_t own = blocks.offset(s.rank), next = own + blocks.size(s.rank);
        copy_for_peers(to, data, own);
        copy_for_peers(to + next, data + next, sent.total - next);
    }
    s.post(payload, sent.in_header);
    if (sent.in_slot) s.release(position);
}

void receive_sized(Transport& t, Division& division, const PartBuffer& part_buffer, int root) {
    StepRing& s = t.steps;
    const uint64_t step = s.post();
    s.await_sender(root, step);
    DivisionHeader header;
    copy_bytes(&header, s.payload(root, step), sizeof header);
    const size_t counts = division.items ? 0 : size_t(s.n);
    const Sent sent(t, header, counts);
    if (sent.table > s.slot_bytes()) t.failures.throw_overwritten("a step header", root);
    const uint64_t position = sent.in_slot ? s.reserve(sent.in_slot) : 0;
    const uint8_t* const head = s.payload(root, step) + sizeof header;
    const uint8_t* const slot = sent.in_slot ? s.slot(root, position) : nullptr;
    const uint8_t* const table = sent.table_at(head, slot);
    division.item = header.item;
    if (division.items) division.items = header.items;
    division.counts.resize(counts);
    division.words.resize(header.words);
    copy_bytes(division.counts.data(), table, counts * kWord);
    copy_bytes(division.words.data(), table + counts * kWord, header.words * kWord);
    const Blocks blocks = division.blocks(s.n);
    if (blocks.total() != sent.total) t.failures.throw_overwritten("a slot", root);
    uint8_t* const to = part_buffer(blocks.size(s.rank));
    if (sent.blocks) copy_bytes(to, sent.blocks_at(head, slot) + blocks.offset(s.rank), blocks.size(s.rank));
    if (sent.in_slot) s.release(position);
    if (!sent.blocks) scatter(t, nullptr, to, blocks, root);
}

}  // namespace

Blocks Division::blocks(int n) const {
    if (items && *items % uint64_t(n) == 0) return Blocks(n, *items / uint64_t(n), item);
    Counts each;
    for (int rank = 0; rank < n; ++rank) each.push_back(count(rank, n));
    return Blocks(each.data(), n, item);
}

void scatter_sized(Transport& t, Division& division, const uint8_t* data, const Blocks& blocks,
                   const PartBuffer& part_buffer, int root) {
    StepRing& s = t.steps;
    if (s.rank != root) return receive_sized(t, division, part_buffer, root);
    const Counts& counts = division.counts;
    const DivisionHeader header{division.items ? *division.items : std::accumulate(counts.begin(), counts.end(), 0ul),
                                division.item, division.words.size()};
    const Sent sent(t, header, counts.size());
    if (s.n > 1) send_sized(s, sent, header, division, data, blocks);  // a group of one has no slots
    uint8_t* const to = part_buffer(blocks.size(root));
    if (!sent.blocks && s.n > 1) return scatter(t, data, to, blocks, root);
    if (blocks.size(root)) copy_own_block(s, to, data + blocks.offset(root), blocks.size(root), sent.total);
}

}  // namespace rankwise::collectives
