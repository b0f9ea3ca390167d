#include "watch/watched_calls.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/mix.hpp"

namespace rankwise {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr auto release = std::memory_order_release;

std::string text_of(const Segment& segment, int rank, uint16_t index) {
    const WatchedRank* const own = watched_rank(segment, rank);
    return own && index < kTexts ? std::string(own->texts[index], strnlen(own->texts[index], kTextSize)) : "";
}

std::string number_or_any(int64_t number) { return number < 0 ? "any" : std::to_string(number); }

}  // namespace

void CallRecord::write(const WatchedCall& call) {
    const auto words = std::bit_cast<std::array<uint64_t, kWords>>(call);
    words_[0].store(0, relaxed);
    for (size_t i = 1; i < kWords; ++i) words_[i].store(words[i], release);  // not before the serial number changes
    words_[0].store(words[0], release);
}

std::optional<WatchedCall> CallRecord::call() const {
    std::array<uint64_t, kWords> words;
    for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(acquire);
    if (!words[0] || words_[0].load(relaxed) != words[0]) return std::nullopt;
    return std::bit_cast<WatchedCall>(words);
}

WatchedRank* watched_rank(const Segment& segment, int rank) {
    const uint64_t offset = segment.record(rank).extension.load(acquire);
    const bool whole = offset && segment.heap().block_bytes(offset, BlockKind::Extension) >= sizeof(WatchedRank);
    return whole ? segment.at<WatchedRank>(offset) : nullptr;
}

std::string to_string(const WatchedCall& call, const CallNames& names) {
    if (call.operation >= names.operations.size()) return "an unknown call";
    const CallNames::Operation& operation = names.operations[call.operation];
    std::string arguments;
    const auto add = [&](const std::string& name, const std::string& value) {
        arguments += (arguments.empty() ? "" : ", ") + name + "=" + value;
    };
    const bool has_root = !operation.root.empty();
    if (has_root && operation.message) add(operation.root, number_or_any(call.root));
    if (call.amount != kUnknownAmount) add(operation.message ? "tag" : "count", number_or_any(int64_t(call.amount)));
    if (call.dtype < kDTypes) add("dtype", name(DType(call.dtype)));
    if (call.reduction < names.reductions.size()) add("op", names.reductions[call.reduction]);
    if (has_root && !operation.message) add(operation.root, std::to_string(call.root));
    return operation.name + "(" + arguments + ")";
}

std::string name_of_rank(const Segment& segment, int rank) {
    const WatchedRank* const own = watched_rank(segment, rank);
    return own ? "rank " + std::to_string(own->number) : "rank number " + std::to_string(rank) + " of this host";
}

std::vector<int> ranks_by_number(const Segment& segment) {
    std::vector<int> ranks(size_t(segment.world_size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto number = [&](int rank) {
        const WatchedRank* const own = watched_rank(segment, rank);
        return own ? own->number : INT32_MAX;
    };
    std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return number(a) < number(b); });
    return ranks;
}

std::string line_of(const Segment& segment, const WatchedCall& call) {
    return call.site ? text_of(segment, call.rank, call.site) : "an unknown line";
}

std::string comm_of(const Segment& segment, const WatchedCall& call) {
    return text_of(segment, call.rank, call.comm_name);
}

CallWriter::CallWriter(std::shared_ptr<Segment> memory, int own_rank, int number, CallNames known)
    : segment(std::move(memory)), rank(own_rank), names(std::move(known)), tracer_(*segment, rank),
      free_texts_(kTexts - 1) {
    std::iota(free_texts_.rbegin(), free_texts_.rend(), uint16_t(1));  // 0 is an unknown one
    const uint64_t offset = segment->heap().allocate(sizeof(WatchedRank), BlockKind::Extension);
    own_ = segment->at<WatchedRank>(offset);
    own_->number = number;
    segment->record(rank).extension.store(offset, release);
}

uint16_t CallWriter::add_text(const std::string& text) {
    if (free_texts_.empty()) return 0;
    const uint16_t index = free_texts_.back();
    free_texts_.pop_back();
    // Of a long path the end says more.
    const std::string end = text.size() < kTextSize ? text : "..." + text.substr(text.size() - kTextSize + 4);
    std::memcpy(own_->texts[index], end.c_str(), end.size() + 1);
    return index;
}

uint16_t CallWriter::add_comm(uint64_t id, const std::string& name, bool deferred) {
    const uint16_t index = add_text(name);
    const uint32_t group = name == "COMM_WORLD" || !id ? 0 : uint32_t(id >> 33) | 1;
    if (group) segment->name_group(group, name);
    if (index) comms_[index] = {id, 0, 0, group, deferred};
    return index;
}

void CallWriter::remove_comm(uint16_t comm) {
    if (comm) free_texts_.push_back(comm);
}

uint32_t CallWriter::begin(uint16_t index, WatchedCall call, uint64_t bytes) {
    const CallNames::Operation& operation = names.operations[call.operation];
    Comm& comm = comms_[index];
    call.rank = uint16_t(rank);
    call.comm_name = index;
    call.begin = ticks();
    if (!operation.message) {
        call.comm = comm.id;
        call.number = ++comm.calls;
        call.deferred = comm.deferred;
        // Not every rank may know dtype and amount.
        const uint64_t compared = call.operation | call.reduction << 16 | uint64_t(uint32_t(call.root)) << 32;
        call.digest = comm.digest = mix(comm.digest, compared);
    }
    const bool ring = call.comm;
    WatchedRank::Ring& calls = own_->rings[ring];
    call.serial = calls.last.load(relaxed);
    // A call may be in progress for long; its record is kept.
    for (uint32_t tries = 0; calls.at(++call.serial).in_progress();)
        if (++tries == kWatchedCalls) return 0;
    calls.at(call.serial).write(call);
    calls.last.store(call.serial, release);

    const uint32_t begun = ring * kWatchedCalls + call.serial % kWatchedCalls;
    const Call traced = make_call(operation.traced, call.dtype < kDTypes ? DType(call.dtype) : DType::U8,
                                  call.reduction < kReduceOps ? ReduceOp(call.reduction) : ReduceOp::SUM, call.root);
    const int tag = !operation.message ? 0 : call.amount == kUnknownAmount ? -1 : int(call.amount);
    entries_[begun] = tracer_.begin(traced.what, comm.group, tag, call.number, bytes, call.begin);
    tracer_.moved(bytes);
    return begun + 1;
}

void CallWriter::end(uint32_t begun, bool failed) {
    if (!begun--) return;
    const uint64_t now = ticks();
    own_->rings[begun / kWatchedCalls].at(begun).end(now);
    TraceEntry* const entry = entries_[begun];
    if (!entry) return;
    const uint64_t took = now - entry->begin.load(relaxed);
    tracer_.waited(took);
    tracer_.end(entry, now, took, failed ? kFailed : 0);
}

}  // namespace rankwise
