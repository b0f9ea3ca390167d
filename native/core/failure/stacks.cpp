#include "failure/stacks.hpp"

#include <unistd.h>

#include <cstring>

namespace rankwise {

namespace {

constexpr size_t kText = 32 << 10;
constexpr std::chrono::seconds kAnswerWithin{1};

// The last line of a text that is cut still begins a line.
std::string tail(const std::string& text) {
    if (text.size() < kText) return text;
    const size_t line = text.find('\n', text.size() - kText + 5);
    return "...\n" + text.substr(line == std::string::npos ? text.size() - kText + 5 : line + 1);
}

}  // namespace

void offer_stacks(Segment& segment, int rank) {
    RankRecord& r = segment.record(rank);
    if (!r.stacks.load()) r.stacks.store(segment.allocate(kText, BlockKind::Buffer));
}

bool await_question(Segment& segment, int rank) {
    RankRecord& r = segment.record(rank);
    for (;;) {
        const uint32_t asked = r.stacks_asked.load();
        if (!r.stacks.load()) return false;
        if (asked != r.stacks_told.load()) return true;
        futex_sleep(r.stacks_asked, asked, kLongestNap);
    }
}

void tell_stacks(Segment& segment, int rank, const std::string& text) {
    RankRecord& r = segment.record(rank);
    const uint32_t asked = r.stacks_asked.load();
    const uint64_t block = r.stacks.load();
    if (!block) return;
    const std::string kept = tail(text);
    std::memcpy(segment.at<char>(block), kept.c_str(), kept.size() + 1);
    r.stacks_told.store(asked);
}

void stop_stacks(Segment& segment, int rank) {
    RankRecord& r = segment.record(rank);
    const uint64_t block = r.stacks.exchange(0);
    if (!block) return;
    r.stacks_asked.fetch_add(1);
    futex_wake_all(r.stacks_asked);
    segment.release(block);
}

void ask_for_stacks(Segment& segment, const std::vector<int>& ranks) {
    for (int rank : ranks) {
        RankRecord& r = segment.record(rank);
        if (!r.stacks.load() || r.exited.load()) continue;
        r.stacks_asked.fetch_add(1);
        futex_wake_all(r.stacks_asked);
    }
    const auto until = Clock::now() + kAnswerWithin;
    for (int rank : ranks) {
        const RankRecord& r = segment.record(rank);
        while (r.stacks.load() && !r.exited.load() && r.stacks_told.load() != r.stacks_asked.load() && Clock::now() < until) usleep(500);
    }
}

std::optional<std::string> stacks_told(Segment& segment, int rank) {
    const RankRecord& r = segment.record(rank);
    const uint64_t block = r.stacks.load();
    if (!block) return std::nullopt;
    if (r.stacks_told.load() != r.stacks_asked.load()) return "no answer: it is stopped, or in code that holds its interpreter";
    std::string text(segment.at<char>(block), kText);
    return text.substr(0, text.find('\0'));
}

}  // namespace rankwise
