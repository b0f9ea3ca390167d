#include "failure/timeout_report.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace rankwise {

namespace {

// A report in the segment is a list of entries, each followed by its text; a zero ends it.
struct Entry {
    enum Kind : int32_t { None, Headline, Missing, State, Stack };
    Kind kind;
    int32_t rank;
    uint64_t bytes;  // of the text
};

// Ranks whose states differ only in the time: "in all_reduce #12 for 2.9 s", split before and after the 2.9.
struct SameState {
    std::string before, after;
    std::string least, most;  // seconds, as the texts give them; empty if the state has no time
    std::vector<int> ranks;
};

SameState parse_state(int rank, const std::string& state) {
    const std::string mark = " for ";
    const size_t begin = state.find(mark), end = begin == std::string::npos ? begin : state.find(" s", begin);
    if (end == std::string::npos) return {state, "", "", "", {rank}};
    const std::string time = state.substr(begin + mark.size(), end - begin - mark.size());
    return {state.substr(0, begin + mark.size()), state.substr(end), time, time, {rank}};
}

}  // namespace

uint64_t write_report(Segment& segment, const TimeoutReport& report) {
    std::string all;
    const auto add = [&](Entry::Kind kind, int rank, const std::string& text) {
        const Entry entry{kind, rank, text.size()};
        all.append(reinterpret_cast<const char*>(&entry), sizeof entry) += text;
    };
    add(Entry::Headline, 0, report.headline);
    for (int rank : report.missing) add(Entry::Missing, rank, "");
    for (const auto& [rank, state] : report.states) add(Entry::State, rank, state);
    for (const auto& [rank, stack] : report.stacks) add(Entry::Stack, rank, stack);
    try {
        const uint64_t offset = segment.heap().allocate(all.size(), BlockKind::Text);
        std::memcpy(segment.at(offset), all.data(), all.size());
        return offset;
    } catch (const Error&) {  // no memory: then each rank reports what it knows
        return 0;
    }
}

// Ends at what a stray write has overwritten.
TimeoutReport read_report(const Segment& segment, uint64_t offset) {
    TimeoutReport report;
    const std::string_view all(segment.at<char>(offset), segment.heap().block_bytes(offset, BlockKind::Text));
    Entry entry;
    for (size_t at = 0; at + sizeof entry <= all.size(); at += entry.bytes) {
        std::memcpy(&entry, all.data() + at, sizeof entry);
        at += sizeof entry;
        if (entry.bytes > all.size() - at) break;
        const std::string text(all.substr(at, entry.bytes));
        switch (entry.kind) {
        case Entry::Headline: report.headline = text; break;
        case Entry::Missing: report.missing.push_back(entry.rank); break;
        case Entry::State: report.states.emplace_back(entry.rank, text); break;
        case Entry::Stack: report.stacks.emplace_back(entry.rank, text); break;
        default: return report;
        }
    }
    return report;
}

std::string list_states(const RankTexts& states) {
    std::vector<SameState> groups;
    for (const auto& [rank, state] : states) {
        SameState mine = parse_state(rank, state);
        const auto same = std::find_if(groups.begin(), groups.end(), [&](const SameState& s) {
            return s.before == mine.before && s.after == mine.after;
        });
        if (same == groups.end()) {
            groups.push_back(std::move(mine));
            continue;
        }
        same->ranks.push_back(rank);
        if (std::atof(mine.least.c_str()) < std::atof(same->least.c_str())) same->least = mine.least;
        if (std::atof(mine.most.c_str()) > std::atof(same->most.c_str())) same->most = mine.most;
    }
    std::string text;
    for (const SameState& s : groups)
        text += "\n  " + list_ranks(s.ranks) + ": " + s.before + s.least + (s.least == s.most ? "" : " to " + s.most) +
                s.after;
    return text;
}

}  // namespace rankwise
