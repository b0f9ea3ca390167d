// Scatter of blocks whose sizes only root knows.
//
// Root's slot header carries the total size of the blocks. The sizes and the blocks follow, in the header or in root's
// slot; if the blocks are too long, or an algorithm is forced, only the sizes.
#include <numeric>

#include "collectives/collectives.hpp"

namespace rankwise::collectives {

namespace {

constexpr size_t kWord = sizeof(uint64_t);

// What accompanies the header. It depends only on the total size, so all ranks agree.
struct Sent {
    Sent(const Transport& t, uint64_t total)
        : table(size_t(t.n) * kWord),
          blocks(t.conditions().forced[size_t(Op::Scatter)] == Algorithm::None &&
                 total <= std::min(t.ring.slot_bytes() - table, t.conditions().thresholds.single_copy_scatter)),
          bytes(table + (blocks ? total : 0)), in_header(kWord + bytes <= kInline) {}
    const size_t table;  // bytes of the sizes
    const bool blocks;
    const size_t bytes;
    const bool in_header;
};

void put(const Sent& sent, uint8_t* to, const std::vector<uint64_t>& sizes, const uint8_t* blocks) {
    std::memcpy(to, sizes.data(), sent.table);
    if (sent.bytes > sent.table) std::memcpy(to + sent.table, blocks, sent.bytes - sent.table);
}

uint64_t offset_of(const std::vector<uint64_t>& sizes, int rank) {
    return std::accumulate(sizes.begin(), sizes.begin() + rank, uint64_t(0));
}

void get(const Sent& sent, const uint8_t* from, std::vector<uint64_t>& sizes, const PartBuffer& part_buffer, int rank) {
    std::memcpy(sizes.data(), from, sent.table);
    if (!sent.blocks) return;
    const uint64_t mine = sizes[size_t(rank)];
    uint8_t* const to = part_buffer(mine);
    if (mine) std::memcpy(to, from + sent.table + offset_of(sizes, rank), mine);
}

}  // namespace

bool scatter_sized(Transport& t, std::vector<uint64_t>& sizes, const uint8_t* blocks, const PartBuffer& part_buffer,
                   int root) {
    StepRing& s = t.ring;
    const bool from_me = s.rank == root;
    uint8_t header[kInline];
    uint64_t total = std::accumulate(sizes.begin(), sizes.end(), uint64_t(0)), step = 0;
    if (!from_me) {
        sizes.resize(size_t(s.n));
        step = s.post();
        s.await_sender(root, step);
        std::memcpy(&total, s.payload(root, step), kWord);
    }
    const Sent sent(t, total);
    if (s.n > 1) {  // a group of one has no slots
        const uint64_t position = sent.in_header ? 0 : s.reserve(sent.bytes);
        if (from_me) {
            std::memcpy(header, &total, kWord);
            if (!sent.in_header) s.await_free(position);
            put(sent, sent.in_header ? header + kWord : s.slot(root, position), sizes, blocks);
            s.post(header, kWord + (sent.in_header ? sent.bytes : 0));
        } else {
            get(sent, sent.in_header ? s.payload(root, step) + kWord : s.slot(root, position), sizes, part_buffer,
                s.rank);
        }
        if (!sent.in_header) s.release(position);
    }
    if (from_me && sent.blocks) {
        const uint64_t mine = sizes[size_t(root)];
        uint8_t* const to = part_buffer(mine);
        if (mine) copy_own_block(s, to, blocks + offset_of(sizes, root), mine, total);
    }
    return sent.blocks;
}

}  // namespace rankwise::collectives
