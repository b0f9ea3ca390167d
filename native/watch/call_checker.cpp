#include "watch/call_checker.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "sync/engine_thread.hpp"
#include "watch/call_comparer.hpp"
#include "watch/roll_call.hpp"

namespace rankwise {

namespace {

using namespace std::chrono_literals;

constexpr int kExitStatus = 1;
constexpr auto kLook = 100ms;
constexpr double kOften = 0.05;     // seconds between two comparisons
constexpr auto kArrivals = 200ms;   // for the other ranks' calls to be recorded before a mismatch is shown
constexpr auto kForwarded = 500ms;  // for the launcher to pass the report on: it drops what is left when a rank fails
constexpr auto kReported = 2s;      // for another thread or rank to report a mismatch and end the job

void print(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
        const ssize_t written = write(STDERR_FILENO, text.data() + at, text.size() - at);
        if (written > 0) at += size_t(written);
        else if (errno == EAGAIN) std::this_thread::sleep_for(1ms);
        else if (errno != EINTR) return;
    }
}

struct Checker {
    const CallWriter& writer;
    const CheckerOptions& options;
    Embedding& program;
    CallComparer comparer{*writer.segment};

    // headline: what went wrong; details: whole lines. ends: it ends the job.
    static constexpr bool kEnds = true;
    void report(WatchedRank& shared, const std::string& headline, const std::string& details, bool ends) const {
        std::string text = "rankwise.watch: " + headline + "\n" + details;
        if (writer.segment->world_size() != options.world_size)
            text += "The job's ranks on other hosts are not shown: only the ranks of one host are compared.\n";
        text += ends ? "The job ends with status " + std::to_string(kExitStatus) + ".\n"
                     : "The job goes on; --abort would end it.\n";
        if (ends) std::memcpy(shared.failure, headline.data(), std::min(headline.size(), kFailureText - 1));
        print(text);
        if (!ends) return;
        std::this_thread::sleep_for(kForwarded);
        _exit(kExitStatus);
    }

    // Ends the process if there is a mismatch that nobody has reported. Returns whether another thread or rank has.
    bool check_mismatch(WatchedRank& shared) {
        const auto found = comparer.look();
        if (!found) return false;
        if (shared.mismatch_reported.exchange(1)) return true;
        std::this_thread::sleep_for(kArrivals);
        report(shared,
               "the ranks' calls do not match: call #" + std::to_string(found->number) + " on " +
                   comm_of(*writer.segment, *found),
               list_calls(*writer.segment, writer.names, *found), kEnds);
        return true;
    }

    // Calls the roll if this call began longer ago than the timeout, and no roll call has shown it yet.
    struct Phrase {
        const char *before_call, *before_time, *after_time;
    };
    void check_duration(WatchedRank& shared, const WatchedCall& call, const Phrase& phrase) const {
        const double seconds = seconds_since(*writer.segment, call.begin);
        uint64_t last = shared.roll_called.load();
        if (seconds < options.timeout || call.begin < last) return;
        if (!shared.roll_called.compare_exchange_strong(last, ticks())) return;
        const std::string what = describe_call(*writer.segment, writer.names, call);
        const std::string waited = std::to_string(int64_t(seconds)) + " s";
        report(shared,
               name_of_rank(*writer.segment, call.rank) + phrase.before_call + what + phrase.before_time + waited +
                   phrase.after_time + ". Where each rank is:",
               roll_call(*writer.segment, writer.names, program), options.abort);
    }

    void look() {
        WatchedRank* const shared = watched_rank(*writer.segment, 0);
        if (!shared) return;
        uint64_t last = shared->looked.load();
        // One thread of the host compares the calls of all ranks, whichever comes first.
        if (seconds_since(*writer.segment, last) > kOften && shared->looked.compare_exchange_strong(last, ticks())) {
            check_mismatch(*shared);
            if (const auto found = comparer.unfollowed())
                check_duration(*shared, *found, {" called ", " ", " ago, and not every rank has followed"});
        }
        if (const auto call = longest_call(*writer.segment, writer.rank))
            check_duration(*shared, *call, {" has been in ", " for ", ""});
    }
};

}  // namespace

void start_checker(const CallWriter& writer, const CheckerOptions& options, Embedding& program) {
    engine_thread([&] {
        for (Checker checker{writer, options, program};; checker.look()) std::this_thread::sleep_for(kLook);
    }).detach();
}

void check_at_end(const CallWriter& writer, const CheckerOptions& options, Embedding& program) {
    WatchedRank* const shared = watched_rank(*writer.segment, 0);
    if (!shared || !Checker{writer, options, program}.check_mismatch(*shared)) return;
    std::this_thread::sleep_for(kReported);
    _exit(kExitStatus);
}

std::string why_ended(const Segment& segment) {
    const WatchedRank* const shared = watched_rank(segment, 0);
    return shared ? std::string(shared->failure, strnlen(shared->failure, kFailureText)) : "";
}

}  // namespace rankwise
