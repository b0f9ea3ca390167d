// A block of the segment that several ranks hold: the memory of an array that the ranks of a host share.
//
// One rank makes the block and sends its ticket to the others, which take it. Apart from the data there is a header
// with a word for each rank, which says whether that rank's process holds the block. Whoever lets go of it last frees
// it. A process that ended while it held the block is found by the next one that lets go, or that frees lost buffers.
#pragma once
#include <memory>
#include <optional>
#include <utility>

#include "memory/buffer_cache.hpp"
#include "memory/group_segment.hpp"

namespace rankwise {

// A rank's hold of a block, which it lets go of with this object; it keeps the segment mapped, also after its group was
// closed. A rank makes or takes a block only once.
class SharedBlock {
public:
    using Ticket = std::pair<uint64_t, uint64_t>;  // the offset of its header, and its number

    // Makes a block, zeroed, or takes the one of this ticket, which has this many bytes too. filled: see
    // Comm::shared_block. Throws OutOfMemory, and Error if the others have let go of the block.
    SharedBlock(std::shared_ptr<BufferCache> buffers, Member holder, size_t bytes, const std::optional<Ticket>& ticket,
                bool filled = false);
    ~SharedBlock();
    SharedBlock(const SharedBlock&) = delete;
    const Ticket& ticket() const { return ticket_; }
    uint64_t offset() const { return offset_; }  // of the data, which begins with a page
    uint8_t* data() const { return segment().at(offset_); }
    size_t bytes() const { return bytes_; }

private:
    Segment& segment() const { return buffers_->segment(); }
    uint32_t own_word() const;
    Ticket made(bool filled);
    bool hold();

    const std::shared_ptr<BufferCache> buffers_;
    const Member holder_;
    const size_t bytes_;
    uint64_t offset_ = 0;
    const Ticket ticket_;
    const ForkMark fork_;  // a forked child holds nothing
};

// Frees the blocks that only processes that have ended hold, and the registered buffers of such processes, unless a
// rank may still be writing there.
void free_memory_of_lost(Segment& segment);

}  // namespace rankwise
