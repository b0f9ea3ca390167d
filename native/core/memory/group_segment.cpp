#include "memory/group_segment.hpp"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/copy.hpp"

namespace rankwise {

namespace {

constexpr size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// Small enough that the slots that all ranks use stay in the cache; large enough that synchronising costs little
// compared with copying.
constexpr size_t slot_bytes_for(int nranks) { return nranks <= 16 ? 128 << 10 : 64 << 10; }
static_assert(std::has_single_bit(slot_bytes_for(1)) && std::has_single_bit(slot_bytes_for(kMaxRanks)));  // positions are masked

// The offsets of the parts of a group segment of n ranks.
struct Layout {
    size_t channels, members, staging, slot, bytes;
    explicit Layout(size_t n) {
        channels = round_up(sizeof(GroupSegment) + n * sizeof(PeerSlot), kCacheLine);
        members = round_up(channels + n * n * sizeof(uint64_t), kCacheLine);
        staging = round_up(members + n * sizeof(int32_t), 4096);
        slot = slot_bytes_for(int(n));
        bytes = staging + (n > 1 ? n * kSlots * slot : 0);
    }
};

}  // namespace

const char* name(Op op) {
    constexpr const char* names[] = {
        "none", "barrier", "all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter",
        "reduce_scatter", "all_to_all", "all_gather_v", "gather_v", "scatter_v", "reduce_scatter_v",
        "all_to_all_v", "split", "send", "recv", "sync", "close", "init", "scatter", "scan", "exscan"};
    return size_t(op) < std::size(names) ? names[size_t(op)] : "unknown";
}

Call make_call(Op op, DType dtype, ReduceOp reduce, int root, uint64_t amount) {
    return {uint64_t(op) | uint64_t(dtype) << 8 | uint64_t(reduce) << 16 | uint64_t(uint32_t(root)) << 32, amount};
}

uint64_t Description::digest() const {
    uint64_t h = uint64_t(operation) << 8 | uint64_t(dims);
    const auto mix = [&h](uint64_t word) { h = (h ^ word) * 0x9e3779b97f4a7c15, h ^= h >> 29; };
    mix(0x5eed);
    for (int i = 0; i < dims; ++i) mix(uint64_t(dim[i]));
    return h | 1;
}

bool Call::has_dtype() const {
    return (op() >= Op::AllReduce && op() <= Op::AllToAllV) || op() == Op::Send || op() == Op::Recv;
}

bool Call::reduces() const {
    return op() == Op::AllReduce || op() == Op::Reduce || op() == Op::ReduceScatter || op() == Op::ReduceScatterV;
}

bool Call::has_root() const {
    return op() == Op::Broadcast || op() == Op::Reduce || op() == Op::Gather || op() == Op::Scatter || op() == Op::GatherV ||
           op() == Op::ScatterV || op() == Op::ScatterDescribed;
}

std::string Call::to_string() const {
    std::string text = name(op());
    if (!has_dtype()) return text + (has_root() ? "(root=" + std::to_string(root()) + ")" : "()");
    text += by_rank() ? "(counts#" + std::to_string(amount % 100000) : "(count=" + std::to_string(amount);
    text += std::string(", dtype=") + (uint64_t(dtype()) < kDTypes ? name(dtype()) : "?");
    if (reduces()) text += std::string(", op=") + name(reduce());
    if (has_root()) text += ", root=" + std::to_string(root());
    return text + ")";
}

size_t group_segment_bytes(size_t n) { return Layout(n).bytes; }

uint64_t create_group_segment(Segment& segment, const std::vector<int>& members) {
    const size_t n = members.size();
    const Layout layout(n);
    const uint64_t offset = segment.allocate(layout.bytes, BlockKind::GroupSegment);
    GroupSegment& group = *segment.at<GroupSegment>(offset);
    group.bytes = layout.bytes;
    group.nranks = int32_t(n);
    group.number = segment.header().groups.fetch_add(1);
    group.attached = uint32_t(n);
    group.slot_bytes = layout.slot;
    group.oversubscribed = segment.world_size() > usable_cores();
    group.non_temporal_from = non_temporal_from();
    group.staging = layout.staging;
    group.channels = layout.channels;
    group.members = layout.members;
    std::copy(members.begin(), members.end(), reinterpret_cast<int32_t*>(group.base() + layout.members));
    for (int member : members)  // mark_exited has not seen this group if the rank ended before
        if (segment.record(member).exited.load()) group_lost_rank(group, member);
    return offset;
}

// The failure record's bits, from the lowest: 4 cause, 1 explained, 19 rank, 40 sequence.
Failure GroupSegment::failure() const {
    const uint64_t v = failure_record.load();
    const int rank = int(v >> 5 & 0x7ffff);
    return {Cause(v & 15), rank, v >> 24, v & 16 ? peers[rank].why : ""};
}

void fail_group(GroupSegment& group, Cause cause, int rank, uint64_t sequence, const std::string& how) {
    PeerSlot& peer_slot = group.peers[rank];
    const bool explained = !how.empty();
    if (explained) {
        if (peer_slot.explained.exchange(1)) {  // another thread of this rank is a few stores ahead
            while (!group.failed()) sched_yield();
            return;
        }
        const size_t length = std::min(how.size(), sizeof peer_slot.why - 1);
        std::memcpy(peer_slot.why, how.data(), length);
        peer_slot.why[length] = 0;
    }
    uint64_t none = 0;
    group.failure_record.compare_exchange_strong(none, uint64_t(cause) | uint64_t(explained) << 4 | uint64_t(rank) << 5 | sequence << 24);
    wake_all(group);  // even if another rank recorded a failure first: it may have died before it woke the sleepers
}

void group_lost_rank(GroupSegment& group, int world_rank) {
    for (int i = 0; i < group.nranks; ++i) {
        if (group.member()[i] != world_rank) continue;
        if (!group.peers[i].left.load()) fail_group(group, Cause::PeerLost, i, group.peers[i].calls.load(), "");
        else if (group.asleep()) wake_all(group);  // it may have died while leaving, before it woke the sleepers
    }
}

bool GroupSegment::asleep() const {
    if (sleepers.load()) return true;
    return std::any_of(peers, peers + nranks, [](const PeerSlot& peer_slot) { return peer_slot.message_sleepers.load() != 0; });
}

void wake_all(GroupSegment& group) {
    for (int i = 0; i < group.nranks; ++i) {
        PeerSlot& peer_slot = group.peers[i];
        peer_slot.notifications.fetch_add(1);
        futex_wake_all(peer_slot.notifications);
        peer_slot.message_notifications.fetch_add(1);
        futex_wake_all(peer_slot.message_notifications);
    }
}

}  // namespace rankwise
