#include "watch/call_checker.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "sync/engine_thread.hpp"
#include "watch/roll_call.hpp"

namespace rankwise {

namespace {

using namespace std::chrono_literals;

constexpr auto kLook = 100ms;
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
    std::shared_ptr<Segment> segment;
    int rank;
    CallNames names;
    CheckerOptions options;
    Embedding& program;

    // headline: what went wrong; details: whole lines.
    void report(const std::string& headline, const std::string& details, bool ends) const {
        std::string text = "rankwise.watch: " + headline + "\n" + details;
        if (segment->world_size() != options.world_size)
            text += "The job's ranks on other hosts are not shown: only the ranks of one host are compared.\n";
        text += ends ? "The job ends with status " + std::to_string(options.exit_status) + ".\n"
                     : "The job goes on; --abort would end it.\n";
        if (WatchedRank* const shared = ends ? watched_rank(*segment, 0) : nullptr)
            std::memcpy(shared->failure, headline.data(), std::min(headline.size(), kFailureText - 1));
        print(text);
        if (!ends) return;
        std::this_thread::sleep_for(kForwarded);
        _exit(options.exit_status);
    }

    // Ends the process if there is a mismatch that nobody has reported. Returns whether another thread or rank has.
    bool check_mismatch(CallComparer& comparer) const {
        const auto found = comparer.look();
        WatchedRank* const shared = found ? watched_rank(*segment, 0) : nullptr;
        if (!shared) return false;
        if (shared->mismatch_reported.exchange(1)) return true;
        std::this_thread::sleep_for(kArrivals);
        report("the ranks' calls do not match: call #" + std::to_string(found->number) + " on " + found->name,
               list_calls(*segment, names, *found), true);
        return true;
    }

    void check_hang() const {
        const uint64_t now = ticks();
        const double per_tick = double(ns_of_ticks(segment->header(), 1'000'000)) / 1e15;  // seconds
        const auto limit = uint64_t(options.timeout / per_tick);
        const uint64_t before = now > limit ? now - limit : 0;
        const auto longest = longest_call(*segment, rank, names, before);
        const auto call = longest ? longest : unfollowed_call(*segment, rank, before);
        WatchedRank* const shared = call ? watched_rank(*segment, 0) : nullptr;
        if (!shared) return;
        // A roll call shows all calls that have begun before it.
        uint64_t last = shared->roll_called.load();
        if (call->begin < last || !shared->roll_called.compare_exchange_strong(last, now)) return;
        const auto waited = std::to_string(int64_t(double(now - call->begin) * per_tick));
        const std::string what = describe_call(*segment, rank, names, *call);
        report(name_of_rank(*segment, rank) +
                   (longest ? " has been in " + what + " for " + waited + " s"
                            : " called " + what + " " + waited + " s ago, and not every rank has followed") +
                   ". Where each rank is:",
               roll_call(*segment, names, program), options.abort);
    }

    [[noreturn]] void run() const {
        CallComparer comparer(*segment, rank);
        for (;;) {
            std::this_thread::sleep_for(kLook);
            check_mismatch(comparer);
            check_hang();
        }
    }
};

}  // namespace

void start_checker(const CallWriter& writer, const CheckerOptions& options, Embedding& program) {
    const Checker checker{writer.segment(), writer.rank(), writer.names(), options, program};
    engine_thread([checker] { checker.run(); }).detach();
}

void check_at_end(const CallWriter& writer, const CheckerOptions& options, Embedding& program) {
    CallComparer comparer(*writer.segment(), writer.rank(), true);
    const Checker checker{writer.segment(), writer.rank(), writer.names(), options, program};
    if (!checker.check_mismatch(comparer)) return;
    std::this_thread::sleep_for(kReported);
    _exit(options.exit_status);
}

std::string why_ended(const Segment& segment) {
    const WatchedRank* const shared = watched_rank(segment, 0);
    return shared ? std::string(shared->failure, strnlen(shared->failure, kFailureText)) : "";
}

}  // namespace rankwise
