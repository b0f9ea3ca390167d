#include "memory/group_segment.hpp"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/copy.hpp"

namespace rankwise {

namespace {

constexpr size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// Slots small enough that the slots in use by all ranks stay in the cache; large enough that
// synchronising costs little beside the copying.
constexpr size_t slot_bytes_for(int nranks) { return nranks <= 16 ? 128 << 10 : 64 << 10; }
static_assert(std::has_single_bit(slot_bytes_for(1)) && std::has_single_bit(slot_bytes_for(kMaxRanks)));  // places are masked

// Where the parts of a region of n ranks lie, from its start.
struct Layout {
    size_t channels, members, staging, slot, bytes;
    explicit Layout(size_t n) {
        channels = round_up(sizeof(Region) + n * sizeof(Seat), kCacheLine);
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

std::string Call::words() const {
    std::string text = name(op());
    if (!has_dtype()) return text + (has_root() ? "(root=" + std::to_string(root()) + ")" : "()");
    text += by_rank() ? "(counts#" + std::to_string(amount % 100000) : "(count=" + std::to_string(amount);
    text += std::string(", dtype=") + (uint64_t(dtype()) < kDTypes ? name(dtype()) : "?");
    if (reduces()) text += std::string(", op=") + name(reduce());
    if (has_root()) text += ", root=" + std::to_string(root());
    return text + ")";
}

size_t region_bytes(size_t n) { return Layout(n).bytes; }

uint64_t create_region(Segment& segment, const std::vector<int>& members) {
    const size_t n = members.size();
    const Layout layout(n);
    const uint64_t offset = segment.allocate(layout.bytes, BlockKind::Region);
    Region& region = *segment.at<Region>(offset);
    region.bytes = layout.bytes;
    region.nranks = int32_t(n);
    region.number = segment.header().groups.fetch_add(1);
    region.seated = uint32_t(n);
    region.slot_bytes = layout.slot;
    region.oversubscribed = segment.world_size() > usable_cores();
    region.stream_from = stream_from();
    region.staging = layout.staging;
    region.channels = layout.channels;
    region.members = layout.members;
    std::copy(members.begin(), members.end(), reinterpret_cast<int32_t*>(region.base() + layout.members));
    for (int member : members)  // a rank whose end was marked before it could be marked here
        if (segment.record(member).exited.load()) region_lost_rank(region, member);
    return offset;
}

// Of the verdict's bits, from the lowest: 4 cause, 1 explained, 19 rank, 40 sequence.
Failure Region::failure() const {
    const uint64_t v = verdict.load();
    const int rank = int(v >> 5 & 0x7ffff);
    return {Cause(v & 15), rank, v >> 24, v & 16 ? seats[rank].why : ""};
}

void fail_region(Region& region, Cause cause, int rank, uint64_t sequence, const std::string& how) {
    Seat& seat = region.seats[rank];
    const bool explained = !how.empty();
    if (explained) {
        if (seat.explained.exchange(1)) {  // by another thread of this rank, which is a few stores away
            while (!region.failed()) sched_yield();
            return;
        }
        const size_t length = std::min(how.size(), sizeof seat.why - 1);
        std::memcpy(seat.why, how.data(), length);
        seat.why[length] = 0;
    }
    uint64_t none = 0;
    region.verdict.compare_exchange_strong(none, uint64_t(cause) | uint64_t(explained) << 4 | uint64_t(rank) << 5 | sequence << 24);
    wake_all(region);  // also where another was faster: it may have died before it could
}

void region_lost_rank(Region& region, int world_rank) {
    for (int i = 0; i < region.nranks; ++i) {
        if (region.member()[i] != world_rank) continue;
        if (!region.seats[i].left.load()) fail_region(region, Cause::PeerLost, i, region.seats[i].calls.load(), "");
        else if (region.asleep()) wake_all(region);  // it may have died while it left, before it could
    }
}

bool Region::asleep() const {
    if (sleepers.load()) return true;
    return std::any_of(seats, seats + nranks, [](const Seat& seat) { return seat.mail_sleepers.load() != 0; });
}

void wake_all(Region& region) {
    for (int i = 0; i < region.nranks; ++i) {
        Seat& seat = region.seats[i];
        seat.bell.fetch_add(1);
        futex_wake_all(seat.bell);
        seat.mail.fetch_add(1);
        futex_wake_all(seat.mail);
    }
}

}  // namespace rankwise
