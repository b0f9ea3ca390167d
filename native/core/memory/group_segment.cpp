#include "memory/group_segment.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/mix.hpp"
#include "kernels/non_temporal.hpp"
#include "memory/agreements.hpp"
#include "sync/waiter.hpp"

namespace rankwise {

namespace {

static_assert(std::has_single_bit(slot_bytes_for(1)) &&
              std::has_single_bit(slot_bytes_for(kMaxRanks)));  // positions are masked

// The offsets of the parts of a group segment of n ranks.
struct Layout {
    size_t channels, members, agreements, staging, slot, bytes;
    explicit Layout(size_t n) {
        channels = round_up(sizeof(GroupSegment) + n * sizeof(PeerSlot), kCacheLine);
        members = round_up(channels + n * n * sizeof(uint64_t), kCacheLine);
        agreements = round_up(members + n * sizeof(int32_t), kCacheLine);
        staging = round_up(agreements + agreements_bytes(n), page_bytes());
        slot = slot_bytes_for(int(n));
        bytes = staging + (n > 1 ? n * kSlots * slot : 0);
    }
};

}  // namespace

bool GroupSegment::intact() const {
    if (nranks < 1 || nranks > kMaxRanks) return false;
    const Layout layout{size_t(nranks)};
    if (bytes != layout.bytes || slot_bytes != layout.slot || staging != layout.staging ||
        channels != layout.channels || members != layout.members || agreements != layout.agreements)
        return false;  // the ranks may lie anywhere
    const auto* const ranks = reinterpret_cast<const int32_t*>(reinterpret_cast<const uint8_t*>(this) + layout.members);
    return std::all_of(ranks, ranks + nranks, [](int32_t rank) { return rank >= 0 && rank < kMaxRanks; });
}

GroupSegment* find_group(const Segment& segment, uint64_t offset) {
    const size_t room = segment.heap().block_bytes(offset, BlockKind::GroupSegment);
    auto* const group = segment.at<GroupSegment>(offset);
    return room >= sizeof(GroupSegment) && group->bytes <= room && group->intact() ? group : nullptr;
}

size_t group_segment_bytes(size_t n) { return Layout(n).bytes; }

uint64_t create_group_segment(Segment& segment, const std::vector<Member>& members) {
    const size_t n = members.size();
    const Layout layout(n);
    const uint64_t offset = segment.heap().reserve_kept(layout.bytes, layout.staging);
    GroupSegment& group = *segment.at<GroupSegment>(offset);
    group.bytes = layout.bytes;
    group.number = segment.new_group();
    group.nranks = int32_t(n);
    group.attached = uint32_t(n);
    group.slot_bytes = layout.slot;
    group.non_temporal_from = non_temporal_from();
    group.staging = layout.staging;
    group.channels = layout.channels;
    group.members = layout.members;
    group.agreements = layout.agreements;
    for (size_t i = 0; i < n; ++i) {
        reinterpret_cast<int32_t*>(group.base() + layout.members)[i] = members[i].world_rank;
        group.peers[i].process = members[i].process;
        if (const RankRecord& r = segment.record(members[i].world_rank); r.joined.load() == members[i].process + 1)
            group.peers[i].pid = r.pid.load();
    }
    segment.heap().publish(offset, BlockKind::GroupSegment);  // from now on mark_ended finds this group
    for (const Member& m : members) {
        if (!segment.ended(m.world_rank, m.process)) continue;
        if (const int lost = fail_for_ended_process(group, m.world_rank, m.process); lost >= 0)
            group.detach(lost);  // the creator still uses it
    }
    return offset;
}

namespace {

// A group that was made in a split which failed: some of its ranks, which have never learnt where it is, count as
// attached, and the others have left it.
void release_subgroup(Segment& segment, uint32_t number) {
    uint64_t unused = 0;
    segment.heap().visit(BlockKind::GroupSegment, [&](uint64_t offset) {
        GroupSegment& group = *segment.at<GroupSegment>(offset);
        for (int r = 0; group.number == number && group.intact() && r < group.nranks; ++r)
            if (group.detach(r)) unused = offset;
    });
    if (unused) release_group_segment(segment, unused);
}

}  // namespace

void release_group_segment(Segment& segment, uint64_t offset) {
    GroupSegment* const found = find_group(segment, offset);
    if (!found) return;  // it stays allocated: its parts cannot be found
    GroupSegment& group = *found;
    const Heap& heap = segment.heap();
    const auto release = [&](uint64_t block, BlockKind kind) {
        if (heap.block_bytes(block, kind))
            heap.release(block);  // else there is none, or a stray write has overwritten its offset
    };
    for (int r = 0; r < group.nranks; ++r) {
        release(group.peers[r].report.load(), BlockKind::Text);
        if (const uint32_t number = group.peers[r].subgroup.exchange(0)) release_subgroup(segment, number);
    }
    for (int from = 0; from < group.nranks; ++from)
        for (int to = 0; to < group.nranks; ++to) release(group.channel(from, to).load(), BlockKind::Channel);
    heap.keep(offset);
}

// The failure record's bits, from the lowest: 4 cause, 1 explained, 19 rank, 40 sequence.
Failure GroupSegment::failure() const {
    const uint64_t v = failure_record.load();
    const int rank = int(v >> 5 & 0x7ffff);
    if ((v & 15) > uint64_t(Cause::TimedOut) || rank >= nranks || !intact())
        return {Cause::PeerLost, 0, v >> 24,
                "left the group in an unknown way: its failure record was overwritten in "
                "shared memory, perhaps by an array access outside its bounds"};
    const char* const why = peers[rank].why;
    return {Cause(v & 15), rank, v >> 24, v & 16 ? std::string(why, strnlen(why, sizeof peers[rank].why)) : ""};
}

void fail_group(GroupSegment& group, Cause cause, int rank, uint64_t sequence,
                std::initializer_list<std::string_view> how) {
    PeerSlot& peer_slot = group.peers[rank];
    bool explained = !std::ranges::all_of(how, &std::string_view::empty);
    if (explained && peer_slot.explained.exchange(1)) {  // by another thread of this rank, or a stray write
        if (Waiter(kExplanationTimeout).check_every({}, [&] { return group.failed(); })) return;
        explained = false;
    }
    if (explained) {
        size_t length = 0;
        for (const std::string_view part : how)
            length += part.copy(peer_slot.why + length, sizeof peer_slot.why - 1 - length);
        peer_slot.why[length] = 0;
    }
    uint64_t none = 0;
    group.failure_record.compare_exchange_strong(
        none, uint64_t(cause) | uint64_t(explained) << 4 | uint64_t(rank) << 5 | sequence << 24);
    wake_all(group);  // even if another rank recorded a failure first: it may have died before it woke the sleepers
}

int fail_for_ended_process(GroupSegment& group, int world_rank, uint32_t process) {
    if (!group.intact()) return -1;
    for (int i = 0; i < group.nranks; ++i) {
        if (group.member()[i] != world_rank || group.peers[i].process != process) continue;
        if (!group.peers[i].has_left.load()) fail_group(group, Cause::PeerLost, i, group.peers[i].calls.load(), "");
        else if (group.asleep()) wake_all(group);  // it may have died while leaving, before it woke the sleepers
        return i;
    }
    return -1;
}

bool GroupSegment::asleep() const {
    if (sleepers.load() || !intact()) return true;
    return std::any_of(peers, peers + nranks,
                       [](const PeerSlot& peer_slot) { return peer_slot.message_sleepers.load() != 0; });
}

void wake_all(GroupSegment& group) {
    if (!group.intact()) return;  // who sleeps checks the failure record from time to time
    for (int i = 0; i < group.nranks; ++i) {
        PeerSlot& peer_slot = group.peers[i];
        futex_notify(peer_slot.notifications);
        futex_notify(peer_slot.message_notifications);
    }
}

}  // namespace rankwise
