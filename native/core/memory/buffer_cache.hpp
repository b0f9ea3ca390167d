// Freed registered buffers of this process, kept for the next buffer of the same size: their pages are there already.
//
// Programs free and take the same buffers again at every step (FSDP, the temporaries of NumPy expressions). A new
// block of the segment costs a page fault for every page, in this process and in each peer that reads it.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "memory/segment.hpp"
#include "sync/forks.hpp"

namespace rankwise {

enum class Contents : bool { Undefined, Zeros };

// Shared by all communicators of a rank. Any thread may call.
class BufferCache {
public:
    explicit BufferCache(std::shared_ptr<Segment> segment);
    BufferCache(const BufferCache&) = delete;

    Segment& segment() const { return *segment_; }
    // A buffer of at least `bytes` from a page's beginning; its offset. Throws OutOfMemory.
    uint64_t acquire(size_t bytes, Contents contents);
    // Heap::reserve, which releases what is kept if there is no room. Throws OutOfMemory.
    uint64_t reserve(size_t bytes, size_t committed);
    // bytes: as it was acquired with. Needs no memory, since destructors call it.
    void give_back(uint64_t offset, size_t bytes);
    // Each communicator joins, and leaves when it is closed. When all have left nothing is kept any more.
    void join();
    void leave();

private:
    struct Kept {
        size_t bytes;
        uint64_t offset;
    };
    bool keep(const Kept& buffer);
    bool drop_until(size_t bytes);
    std::optional<Kept> longest_unused_above(size_t bytes);

    const std::shared_ptr<Segment> segment_;
    const ForkMark fork_;  // a forked child sees this object too, and its buffers are not the child's
    const size_t limit_;   // bytes
    std::mutex mutex_;
    std::vector<Kept> kept_;  // the longest unused first; its own memory never grows
    size_t kept_bytes_ = 0;
    int users_ = 0;
};

}  // namespace rankwise
