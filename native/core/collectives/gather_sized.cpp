// Gather of blocks whose sizes only the ranks themselves know.
//
// The slot header carries the size. A very short block travels in the header too, a short one in the slot, a long one
// as a message. So a rank with a short block waits only when it is several steps ahead.
#include "collectives/collectives.hpp"
#include "p2p/messages.hpp"

namespace rankwise::collectives {

namespace {

struct BlockHeader {
    uint64_t bytes;
    uint8_t data[kInline - sizeof(uint64_t)];  // the block, if it fits

    bool has_block() const { return bytes <= sizeof data; }
    size_t used() const { return sizeof bytes + (has_block() ? bytes : 0); }
};
static_assert(sizeof(BlockHeader) == kInline);

void send_block(StepRing& s, Messages& messages, const uint8_t* block, size_t bytes, int root,
                const CallOptions& options) {
    BlockHeader header{bytes, {}};
    const uint64_t position = s.reserve(tuning::kShortBlock);
    if (header.has_block()) {
        if (bytes) std::memcpy(header.data, block, bytes);
    } else if (bytes <= tuning::kShortBlock) {
        s.await_free(position);
        std::memcpy(s.slot(s.rank, position), block, bytes);
    }
    s.post(&header, header.used());
    s.release(position);
    if (bytes > tuning::kShortBlock) messages.send_now(block, bytes, DType::U8, root, kBlockTag, options);
}

// A long block that is still to come, and the memory for it.
struct LongBlock {
    int from;
    uint8_t* to;
    uint64_t bytes;
};

// The messages with long blocks arrive while root copies its own block.
template <class Own>
void receive_long_blocks(Messages& messages, const std::vector<LongBlock>& blocks, const CallOptions& options,
                         const Own& copy_own) {
    std::vector<std::shared_ptr<Request>> coming;
    try {
        for (const LongBlock& each : blocks)
            coming.push_back(messages.recv(each.to, each.bytes, DType::U8, each.from, kBlockTag, options));
        copy_own();
        for (const auto& each : coming) each->wait({}, options);
    } catch (...) {
        for (const auto& each : coming) messages.cancel(each);  // does nothing to a complete one
        throw;
    }
}

}  // namespace

void gather_sized(Transport& t, Messages& messages, const uint8_t* block, size_t bytes, const BlockOf& block_of,
                  int root, const CallOptions& options) {
    StepRing& s = t.ring;
    if (s.rank != root) return send_block(s, messages, block, bytes, root, options);
    const uint64_t position = s.reserve(tuning::kShortBlock), step = s.post();
    s.await_senders(step);
    std::vector<LongBlock> longer;
    uint8_t* own = nullptr;
    for (int from = 0; from < s.n; ++from) {
        if (from == root) {
            own = block_of(from, bytes);
            continue;
        }
        BlockHeader header;
        std::memcpy(&header, s.payload(from, step), sizeof header);
        uint8_t* const to = block_of(from, header.bytes);
        if (header.bytes > tuning::kShortBlock) longer.push_back({from, to, header.bytes});
        else if (header.bytes) std::memcpy(to, header.has_block() ? header.data : s.slot(from, position), header.bytes);
    }
    s.release(position);
    receive_long_blocks(messages, longer, options, [&] {
        if (bytes && own != block) std::memmove(own, block, bytes);
    });
}

}  // namespace rankwise::collectives
