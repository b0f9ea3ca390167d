#include "memory/group_memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/errors.hpp"

namespace rankwise {

thread_local constinit const GroupMemory::Use* GroupMemory::Use::innermost = nullptr;

namespace {

constexpr bool kPoison = RANKWISE_POISON;

// With kPoison, a second mapping of the group's memory.
GroupSegment& view(const Segment& segment, uint64_t offset) {
    GroupSegment& shared = *segment.at<GroupSegment>(offset);
    if (!kPoison) return shared;
    void* const at = mmap(nullptr, shared.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd(), off_t(offset));
    if (at == MAP_FAILED) throw OutOfMemory(std::string("mapping a group's memory: ") + std::strerror(errno));
    return *static_cast<GroupSegment*>(at);
}

// The address range stays reserved, so that nothing else is ever mapped there.
void poison(GroupSegment& view, size_t bytes) {
    constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (kPoison && mmap(&view, bytes, PROT_NONE, kNothing, -1, 0) == MAP_FAILED) std::abort();
}

}  // namespace

GroupMemory::GroupMemory(std::shared_ptr<Segment> segment, uint64_t offset, int rank)
    : segment_(std::move(segment)), offset_(offset), rank_(rank), group_(view(*segment_, offset)) {}

bool GroupMemory::try_begin_or_register() {
    while (!try_begin()) {
        uint32_t now = uses_.load();
        if (now & kClosed) return false;
        if (now & kLocked && (now & kAwaited || uses_.compare_exchange_strong(now, now | kAwaited))) return false;
    }
    return true;
}

void GroupMemory::unlock() {
    if (--lock_depth_ > 0) return;
    lock_owner_ = std::thread::id();
    subtract(kLocked);
}

void GroupMemory::close() {
    if (uses_.fetch_or(kClosed) & kAwaited) futex_notify(unlocked_);
}

void GroupMemory::ended(uint32_t bits, uint32_t before) {
    if (bits & before & kLocked && before & kAwaited) {
        uses_.fetch_and(~kAwaited);
        futex_notify(unlocked_);
    }
    if (before & kClosed && bits & kUses && (before & kUses) == (bits & kUses)) release();
}

void GroupMemory::release() {
    if (fork_.is_child() || !group_.intact()) return;
    const size_t bytes = group_.bytes;
    for (int r = 0; r < group_.nranks;
         ++r)  // a dead rank cannot detach itself; it is not the last, because this one is still attached
        if (r != rank_ && segment_->ended(group_.member()[r], group_.peers[r].process)) group_.detach(r);
    const bool last = group_.detach(rank_);
    poison(group_, bytes);
    if (last) release_group_segment(*segment_, offset_);
}

uint32_t GroupMemory::own_uses() const {
    uint32_t all = 0;
    for (const Use* use = Use::innermost; use; use = use->outer_)
        if (&use->memory_ == this) all += use->bits_ & kUses;
    return all;
}

}  // namespace rankwise
