// Registered buffers: memory in the segment, which peers read and write in place.
//
// Every rank maps the whole segment from the start, so a buffer needs no mapping of its own and never moves, and its
// offset identifies it to peers. Any rank may allocate buffers of any size at any time.
#pragma once
#include <memory>

#include "memory/buffer_cache.hpp"

namespace rankwise {

// A buffer of this rank, given back with this object; it keeps the segment mapped, also after its group was
// closed. Throws OutOfMemory.
class Registered {
public:
    Registered(std::shared_ptr<BufferCache> cache, size_t bytes, Contents contents);
    ~Registered();
    Registered(const Registered&) = delete;
    uint8_t* data() const { return cache_->segment().at(offset_); }
    size_t bytes() const { return bytes_; }

private:
    std::shared_ptr<BufferCache> cache_;
    const size_t bytes_;
    const uint64_t offset_;
    const ForkMark fork_;  // a forked child must not free the buffer
};

}  // namespace rankwise
