#include "memory/group_memory.hpp"

namespace rankwise {

bool GroupMemory::try_begin(uint32_t now) {
    while (!(now & (kLocked | kClosed)))
        if (uses_.compare_exchange_weak(now, now | kLocked | kCall)) return true;
    return false;
}

bool GroupMemory::begin_locked() {
    for (uint32_t now = uses_.load(); !(now & kClosed);)
        if (uses_.compare_exchange_weak(now, now | kCall)) return true;
    return false;
}

bool GroupMemory::take_lease() {
    const bool inside = own_uses();
    for (uint32_t now = uses_.load(); inside || !(now & kClosed);)
        if (uses_.compare_exchange_weak(now, now + kLease)) return true;
    return false;
}

bool GroupMemory::try_begin_or_await() {
    if (try_begin()) return true;
    for (uint32_t now = uses_.load(); now & kLocked && !(now & kAwaited);)
        if (uses_.compare_exchange_weak(now, now | kAwaited)) break;
    return false;
}

void GroupMemory::close() {
    uses_.fetch_or(kClosed);
    futex_wake_all(uses_);  // those that wait for the lock
}

void GroupMemory::ended(uint32_t bits, uint32_t before) {
    if (bits & before & kLocked && before & kAwaited) {
        uses_.fetch_and(~kAwaited);
        futex_wake_all(uses_);
    }
    if (before & kClosed && bits & kUses && (before & kUses) == (bits & kUses)) release();
}

void GroupMemory::release() {
    GroupSegment& group = this->group();
    if (!group.intact()) return;
    for (int r = 0; r < group.nranks;
         ++r)  // a dead rank cannot detach itself; it is not the last, because this one is still attached
        if (r != rank_ && segment_->ended(group.member()[r], group.peers[r].process)) group.detach(r);
    if (group.detach(rank_)) release_group_segment(*segment_, offset_);
}

uint32_t GroupMemory::own_uses() const {
    uint32_t all = 0;
    for (const Use* use = Use::innermost; use; use = use->outer_)
        if (&use->memory_ == this) all += use->kind_;
    return all;
}

}  // namespace rankwise
