#include "shared_block.hpp"

#include <algorithm>
#include <chrono>

#include "base/errors.hpp"
#include "p2p/channel.hpp"

namespace rankwise {

namespace {

struct SharedHeader {
    std::atomic<uint64_t> number;  // no earlier block in this place had it; 0 once nobody may take the block any more
    std::atomic<uint64_t> data;    // its offset; 0 once it is freed
    std::atomic<uint32_t> holders[];  // for each rank of the job: the number of the process that holds it + 1, or 0
};
constexpr uint32_t kThread = UINT32_MAX;  // held by a rank that is a thread, whose views may outlive it: as the number
                                          // of a process, it never ends

size_t header_bytes(const Segment& segment) {
    return sizeof(SharedHeader) + size_t(segment.world_size()) * sizeof(uint32_t);
}

enum class Held { ByNone, ByLost, ByLiving };

Held held(const Segment& segment, const SharedHeader& header) {
    Held most = Held::ByNone;
    for (int r = 0; r < segment.world_size(); ++r)
        if (const uint32_t holder = header.holders[r].load())
            most = std::max(most, segment.ended(r, holder - 1) ? Held::ByLost : Held::ByLiving);
    return most;
}

// Frees a block whose header the caller visits, if nobody holds it; of several that find it so, one frees it.
// Sequentially consistent: whoever takes the block stores its word before it sees that the block still has its number,
// so the word is seen here after the number is gone.
Held free_if_unheld(const Segment& segment, uint64_t offset) {
    SharedHeader& header = *segment.at<SharedHeader>(offset);
    if (const Held before = held(segment, header); before != Held::ByNone) return before;
    header.number.store(0);
    const Held now = held(segment, header);
    if (const uint64_t data = now == Held::ByNone ? header.data.exchange(0) : 0) {
        segment.heap().release(data);
        segment.heap().release(offset);
    }
    return now;
}

}  // namespace

SharedBlock::SharedBlock(std::shared_ptr<BufferCache> buffers, Member holder, size_t bytes,
                         const std::optional<Ticket>& ticket, bool filled)
    : buffers_(std::move(buffers)), holder_(holder), bytes_(bytes), ticket_(ticket ? *ticket : made(filled)) {
    if (ticket && !hold()) throw Error("the shared memory was freed before this rank could take it");
}

SharedBlock::~SharedBlock() {
    if (fork_.is_child()) return;
    Held left = Held::ByNone;
    segment().heap().visit_block(ticket_.first, BlockKind::SharedHeader, [&](uint64_t offset) {
        segment().at<SharedHeader>(offset)->holders[holder_.world_rank].store(0);
        left = free_if_unheld(segment(), offset);
    });
    if (left == Held::ByLost) free_memory_of_lost(segment());
}

uint32_t SharedBlock::own_word() const { return segment().heap().has_owner() ? holder_.process + 1 : kThread; }

SharedBlock::Ticket SharedBlock::made(bool filled) {
    const Heap& heap = segment().heap();
    const size_t bytes = std::max<size_t>(bytes_, 1);
    offset_ = buffers_->reserve(bytes, filled ? 1 : bytes);
    uint64_t offset;
    try {
        offset = heap.reserve(Area::Control, header_bytes(segment()), header_bytes(segment()));
    } catch (...) {
        heap.release(offset_);
        throw;
    }
    SharedHeader& header = *segment().at<SharedHeader>(offset);
    header.data = offset_;
    // A block that is later in the same place has another number, because it has been made later.
    header.number = uint64_t(std::chrono::steady_clock::now().time_since_epoch().count());
    header.holders[holder_.world_rank] = own_word();
    heap.publish(offset_, BlockKind::SharedData);
    heap.publish(offset, BlockKind::SharedHeader);
    return {offset, header.number};
}

bool SharedBlock::hold() {
    const Heap& heap = segment().heap();
    const uint64_t place = ticket_.first, number = ticket_.second;
    bool taken = false;
    heap.visit_block(place, BlockKind::SharedHeader, [&](uint64_t offset) {
        SharedHeader& header = *segment().at<SharedHeader>(offset);
        offset_ = header.data.load();
        if (header.number.load() != number || heap.block_bytes(offset_, BlockKind::SharedData) < bytes_) return;
        std::atomic<uint32_t>& mine = header.holders[holder_.world_rank];
        mine.store(own_word());
        taken = header.number.load() == number;
        if (taken) return;
        mine.store(0);
        free_if_unheld(segment(), offset);
    });
    return taken;
}

namespace {

// Frees the blocks that only processes that have ended hold.
void free_lost_blocks(const Segment& segment) {
    segment.heap().visit(BlockKind::SharedHeader, [&](uint64_t offset) {
        SharedHeader& header = *segment.at<SharedHeader>(offset);
        for (int r = 0; r < segment.world_size(); ++r)
            if (uint32_t holder = header.holders[r].load(); holder && segment.ended(r, holder - 1))
                header.holders[r].compare_exchange_strong(holder, 0);
        free_if_unheld(segment, offset);
    });
}

}  // namespace

// Every group of a dead rank has failed by now. A rank that is about to write there first sets PeerSlot::writing or
// CopyJob::writing, and then sees the failure. So it is enough that none of these is set now.
void free_memory_of_lost(Segment& segment) {
    bool in_use = false;
    segment.heap().visit(BlockKind::GroupSegment, [&](uint64_t offset) {
        GroupSegment& group = *segment.at<GroupSegment>(offset);
        in_use = in_use || !group.intact();
        if (in_use) return;
        const auto ended = [&](int r) { return segment.ended(group.member()[r], group.peers[r].process); };
        for (int r = 0; r < group.nranks && group.failed(); ++r) {
            if (ended(r)) continue;
            in_use = in_use || group.peers[r].writing.load();
            for (int to = 0; to < group.nranks; ++to)
                if (const uint64_t channel = ended(to) ? group.channel(r, to).load() : 0)
                    in_use = in_use || !segment.heap().block_bytes(channel, BlockKind::Channel) ||
                             segment.at<Channel>(channel)->sender_writes();
        }
    });
    if (in_use) return;
    segment.heap().free_buffers_of_ended();
    free_lost_blocks(segment);
}

}  // namespace rankwise
