#include "trace/trace.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>

#include "base/errors.hpp"

namespace rankwise {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr auto release = std::memory_order_release;

// The times in a segment may be any numbers, and so are their sums and differences, which wrap around.
int64_t sum(int64_t a, int64_t b) { return int64_t(uint64_t(a) + uint64_t(b)); }
int64_t difference(int64_t a, int64_t b) { return int64_t(uint64_t(a) - uint64_t(b)); }
int64_t whole(double ns) { return int64_t(std::clamp(ns, -0x1p62, 0x1p62)); }

// ns per tick, from the clocks at the segment's creation and now.
double ns_per_tick(const SegmentHeader& h) {
    const ClockReading now = ClockReading::now();
    const uint64_t ticks = now.ticks - h.started.ticks;
    return ticks ? double(difference(now.monotonic, h.started.monotonic)) / double(ticks) : 1;
}

int64_t ns_since_epoch(const SegmentHeader& h, uint64_t ticks, double rate) {
    return sum(h.started.realtime, whole(double(int64_t(ticks - h.started.ticks)) * rate));
}

// Returns false if the entry is being written, or was reused for another operation while it was read.
bool read(const SegmentHeader& h, const TraceEntry& e, double rate, Operation& o) {
    const uint64_t stamp = e.stamp.load(acquire);
    if (!stamp || stamp == kBeingWritten) return false;
    const uint64_t end = e.end.load(acquire);  // before the fields that are complete only when the operation has ended
    const uint64_t what = e.what.load(acquire), group_and_tag = e.group_and_tag.load(acquire),
                   begin = e.begin.load(acquire);
    const uint64_t waited = e.waited.load(acquire);
    o.sequence = e.sequence.load(acquire);
    o.bytes = e.bytes.load(acquire);
    if (e.stamp.load(relaxed) != stamp) return false;
    const Call call{what, 0};
    const bool message = is_message(call.op());
    const int32_t root_or_peer = int32_t(what >> 32);
    o.number = stamp - 1;
    o.kind = call.op();
    o.group = uint32_t(group_and_tag);
    o.group_name = name_of_group(h, o.group);
    o.dtype = call.has(kElements) && size_t(call.dtype()) < kDTypes ? std::optional(call.dtype()) : std::nullopt;
    o.op = call.has(kReduction) ? std::optional(call.reduce()) : std::nullopt;
    o.root = call.has(kRoot) ? std::optional(int(root_or_peer)) : std::nullopt;
    o.peer = message ? std::optional(int(root_or_peer)) : std::nullopt;
    o.tag = message ? std::optional(int(int32_t(group_and_tag >> 32))) : std::nullopt;
    o.begin = ns_since_epoch(h, begin, rate);
    o.waited = whole(double(waited) * rate);
    o.end = end ? std::optional(ns_since_epoch(h, end, rate)) : std::nullopt;
    o.failed = what & kFailed;
    o.background = what & kBackground;
    o.part = what & kPart;
    o.on_stream = what & kOnStream;
    o.synchronous = what & kSynchronous;
    return true;
}

}  // namespace

TraceEntry* Tracer::begin(uint64_t what, uint32_t group, int tag, uint64_t sequence, uint64_t bytes, uint64_t at) {
    for (int tries = 0; tries < kTraced; ++tries) {
        const uint64_t number = record_.operations.fetch_add(1, relaxed);
        TraceEntry& e = ring_[number % kTraced];
        uint64_t stamp = e.stamp.load(acquire);
        if (stamp == kBeingWritten || (stamp && !e.end.load(relaxed))) continue;  // in progress
        // Only one thread gets the entry, even if this one was interrupted for so long that another reached it too.
        if (!e.stamp.compare_exchange_strong(stamp, kBeingWritten, relaxed)) continue;
        __builtin_prefetch(&ring_[(number + 2) % kTraced], 1);  // the ring does not fit the L1 cache
        e.what.store(part_ ? what | kPart : what, release);     // like the stores below: not before the stamp changes
        e.group_and_tag.store(group | uint64_t(uint32_t(tag)) << 32, release);
        e.sequence.store(sequence, release);
        e.bytes.store(bytes, release);
        e.begin.store(at, release);
        e.waited.store(0, release);
        e.end.store(0, release);
        e.stamp.store(number + 1, release);
        return &e;
    }
    return nullptr;
}

void Tracer::end(TraceEntry* e, uint64_t at, uint64_t waited, uint64_t flags) {
    if (!e || fork_.is_child()) return;
    if (flags) e->what.store(e->what.load(relaxed) | flags, relaxed);
    if (waited) e->waited.store(waited, relaxed);
    e->end.store(at, release);
}

void end_operations(const TracedSegment& segment, int rank) {
    TraceEntry* const ring = trace_of(segment, rank);
    for (TraceEntry* e = ring; e < ring + kTraced; ++e) {
        const uint64_t stamp = e->stamp.load(acquire);
        if (stamp == kBeingWritten) e->stamp.store(0, release);
        if (!stamp || stamp == kBeingWritten || e->end.load(relaxed)) continue;
        e->what.store(e->what.load(relaxed) | kFailed, relaxed);
        e->end.store(ticks(), release);
    }
}

int64_t ns_of_ticks(const SegmentHeader& h, uint64_t ticks) { return whole(double(ticks) * ns_per_tick(h)); }

std::vector<Operation> operations(const TracedSegment& segment, int rank) {
    const double rate = ns_per_tick(segment.header);
    const TraceEntry* ring = trace_of(segment, rank);
    std::vector<Operation> result;
    result.reserve(kTraced);
    for (int i = 0; i < kTraced; ++i) {
        Operation o;
        for (int tries = 0; tries < 100 && ring[i].stamp.load(relaxed); ++tries) {  // 0: unused
            if (!read(segment.header, ring[i], rate, o)) continue;
            result.push_back(o);
            break;
        }
    }
    std::sort(result.begin(), result.end(), [](const Operation& a, const Operation& b) { return a.number < b.number; });
    return result;
}

Whereabouts whereabouts(const TracedSegment& segment, int rank) {
    const std::vector<Operation> all = operations(segment, rank);
    const Operation *current = nullptr, *last = nullptr;
    const auto replaces = [](const Operation& o, const Operation* other, bool later) {
        return !other || (o.part == other->part ? later : other->part);
    };
    for (const Operation& o : all) {
        if (!o.end && !o.background && replaces(o, current, current && o.begin >= current->begin)) current = &o;
        if (o.end && replaces(o, last, last && *o.end >= *last->end)) last = &o;
    }
    const Operation* one = current ? current : last;
    if (!one) return {};
    const int64_t now = ns_since_epoch(segment.header, ticks(), ns_per_tick(segment.header));
    Whereabouts where{
        *one, current != nullptr, std::max<int64_t>(0, difference(now, current ? one->begin : *one->end)), {}};
    std::copy_if(all.begin(), all.end(), std::back_inserter(where.others),
                 [&](const Operation& o) { return !o.end && !o.part && &o != current; });
    return where;
}

std::string to_string(const Operation& o, uint32_t group) {
    std::string text = name(o.kind);
    if (o.peer) {
        text +=
            (o.kind == Op::Send ? " to " : " from ") + (*o.peer < 0 ? "any rank" : "rank " + std::to_string(*o.peer));
        text += *o.tag < 0 ? "" : ", tag " + std::to_string(*o.tag);
    } else if (o.sequence) {
        text += " #" + std::to_string(o.sequence);
    }
    if (o.group != group) text += o.group ? " of group " + o.group_name : " of all ranks";
    return text;
}

std::string to_string(const Whereabouts& where, uint32_t group) {
    if (!where.operation) return "outside any collective";
    const std::string what = to_string(*where.operation, group);
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, " for %.1f s", double(where.since) / 1e9);
    if (where.inside) return "in " + what + seconds;
    return std::string("outside any collective") + seconds + (where.begun() ? ", last was " + what : "");
}

SegmentView::SegmentView(int fd) {
    const size_t whole = sealed_bytes(fd);
    const auto map = [fd](size_t bytes) {
        void* const base = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED) throw BadArgument("fd: mapping the segment for reading failed");
        return base;
    };
    {
        const auto unmap = [](void* first) { munmap(first, sizeof(SegmentHeader)); };
        const std::unique_ptr<void, decltype(unmap)> first(map(sizeof(SegmentHeader)));
        const auto& h = *static_cast<const SegmentHeader*>(first.get());
        check_release(h, fd);
        world_size_ = h.world_size.load();
    }
    bytes_ = valid_world_size(world_size_) ? SegmentLayout(world_size_).heap : SIZE_MAX;
    if (bytes_ > whole)
        throw BadArgument("fd: " + std::to_string(fd) + " is a rankwise segment with an invalid header");
    base_ = map(bytes_);
}

SegmentView::~SegmentView() { munmap(base_, bytes_); }

RankState rank_state(const SegmentView& view, int rank) {
    const RankRecord& r = view.header().ranks[rank];
    const bool joined =
        r.joined.load() || r.operations.load();  // a rank that runs another backend only writes its trace
    const uint32_t processes_ended = r.ended.load(), latest = std::max(r.joined.load(), processes_ended);
    const uint64_t status = r.exit_status.load();
    const bool ended = processes_ended > 0 && processes_ended == latest;
    return {r.pid.load(),
            joined,
            ended,
            status >> 32 && status >> 32 == latest ? std::optional(int(int32_t(uint32_t(status)))) : std::nullopt,
            r.operations.load(),
            r.bytes.load(),
            ns_of_ticks(view.header(), r.waited.load()),
            whereabouts(view, rank)};
}

}  // namespace rankwise
