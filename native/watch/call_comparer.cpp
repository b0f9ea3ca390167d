#include "watch/call_comparer.hpp"

#include <algorithm>

namespace rankwise {

namespace {

constexpr size_t kMostKept = 20'000;

}  // namespace

std::string difference(const WatchedCall& a, const WatchedCall& b) {
    if (a.operation != b.operation) return "operation";
    if (a.root != b.root) return "root";
    if (a.reduction != b.reduction) return "op";
    // Elements of different types may match if they describe the same memory, but not if they are reduced.
    if (a.reduction != kNone && a.dtype != kNone && b.dtype != kNone && a.dtype != b.dtype) return "dtype";
    if (a.amount == kUnknownAmount || b.amount == kUnknownAmount) return "";
    const auto bytes = [](const WatchedCall& call) {
        return call.dtype < kDTypes ? call.amount * itemsize(DType(call.dtype)) : call.amount;
    };
    return bytes(a) != bytes(b) ? "count" : "";
}

std::optional<WatchedCall> CallComparer::look() {
    std::optional<WatchedCall> found;
    for (int rank = 0; rank < segment_.world_size(); ++rank) {
        const auto compare = [&](const WatchedCall& call) {
            if (call.deferred) deferred_[call.comm][rank] = call;
            WatchedCall& first = firsts_.try_emplace({call.comm, call.number}, call).first->second;
            // The digests tell whether the calls before matched, which may be no longer there.
            const bool differs = first.digest != call.digest || !difference(first, call).empty();
            if (differs && !found) found = first;
            if (first.amount == kUnknownAmount) first = call;
        };
        read_[size_t(rank)] = visit_calls(segment_, rank, kCompared, compare, read_[size_t(rank)]);
    }
    if (firsts_.size() > kMostKept) {  // what the ranks still keep is compared again
        firsts_.clear();
        deferred_.clear();
        read_.assign(read_.size(), 0);
    }
    return found;
}

std::optional<WatchedCall> CallComparer::unfollowed() const {
    std::optional<WatchedCall> found;
    for (const auto& [comm, last] : deferred_)
        for (const auto& [rank, call] : last) {
            const auto is_behind = [&, number = call.number](const auto& other) {
                return other.second.number < number;
            };
            const bool followed = std::none_of(last.begin(), last.end(), is_behind);
            if (!followed && (!found || call.begin < found->begin)) found = call;
        }
    return found;
}

std::string list_calls(const Segment& segment, const CallNames& names, const WatchedCall& found) {
    std::optional<WatchedCall> reference;
    std::string lines;
    for (const int rank : ranks_by_number(segment)) {
        std::optional<WatchedCall> own;
        if (rank == found.rank) own = found;  // which the ring may no longer have
        visit_calls(segment, rank, kCompared, [&](const WatchedCall& call) {
            if (call.comm == found.comm && call.number == found.number) own = call;
        });
        if (!own) continue;
        if (!reference) reference = own;
        const std::string differs = difference(*reference, *own);
        lines += "  " + name_of_rank(segment, rank) + ": " + to_string(*own, names) + " at " + line_of(segment, *own);
        if (!differs.empty()) lines += "   <-- other " + differs;
        else if (reference->digest != own->digest) lines += "   <-- an earlier call was another one";
        lines += "\n";
    }
    return lines;
}

}  // namespace rankwise
