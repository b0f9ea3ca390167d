#include "watch/call_comparer.hpp"

#include <algorithm>
#include <cstring>

namespace rankwise {

namespace {

constexpr size_t kMostCompared = 10'000;

}  // namespace

std::string difference(const CallRecord& a, const CallRecord& b) {
    const CallKind &x = a.kind, &y = b.kind;
    if (x.operation != y.operation) return "operation";
    if (x.root != y.root) return "root";
    if (x.reduction != y.reduction) return "op";
    // Elements of different types may match if they describe the same memory, but not if they are reduced.
    if (x.reduction != kNone && x.dtype != kNone && y.dtype != kNone && x.dtype != y.dtype) return "dtype";
    if (a.amount == kUnknownAmount || b.amount == kUnknownAmount) return "";
    const auto bytes = [](const CallRecord& call) {
        return call.kind.dtype < kDTypes ? call.amount * itemsize(DType(call.kind.dtype)) : call.amount;
    };
    return bytes(a) != bytes(b) ? "count" : "";
}

std::optional<CallComparer::Found> CallComparer::look() {
    std::optional<Found> found;
    find_comm(segment_, rank_, [&](WatchedComm& comm) {
        const uint64_t id = comm.id.load(std::memory_order_acquire);
        for (int other = with_all_ ? 0 : rank_ + 1; !found && other < segment_.world_size(); ++other)
            if (other != rank_) found = look(comm, id, other);
        return bool(found);
    });
    return found;
}

std::optional<CallComparer::Found> CallComparer::look(WatchedComm& own, uint64_t id, int other) {
    WatchedComm* const theirs = comm_by_id(segment_, other, id);
    if (!theirs) return std::nullopt;
    const uint64_t last = std::min(own.calls.load(), theirs->calls.load());
    if (compared_.size() == kMostCompared) compared_.clear();  // then the calls that are still there are compared again
    uint64_t& compared = compared_[{id, other}];
    // Of calls that are no longer there, the digests of the next ones tell whether they matched.
    const uint64_t from = std::max(compared + 1, last > kWatchedCalls ? last - kWatchedCalls + 1 : 1);
    for (uint64_t number = from; number <= last; ++number) {
        const auto a = read_call(own.at(number), number), b = read_call(theirs->at(number), number);
        if (a && b && (!difference(*a, *b).empty() || a->digest != b->digest)) {
            if (own.id.load() != id || theirs->id.load() != id) return std::nullopt;  // freed meanwhile
            return Found{id, number, std::string(own.name, strnlen(own.name, kCommName))};
        }
        // A call that is only being written is compared by the next look.
        if (number == last && !(a && b) && last - std::min(last, compared) < kWatchedCalls) break;
        compared = number;
    }
    return std::nullopt;
}

std::string list_calls(const Segment& segment, const CallNames& names, const CallComparer::Found& found) {
    std::optional<CallRecord> reference;
    std::string lines;
    for (const int rank : ranks_by_number(segment)) {
        WatchedComm* const comm = comm_by_id(segment, rank, found.comm);
        const auto call = comm ? read_call(comm->at(found.number), found.number) : std::nullopt;
        if (!call) continue;
        if (!reference) reference = call;
        const std::string differs = difference(*reference, *call);
        lines += "  " + name_of_rank(segment, rank) + ": " + to_string(*call, names) + " at " +
                 site_of(*watched_rank(segment, rank), call->site);
        if (!differs.empty()) lines += "   <-- other " + differs;
        else if (reference->digest != call->digest) lines += "   <-- an earlier call was another one";
        lines += "\n";
    }
    return lines;
}

}  // namespace rankwise
