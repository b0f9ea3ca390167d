#include "watch/roll_call.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "failure/stacks.hpp"

namespace rankwise {

namespace {

constexpr std::chrono::seconds kStacks{5};  // to wait for the stacks of all ranks; nobody waits for the report

std::string seconds(const Segment& segment, uint64_t since) {
    const uint64_t now = ticks();
    char text[32];
    std::snprintf(text, sizeof text, "%.1f s",
                  double(ns_of_ticks(segment.header(), now > since ? now - since : 0)) / 1e9);
    return text;
}

template <class Visit> void visit_calls(const Segment& segment, int rank, const Visit& visit) {
    const auto visit_ring = [&](const WatchedComm& comm) {
        for (const WatchedCall& each : comm.ring)
            if (const auto call = read_call(each)) visit(*call);
        return false;
    };
    find_comm(segment, rank, visit_ring, 0);
}

std::string where(const Segment& segment, int rank, const CallNames& names) {
    std::vector<CallRecord> inside;
    std::optional<CallRecord> last;
    visit_calls(segment, rank, [&](const CallRecord& call) {
        if (!call.end) inside.push_back(call);
        else if (!last || call.end > last->end) last = call;
    });
    std::sort(inside.begin(), inside.end(), [](const CallRecord& a, const CallRecord& b) { return a.begin < b.begin; });
    std::string text;
    for (const CallRecord& call : inside)
        text += (text.empty() ? "in " : "; in another thread in ") + describe_call(segment, rank, names, call) +
                " for " + seconds(segment, call.begin);
    if (!inside.empty()) return text;
    if (!last) return "in no call, and has made none";
    return "in no call for " + seconds(segment, last->end) + "; its last was " +
           describe_call(segment, rank, names, *last);
}

std::string list_ranks(const Segment& segment, const std::vector<int>& ranks) {
    std::string text;
    for (const int rank : ranks) text += (text.empty() ? "" : ", ") + name_of_rank(segment, rank);
    return text;
}

}  // namespace

std::optional<CallRecord> longest_call(const Segment& segment, int rank, const CallNames& names, uint64_t before) {
    std::optional<CallRecord> longest;
    visit_calls(segment, rank, [&](const CallRecord& call) {
        const bool known = call.kind.operation < names.operations.size();
        if (known && !call.end && call.begin < before && (!longest || call.begin < longest->begin)) longest = call;
    });
    return longest;
}

std::optional<CallRecord> unfollowed_call(const Segment& segment, int rank, uint64_t before) {
    std::optional<CallRecord> last;
    const auto unfollowed = [&](WatchedComm& comm) {
        if (!comm.deferred.load()) return false;
        last = read_call(comm.at(comm.calls.load()));
        if (!last || last->begin >= before) return false;
        for (int other = 0; other < segment.world_size(); ++other)
            if (WatchedComm* const theirs = comm_by_id(segment, other, comm.id.load());
                theirs && theirs->calls.load() < last->number)
                return true;
        return false;
    };
    return find_comm(segment, rank, unfollowed) ? last : std::nullopt;
}

std::string describe_call(const Segment& segment, int rank, const CallNames& names, const CallRecord& call) {
    std::string text = to_string(call, names);
    const WatchedRank* const own = watched_rank(segment, rank);
    const WatchedComm* const comm = own && call.comm ? watched_comm(segment, *own, call.comm) : nullptr;
    const bool message = call.kind.operation < names.operations.size() && names.operations[call.kind.operation].message;
    if (comm && !message) text += " #" + std::to_string(call.number);
    if (comm) text += " on " + std::string(comm->name, strnlen(comm->name, kCommName));
    return text + " at " + (own ? site_of(*own, call.site) : "an unknown line");
}

std::string roll_call(Segment& segment, const CallNames& names, Embedding& program) {
    const std::vector<int> ranks = ranks_by_number(segment);
    std::string text;
    for (const int rank : ranks) {
        const int64_t process = segment.present_process(rank);
        text += "  " + name_of_rank(segment, rank) + ": ";
        if (process < 0 && segment.record(rank).joined.load())
            text += segment.how_it_ended(rank, 0, Embedding::none) + "; it was ";
        text += where(segment, rank, names) + "\n";
    }
    std::vector<std::pair<std::string, std::vector<int>>> stacks;  // each once, with the ranks that have it
    // The only rank of a host has nobody who would answer for it.
    const RankTexts answers =
        ranks.size() > 1 ? request_stacks(segment, ranks, kStacks) : RankTexts{{0, program.stacks()}};
    for (const auto& [rank, stack] : answers) {
        const auto same = std::find_if(stacks.begin(), stacks.end(),
                                       [&, &stack = stack](const auto& each) { return each.first == stack; });
        if (same != stacks.end()) same->second.push_back(rank);
        else stacks.push_back({stack, {rank}});
    }
    for (const auto& [stack, whose] : stacks) {
        const bool is_stack = stack.starts_with(' ');  // else it is the reason why there is none
        text += "  Python stack of " + list_ranks(segment, whose) + (is_stack ? ":\n" : ": ") + stack +
                (stack.ends_with('\n') ? "" : "\n");
    }
    return text;
}

}  // namespace rankwise
