// Registered buffers: memory in the segment, which peers read and write in place.
//
// The segment's heap is one sparse file, as large as the machine's memory allows and mapped by every rank from the
// start. So a buffer needs no mapping of its own and never moves, and peers know it by its offset. Any rank makes
// buffers of any size whenever it likes. Which collectives work in place on them: collectives/all_registered.hpp.
#pragma once
#include <memory>

#include "memory/buffer_cache.hpp"

namespace rankwise {

// A buffer of this rank, given back with this object; it keeps the segment mapped, also after its group was
// closed. Throws OutOfMemory.
class Registered {
public:
    Registered(std::shared_ptr<BufferCache> cache, size_t bytes, bool zeroed);
    ~Registered();
    Registered(const Registered&) = delete;
    uint8_t* data() const { return cache_->segment().at(offset_); }
    size_t bytes() const { return bytes_; }

private:
    std::shared_ptr<BufferCache> cache_;
    const size_t bytes_;
    const uint64_t offset_;
    const int owner_;  // pid: a forked child sees the buffer too, and is not to free it
};

}  // namespace rankwise
