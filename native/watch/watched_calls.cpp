#include "watch/watched_calls.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/errors.hpp"
#include "base/mix.hpp"

namespace rankwise {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr auto release = std::memory_order_release;

std::string text_at(const char* text, size_t room) { return {text, strnlen(text, room)}; }

}  // namespace

WatchedRank* watched_rank(const Segment& segment, int rank) {
    const uint64_t offset = segment.record(rank).watched.load(acquire);
    const bool whole = offset && segment.heap().room(offset, BlockKind::Watched) >= sizeof(WatchedRank);
    return whole ? segment.at<WatchedRank>(offset) : nullptr;
}

WatchedComm* watched_comm(const Segment& segment, const WatchedRank& rank, uint32_t index) {
    const uint64_t offset = index < kWatchedComms ? rank.comms[index].load(acquire) : 0;
    const bool whole = offset && segment.heap().room(offset, BlockKind::Watched) >= sizeof(WatchedComm);
    return whole ? segment.at<WatchedComm>(offset) : nullptr;
}

std::optional<CallRecord> read_call(const WatchedCall& call, uint64_t number) {
    const uint64_t before = call.number.load(acquire);
    if (!before || before == kBeingWritten || (number && before != number)) return std::nullopt;
    const CallRecord record{before,
                            CallKind::unpack(call.kind.load(acquire)),
                            call.amount.load(acquire),
                            call.digest.load(acquire),
                            call.site.load(acquire),
                            call.comm.load(acquire),
                            call.begin.load(acquire),
                            call.end.load(acquire)};
    return call.number.load(relaxed) == before ? std::optional(record) : std::nullopt;
}

std::string to_string(const CallRecord& call, const CallNames& names) {
    const CallKind& kind = call.kind;
    if (kind.operation >= names.operations.size()) return "an unknown call";
    const CallNames::Operation& operation = names.operations[kind.operation];
    std::string arguments;
    const auto add = [&](const std::string& name, const std::string& value) {
        arguments += (arguments.empty() ? "" : ", ") + name + "=" + value;
    };
    if (operation.message) {
        const bool sends = operation.traced == Op::Send, receives = operation.traced == Op::Recv;
        if (sends || receives) {
            add(sends ? "dest" : "source", kind.root < 0 ? "any" : std::to_string(kind.root));
            if (call.amount != kUnknownAmount)
                add("tag", int64_t(call.amount) < 0 ? "any" : std::to_string(call.amount));
        }
        return operation.name + "(" + arguments + ")";
    }
    if (call.amount != kUnknownAmount) add("count", std::to_string(call.amount));
    if (kind.dtype < kDTypes) add("dtype", name(DType(kind.dtype)));
    if (kind.reduction < names.reductions.size()) add("op", names.reductions[kind.reduction]);
    if (operation.rooted) add("root", std::to_string(kind.root));
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

WatchedComm* comm_by_id(const Segment& segment, int rank, uint64_t id) {
    return find_comm(segment, rank, [&](const WatchedComm& comm) { return comm.id.load() == id; });
}

std::string site_of(const WatchedRank& rank, uint32_t site) {
    const std::string text = site && site < kCallSites ? text_at(rank.sites[site], kCallSiteText) : "";
    return text.empty() ? "an unknown line" : text;
}

CallWriter::CallWriter(std::shared_ptr<Segment> segment, int rank, int number, CallNames names)
    : segment_(std::move(segment)), rank_(rank), names_(std::move(names)), tracer_(*segment_, rank) {
    const uint64_t offset = segment_->heap().allocate(sizeof(WatchedRank), BlockKind::Watched);
    own_ = segment_->at<WatchedRank>(offset);
    own_->number = number;
    own_->sites_used.store(1, relaxed);  // 0 is an unknown line
    add_comm(0, "");
    segment_->record(rank).watched.store(offset, release);
}

uint32_t CallWriter::add_comm(uint64_t id, const std::string& name, bool deferred) {
    uint32_t index = own_->comms_used.load(relaxed);
    if (!free_.empty()) {
        index = free_.back();
        free_.pop_back();
    } else if (index == kWatchedComms) {
        return 0;
    } else {
        uint64_t offset = 0;
        try {
            offset = segment_->heap().allocate(sizeof(WatchedComm), BlockKind::Watched);
        } catch (const OutOfMemory&) {
            if (!index) throw;
            return 0;
        }
        comms_[index] = segment_->at<WatchedComm>(offset);
        own_->comms[index].store(offset, release);
        own_->comms_used.store(index + 1, release);
    }
    WatchedComm& comm = *comms_[index];
    for (WatchedCall& call : comm.ring) call.number.store(0, relaxed);
    comm.calls.store(0, relaxed);
    std::memset(comm.name, 0, kCommName);
    std::memcpy(comm.name, name.data(), std::min(name.size(), kCommName - 1));
    const uint32_t group = name == "COMM_WORLD" || !id ? 0 : uint32_t(id >> 33) | 1;
    comm.group.store(group, relaxed);
    comm.deferred.store(deferred, relaxed);
    if (group) segment_->name_group(group, name);
    comm.id.store(id, release);
    return index;
}

void CallWriter::remove_comm(uint32_t index) {
    if (!index) return;
    comms_[index]->id.store(0, release);
    free_.push_back(index);
}

uint32_t CallWriter::add_site(const std::string& text) {
    const uint32_t site = own_->sites_used.load(relaxed);
    if (site == kCallSites) return 0;
    // Of a long path the end says more.
    const std::string end = text.size() < kCallSiteText ? text : "..." + text.substr(text.size() - kCallSiteText + 4);
    std::memcpy(own_->sites[site], end.c_str(), end.size() + 1);
    own_->sites_used.store(site + 1, release);
    return site;
}

CallWriter::Begun CallWriter::begin(uint32_t index, CallKind kind, uint64_t amount, uint32_t site, uint64_t bytes) {
    const CallNames::Operation& operation = names_.operations[kind.operation];
    WatchedComm& comm = *comms_[operation.message ? 0 : index];
    const uint64_t now = ticks();
    uint64_t number = comm.calls.fetch_add(1, relaxed) + 1;
    WatchedCall* call = &comm.at(number);
    // A message may be in progress for long; its record is kept.
    for (uint32_t tries = 0; &comm == comms_[0] && call->number.load(relaxed) && !call->end.load(relaxed); ++tries) {
        if (tries == kWatchedCalls) return {};
        number = comm.calls.fetch_add(1, relaxed) + 1;
        call = &comm.at(number);
    }
    const uint64_t before = number > 1 ? comm.at(number - 1).digest.load(relaxed) : 0;
    CallKind compared = kind;
    compared.dtype = kNone;  // not every rank may know it
    call->number.store(kBeingWritten, relaxed);
    call->kind.store(kind.pack(), release);  // like the stores below: not before the number changes
    call->amount.store(amount, release);
    call->digest.store(mix(before, compared.pack()), release);
    call->site.store(site, release);
    call->comm.store(index, release);
    call->begin.store(now, release);
    call->end.store(0, release);
    call->number.store(number, release);
    Begun begun{call, nullptr};
    if (operation.traced != Op::None) {
        const Call traced =
            make_call(operation.traced, kind.dtype < kDTypes ? DType(kind.dtype) : DType::U8,
                      kind.reduction < kReduceOps ? ReduceOp(kind.reduction) : ReduceOp::SUM, kind.root);
        const bool message = operation.message;
        begun.entry = tracer_.begin(traced.what, comms_[index]->group.load(relaxed),
                                    message && amount != kUnknownAmount ? int(amount)
                                    : message                           ? -1
                                                                        : 0,
                                    message ? 0 : number, bytes, now);
        tracer_.moved(bytes);
    }
    return begun;
}

void CallWriter::end(const Begun& begun, bool failed) {
    const uint64_t now = ticks();
    if (begun.call) begun.call->end.store(now, release);
    if (!begun.entry) return;
    const uint64_t took = now - begun.entry->begin.load(relaxed);
    tracer_.waited(took);
    tracer_.end(begun.entry, now, took, failed ? kFailed : 0);
}

}  // namespace rankwise
