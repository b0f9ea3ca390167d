#include "watch/roll_call.hpp"

#include <algorithm>
#include <cstdio>
#include <map>

#include "failure/stacks.hpp"

namespace rankwise {

namespace {

constexpr std::chrono::seconds kStacks{5};  // to wait for the stacks of all ranks; nobody waits for the report

std::string in_words(double seconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f s", seconds);
    return text;
}

std::string where(const Segment& segment, int rank, const CallNames& names) {
    std::map<uint64_t, WatchedCall> inside;  // by their begin
    WatchedCall last;
    for (const bool compared : {false, true})
        visit_calls(segment, rank, compared, [&](const WatchedCall& call) {
            if (!call.end) inside.emplace(call.begin, call);
            else if (call.end > last.end) last = call;
        });
    std::string text;
    for (const auto& [begin, call] : inside)
        text += (text.empty() ? "in " : "; in another thread in ") + describe_call(segment, names, call) + " for " +
                in_words(seconds_since(segment, begin));
    if (!text.empty()) return text;
    if (!last.serial) return "in no call, and has made none";
    return "in no call for " + in_words(seconds_since(segment, last.end)) + "; its last was " +
           describe_call(segment, names, last);
}

// Each stack once, with the ranks that have it.
std::string stacks_of(Segment& segment, const std::vector<int>& ranks, Embedding& program) {
    // The only rank of a host has nobody who would answer for it.
    const RankTexts answers =
        ranks.size() > 1 ? request_stacks(segment, ranks, kStacks) : RankTexts{{0, program.stacks()}};
    std::string text;
    for (auto answer = answers.begin(); answer != answers.end(); ++answer) {
        const std::string& stack = answer->second;
        const auto same = [&](const auto& other) { return other.second == stack; };
        if (std::any_of(answers.begin(), answer, same)) continue;
        std::string whose;
        for (const auto& [rank, theirs] : answers)
            if (theirs == stack) whose += (whose.empty() ? "" : ", ") + name_of_rank(segment, rank);
        const bool is_stack = stack.starts_with(' ');  // else it is the reason why there is none
        text += "  Python stack of " + whose + (is_stack ? ":\n" : ": ") + stack + (stack.ends_with('\n') ? "" : "\n");
    }
    return text;
}

}  // namespace

std::optional<WatchedCall> longest_call(const Segment& segment, int rank) {
    std::optional<WatchedCall> longest;
    for (const bool compared : {false, true})
        visit_calls(segment, rank, compared, [&](const WatchedCall& call) {
            if (!call.end && (!longest || call.begin < longest->begin)) longest = call;
        });
    return longest;
}

std::string describe_call(const Segment& segment, const CallNames& names, const WatchedCall& call) {
    const std::string comm = comm_of(segment, call);
    return to_string(call, names) + (call.number && !comm.empty() ? " #" + std::to_string(call.number) : "") +
           (comm.empty() ? "" : " on " + comm) + " at " + line_of(segment, call);
}

double seconds_since(const Segment& segment, uint64_t then) {
    const uint64_t now = ticks();
    return double(ns_of_ticks(segment.header(), now > then ? now - then : 0)) / 1e9;
}

std::string roll_call(Segment& segment, const CallNames& names, Embedding& program) {
    const std::vector<int> ranks = ranks_by_number(segment);
    std::string text;
    for (const int rank : ranks) {
        text += "  " + name_of_rank(segment, rank) + ": ";
        if (segment.present_process(rank) < 0 && segment.record(rank).joined.load())
            text += segment.await_how_it_ended(rank, 0, Embedding::none) + "; it was ";
        text += where(segment, rank, names) + "\n";
    }
    return text + stacks_of(segment, ranks, program);
}

}  // namespace rankwise
