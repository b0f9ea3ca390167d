#include "memory/buffer_cache.hpp"

#include <algorithm>
#include <cstring>

#include "base/errors.hpp"

namespace rankwise {

namespace {

size_t pages(size_t bytes) { return round_up(std::max<size_t>(bytes, 1), page_bytes()); }

}  // namespace

BufferCache::BufferCache(std::shared_ptr<Segment> segment)
    : segment_(std::move(segment)), limit_(available_memory() / kKeptShareOfMemory / size_t(segment_->world_size())) {}

uint64_t BufferCache::take(size_t bytes, bool zeroed) {
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
            if (zeroed) std::memset(segment_->at(offset), 0, wanted);
            return offset;
        }
    }
    const uint64_t offset = reserve(wanted, wanted);
    segment_->heap().publish(offset, BlockKind::Buffer);
    return offset;
}

uint64_t BufferCache::reserve(size_t bytes, size_t committed) {
    try {
        return segment_->heap().reserve(bytes, committed);
    } catch (const OutOfMemory&) {
        if (fork_.is_child()) throw;
        std::unique_lock lock(mutex_);
        const std::vector<Kept> unused = drop_until(0);
        lock.unlock();
        if (unused.empty()) throw;
        release(unused);
    }
    return segment_->heap().reserve(bytes, committed);
}

void BufferCache::give_back(uint64_t offset, size_t bytes) {
    std::vector<Kept> unused{{pages(bytes), offset}};
    if (!fork_.is_child()) {
        std::lock_guard lock(mutex_);
        if (users_ && pages(bytes) <= limit_) {
            kept_.push_back(unused[0]);
            kept_bytes_ += pages(bytes);
            unused = drop_until(limit_);
        }
    }
    release(unused);
}

void BufferCache::join() {
    std::lock_guard lock(mutex_);
    ++users_;
}

void BufferCache::leave() {
    std::unique_lock lock(mutex_);
    if (--users_) return;
    const std::vector<Kept> unused = drop_until(0);
    lock.unlock();
    if (!fork_.is_child()) release(unused);
}

// Removes the longest unused buffers until at most `bytes` are kept, for the caller to release without the lock.
std::vector<BufferCache::Kept> BufferCache::drop_until(size_t bytes) {
    size_t count = 0;
    while (kept_bytes_ > bytes || kept_.size() - count > kMostKeptBuffers) kept_bytes_ -= kept_[count++].bytes;
    std::vector<Kept> dropped(kept_.begin(), kept_.begin() + ptrdiff_t(count));
    kept_.erase(kept_.begin(), kept_.begin() + ptrdiff_t(count));
    return dropped;
}

void BufferCache::release(const std::vector<Kept>& buffers) {
    for (const Kept& buffer : buffers) segment_->heap().release(buffer.offset);
}

}  // namespace rankwise
