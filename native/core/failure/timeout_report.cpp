#include "failure/timeout_report.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace rankwise {

namespace {

// Serialises numbers and texts.
class Writer {
public:
    void add(uint64_t number) { bytes_.append(reinterpret_cast<const char*>(&number), sizeof number); }
    void add(const std::string& text) {
        add(text.size());
        bytes_ += text;
    }
    void add(const RankTexts& texts) {
        add(texts.size());
        for (const auto& [rank, text] : texts) add(uint64_t(rank)), add(text);
    }
    const std::string& bytes() const { return bytes_; }

private:
    std::string bytes_;
};

// Reads what a Writer has written; behind the end, and behind what a stray write has overwritten, zeros and empty
// texts.
class Reader {
public:
    Reader(const uint8_t* at, size_t bytes) : at_(at), left_(bytes) {}
    uint64_t number() {
        uint64_t value = 0;
        if (const uint8_t* const bytes = next(sizeof value)) std::memcpy(&value, bytes, sizeof value);
        return value;
    }
    std::string text() {
        const uint64_t size = number();
        const uint8_t* const bytes = next(size);
        return bytes ? std::string(reinterpret_cast<const char*>(bytes), size) : "";
    }
    std::vector<int> ranks() {
        std::vector<int> value;
        for (uint64_t count = number(); count > 0 && left_; --count) value.push_back(int(number()));
        return value;
    }
    RankTexts rank_texts() {
        RankTexts value;
        for (uint64_t count = number(); count > 0 && left_; --count) {
            const int rank = int(number());
            value.emplace_back(rank, text());
        }
        return value;
    }

private:
    const uint8_t* next(uint64_t bytes) {
        if (bytes > left_) left_ = 0;
        if (!left_) return nullptr;
        left_ -= bytes;
        return std::exchange(at_, at_ + bytes);
    }
    const uint8_t* at_;
    uint64_t left_;
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
    Writer writer;
    writer.add(report.headline);
    writer.add(report.missing.size());
    for (int rank : report.missing) writer.add(uint64_t(rank));
    writer.add(report.states);
    writer.add(report.stacks);
    try {
        const uint64_t offset = segment.heap().allocate(writer.bytes().size(), BlockKind::Text);
        std::memcpy(segment.at(offset), writer.bytes().data(), writer.bytes().size());
        return offset;
    } catch (const Error&) {  // no memory: then each rank reports what it knows
        return 0;
    }
}

TimeoutReport read_report(const Segment& segment, uint64_t offset) {
    Reader reader(segment.at(offset), segment.heap().room(offset, BlockKind::Text));
    TimeoutReport report;
    report.headline = reader.text();
    report.missing = reader.ranks();
    report.states = reader.rank_texts();
    report.stacks = reader.rank_texts();
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
