#include "memory/buffer_cache.hpp"

#include <algorithm>
#include <cstring>

#include "base/errors.hpp"

namespace rankwise {

namespace {

size_t pages(size_t bytes) { return round_up(std::max<size_t>(bytes, 1), page_bytes()); }

}  // namespace

BufferCache::BufferCache(std::shared_ptr<Segment> segment)
    : segment_(std::move(segment)), limit_(available_memory() / kKeptShareOfMemory / size_t(segment_->world_size())) {
    kept_.reserve(kMostKeptBuffers + 1);
}

uint64_t BufferCache::acquire(size_t bytes, Contents contents) {
    const size_t wanted = pages(bytes);
    if (!fork_.is_child()) {
        std::unique_lock lock(mutex_);
        // The newest first: its lines are most likely in the processor's caches.
        const auto found = std::find_if(kept_.rbegin(), kept_.rend(), [&](const Kept& k) { return k.bytes == wanted; });
        if (found != kept_.rend()) {
            const uint64_t offset = found->offset;
            kept_.erase(std::next(found).base());
            kept_bytes_ -= wanted;
            lock.unlock();
            if (contents == Contents::Zeros) std::memset(segment_->at(offset), 0, wanted);
            return offset;
        }
    }
    const uint64_t offset = reserve(wanted, wanted);
    segment_->heap().publish(offset, BlockKind::Buffer);
    return offset;
}

uint64_t BufferCache::reserve(size_t bytes, size_t committed) {
    try {
        return segment_->heap().reserve(Area::Data, bytes, committed);
    } catch (const OutOfMemory&) {
        if (fork_.is_child() || !drop_until(0)) throw;
    }
    return segment_->heap().reserve(Area::Data, bytes, committed);
}

void BufferCache::give_back(uint64_t offset, size_t bytes) {
    if (!keep({pages(bytes), offset})) return segment_->heap().release(offset);
    drop_until(limit_);
}

bool BufferCache::keep(const Kept& buffer) {
    if (fork_.is_child()) return false;
    const std::lock_guard lock(mutex_);
    if (!users_ || buffer.bytes > limit_ || kept_.size() == kept_.capacity()) return false;
    kept_.push_back(buffer);
    kept_bytes_ += buffer.bytes;
    return true;
}

void BufferCache::join() {
    std::lock_guard lock(mutex_);
    ++users_;
}

void BufferCache::leave() {
    {
        const std::lock_guard lock(mutex_);
        if (--users_) return;
    }
    if (!fork_.is_child()) drop_until(0);
}

// Releases the longest unused buffers, each without the lock, until at most `bytes` are kept. Returns whether there was
// one.
bool BufferCache::drop_until(size_t bytes) {
    bool any = false;
    while (const auto buffer = longest_unused_above(bytes)) {
        segment_->heap().release(buffer->offset);
        any = true;
    }
    return any;
}

// Removed for the caller to release, if more than `bytes` are kept, or too many buffers.
std::optional<BufferCache::Kept> BufferCache::longest_unused_above(size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (kept_bytes_ <= bytes && kept_.size() <= kMostKeptBuffers) return std::nullopt;
    const Kept buffer = kept_.front();
    kept_.erase(kept_.begin());
    kept_bytes_ -= buffer.bytes;
    return buffer;
}

}  // namespace rankwise
