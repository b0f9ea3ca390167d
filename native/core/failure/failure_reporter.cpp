#include "failure/failure_reporter.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>

#include "base/text.hpp"
#include "failure/deadlock.hpp"
#include "failure/stacks.hpp"
#include "failure/termination.hpp"
#include "stream/stream.hpp"

namespace rankwise {

namespace {

const char* const kNoCall = "nothing yet";

std::string host_name() {
    char name[256] = {};
    return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

// A call as other ranks see it.
struct SeenCall {
    Call call;
    std::string operation, shape;  // from its Description: "exscan", "(3, 2)"; empty if it had none
    bool described = true;         // false if it may have had a Description that a later call has overwritten
    bool operator==(const SeenCall& other) const {
        return call == other.call &&
               (!described || !other.described || (operation == other.operation && shape == other.shape));
    }
    // "exscan: reduce_scatter(count=3, dtype=float32, op=sum, shape=(3, 1))"
    std::string to_string() const {
        std::string text = call.to_string();
        if (!shape.empty()) text.insert(text.size() - 1, ", shape=" + shape);
        return (operation.empty() ? "" : operation + ": ") + text;
    }
};

std::string shape_text(const LastDescription& d) {
    const uint32_t dims = d.dims.load(std::memory_order_relaxed);
    if (dims == 1) return "";
    std::string list;
    for (uint32_t i = 0; i < std::min<uint32_t>(dims, LastDescription::kDims); ++i)
        add_to_list(list, std::to_string(d.dim[i].load(std::memory_order_relaxed)));
    if (dims > LastDescription::kDims) add_to_list(list, "...");
    return "(" + list + ")";
}

// Call `number` of a rank, with its Description if that has not been overwritten.
SeenCall with_description(const Call& call, uint64_t number, const LastDescription& latest) {
    const uint64_t described_call = latest.number.load(std::memory_order_acquire);
    if (described_call != number) return {call, "", "", described_call < number};
    const Op operation = Op(latest.operation.load(std::memory_order_relaxed));
    SeenCall found{call, operation == Op::None ? "" : name(operation), shape_text(latest)};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (latest.number.load(std::memory_order_relaxed) != number) return {call, "", "", false};
    return found;
}

// What differs between two calls: "count, dtype".
std::string differences(const SeenCall& one, const SeenCall& other) {
    const Call &a = one.call, &b = other.call;
    if (a.op() != b.op() || (one.described && other.described && one.operation != other.operation)) return "operation";
    std::string text;
    auto add = [&](bool differs, const char* what) {
        if (differs) add_to_list(text, what);
    };
    add(a.amount != b.amount, a.has(kCounts) ? "counts" : a.has(kRow) ? "row" : "count");
    add(a.has(kElements) && a.dtype() != b.dtype(), "dtype");
    add(a.has(kReduction) && a.reduce() != b.reduce(), "op");
    add(a.has(kRoot) && a.root() != b.root(), "root");
    add(one.described && other.described && one.shape != other.shape, "shape");
    return text;
}

using Numbered = std::map<uint64_t, SeenCall>;  // a rank's latest calls, by their number in the group

// The most frequent call with this number; in a tie, the lowest rank's.
const SeenCall* most_frequent(const std::vector<Numbered>& calls, uint64_t number) {
    const SeenCall* best = nullptr;
    size_t most = 0;
    for (const Numbered& mine : calls) {
        const auto call = mine.find(number);
        if (call == mine.end()) continue;
        size_t same = 0;
        for (const Numbered& theirs : calls)
            if (const auto other = theirs.find(number); other != theirs.end()) same += other->second == call->second;
        if (same <= most) continue;
        best = &call->second;
        most = same;
    }
    return best;
}

// The number of the first call that is known to differ between ranks; if there is none, the latest call's.
uint64_t first_different(const std::vector<Numbered>& calls) {
    Numbered one_of_each;
    uint64_t first = UINT64_MAX;
    for (const Numbered& mine : calls)
        for (const auto& [number, call] : mine)
            if (const auto [other, fresh] = one_of_each.emplace(number, call); !fresh && !(other->second == call))
                first = std::min(first, number);
    if (first != UINT64_MAX) return first;
    return one_of_each.empty() ? 1 : one_of_each.rbegin()->first;
}

// A rank's latest calls that its step headers still hold.
Numbered recent_calls(const PeerSlot& peer) {
    std::map<uint64_t, const StepHeader*> by_step;
    for (const StepHeader& header : peer.headers)
        if (const uint64_t posted = header.posted.load()) by_step[posted] = &header;
    Numbered calls;
    uint64_t number = peer.calls.load();
    for (auto header = by_step.rbegin(); header != by_step.rend() && number > 0; ++header) {
        calls.emplace(number, with_description(header->second->call(), number, peer.last_description));
        const auto previous = std::next(header);
        if (previous != by_step.rend() && previous->second->history.load() != header->second->history.load()) --number;
    }
    return calls;
}

// Each rank's latest calls, those that it made after the group had failed included.
std::vector<Numbered> calls_of(const GroupSegment& group, int n) {
    std::vector<Numbered> calls;
    for (int p = 0; p < n; ++p) calls.push_back(recent_calls(group.peers[p]));
    const uint64_t first = first_different(calls);
    for (int p = 0; p < n; ++p) {
        const PeerSlot& peer = group.peers[p];
        if (peer.site.state.load() == CallSite::State::Complete && peer.site.number == first)
            calls[size_t(p)].emplace(first, with_description(peer.site.call, first, peer.last_description));
    }
    return calls;
}

std::string call_site_of(const PeerSlot& peer) {
    if (peer.site.state.load() != CallSite::State::Complete) return "";
    return std::string(peer.site.text, strnlen(peer.site.text, sizeof peer.site.text));
}

}  // namespace

void FailureReporter::throw_failure() { throw_failure(name(t_.log.op()), int64_t(t_.log.number()), t_.log.options()); }

void FailureReporter::throw_lost(int peer) { throw_lost(peer, name(t_.log.op()), int64_t(t_.log.number())); }

void FailureReporter::throw_lost(int peer, const std::string& operation, int64_t sequence) {
    fail_group(t_.group, Cause::PeerLost, peer, t_.group.peers[peer].calls.load(), "");
    throw_failure(operation, sequence);
}

void FailureReporter::throw_mismatch() {
    fail_group(t_.group, Cause::Mismatch, t_.rank, t_.log.number(), "");
    throw_failure();
}

void FailureReporter::throw_overwritten(const char* what, int peer) {
    throw_overwritten(std::string(what) + " of rank " + std::to_string(peer), name(t_.log.op()),
                      int64_t(t_.log.number()));
}

void FailureReporter::throw_overwritten(const std::string& what, const std::string& operation, int64_t sequence) {
    fail_group(
        t_.group, Cause::PeerLost, t_.rank, t_.log.number(),
        "found that " + what + " had been overwritten in shared memory, perhaps by an array access outside its bounds");
    throw_failure(operation, sequence);
}

void FailureReporter::refuse(const Call& call, const CallOptions& options) {
    refused_ = call;
    throw_failure(name(call.op()), int64_t(t_.log.number()) + 1, options);
}

void FailureReporter::compare_last() {
    makes_calls_ = false;
    if (t_.group.failed() && t_.group.failure().cause == Cause::Mismatch && !mismatch_thrown_)
        report_mismatch("");  // found by a peer
    if (!t_.group.failed() && !t_.steps.last_calls_agree()) throw_mismatch();
}

void FailureReporter::throw_timed_out(uint64_t steps) {
    // The awaited ranks that have not begun the operation are to blame, if there are any: the other awaited ranks may
    // be waiting for them too.
    const uint64_t number = t_.log.number();
    std::vector<int> behind, absent;
    for (int p = 0; p < t_.n; ++p) {
        if (p == t_.rank || t_.group.peers[p].headers[(steps - 1) % kHeaders].posted.load() >= steps) continue;
        behind.push_back(p);
        if (t_.group.peers[p].calls.load() < number) absent.push_back(p);
    }
    const double timeout = t_.steps.timeout;
    TimeoutReport report;
    report.missing = absent.empty() ? behind : absent;
    report.headline = list_ranks(report.missing) + of_group() +
                      (absent.empty() ? " did not finish " : " did not reach ") + name(t_.log.op()) + " #" +
                      std::to_string(number) + " within the timeout of " + seconds(timeout) + deadlock(timeout);
    report.states = states();
    report.stacks = request_stacks(report.missing);
    std::string missing;
    for (int p : report.missing) add_to_list(missing, std::to_string(p), ",");
    t_.group.peers[t_.rank].report.store(write_report(t_.segment, report));
    fail_group(t_.group, Cause::TimedOut, t_.rank, number, missing);
    throw_failure();
}

std::string FailureReporter::of_group() const {
    return t_.group.number ? " of group " + name_of_group(t_.segment.header(), t_.group.number) : "";
}

RankTexts FailureReporter::states() const {
    RankTexts result;
    for (int p = 0; p < t_.n; ++p) {
        const int world_rank = t_.members[size_t(p)].world_rank;
        std::string text;
        if (t_.segment.record(world_rank).joined.load() <= t_.members[size_t(p)].process) text = "has not joined";
        else if (t_.ended(p)) text = t_.await_how_it_ended(p);
        else text = to_string(whereabouts(t_.segment, world_rank), t_.group.number);
        result.emplace_back(p, text);
    }
    return result;
}

RankTexts FailureReporter::request_stacks(const std::vector<int>& peers) const {
    std::vector<int> world;
    for (int p : peers) world.push_back(t_.members[size_t(p)].world_rank);
    RankTexts result = rankwise::request_stacks(t_.segment, world);
    for (auto& [r, text] : result) r = peers[size_t(std::find(world.begin(), world.end(), r) - world.begin())];
    return result;
}

std::string FailureReporter::deadlock(double limit) const {
    if (t_.log.part()) return "";             // the ranks also wait in the operations of which this is a part
    if (limit < t_.steps.timeout) return "";  // the program means to come back later
    return describe_deadlock(awaited_ranks(t_.segment, t_.group, t_.members, limit), t_.rank);
}

std::string FailureReporter::certain_deadlock() const {
    return t_.log.part() ? "" : rankwise::certain_deadlock(t_.segment, t_.group, t_.members, t_.rank);
}

// Publishes, once for each group, where in the program this rank made the call that failed, and the call itself if it
// was refused.
void FailureReporter::publish_call_site() {
    CallSite& site = t_.group.peers[t_.rank].site;
    CallSite::State none{};
    if (!site.state.compare_exchange_strong(none, CallSite::State::BeingWritten)) return;
    std::string text = makes_calls_ ? Stream::call_site(t_.program) : "";
    if (text.size() >= sizeof site.text) text = "..." + text.substr(text.size() - sizeof site.text + 4);
    text.copy(site.text, sizeof site.text - 1);
    if (refused_.op() != Op::None) {
        site.call = refused_;
        site.number = t_.log.begun() + 1;
    }
    site.state.store(CallSite::State::Complete);
}

// Ranks that are in a call of this group will soon notice that it failed: wait briefly until they have published where
// they made the call.
void FailureReporter::await_call_sites() const {
    Waiter waiter(kCallSiteTimeout);
    for (int p = 0; p < t_.n; ++p) {
        const int world_rank = t_.members[size_t(p)].world_rank;
        waiter.check_every(std::chrono::microseconds(500), [&] {
            if (t_.group.peers[p].site.state.load() == CallSite::State::Complete) return true;
            const Whereabouts where = whereabouts(t_.segment, world_rank);
            return !where.inside || where.operation->group != t_.group.number || t_.ended(p);
        });
    }
}

void FailureReporter::report_mismatch(const std::string& writers_warning) {
    mismatch_thrown_ = true;
    constexpr uint64_t kCallsShown = 3;  // of a rank
    publish_call_site();
    await_call_sites();
    const std::vector<Numbered> calls = calls_of(t_.group, t_.n);
    const uint64_t first = first_different(calls);
    const Failure f = t_.group.failure();
    RankTexts texts, sites;
    std::vector<int> different;
    std::string text = (!f.how.empty() ? f.how : "the ranks called different operations") + " (seen by rank " +
                       std::to_string(f.rank) + " at its operation #" + std::to_string(f.sequence) + of_group() + ")";
    for (int p = 0; p < t_.n; ++p) {
        const Numbered& mine = calls[size_t(p)];
        std::string call, differs;
        for (auto one = mine.lower_bound(first); one != mine.end() && one->first < first + kCallsShown; ++one)
            add_to_list(call, one->second.to_string(), ", then ");
        if (const auto one = mine.find(first); one != mine.end())
            differs = differences(one->second, *most_frequent(calls, first));
        if (call.empty()) call = kNoCall;
        const int world_rank = t_.members[size_t(p)].world_rank;
        const Whereabouts where = whereabouts(t_.segment, world_rank);
        if (const std::string site = call_site_of(t_.group.peers[p]); !site.empty()) {
            call += " at " + site;
            sites.emplace_back(p, site);
        } else if (t_.ended(p)) {
            call += " (" + t_.await_how_it_ended(p) + ")";
        } else if (!where.inside || where.operation->group != t_.group.number) {
            call += " (now " + to_string(where, t_.group.number) + ")";
        }
        texts.emplace_back(p, call);
        if (!differs.empty()) different.push_back(p);
        text += "\n  rank " + std::to_string(p) + ": " + call + (differs.empty() ? "" : "   <-- other " + differs);
    }
    throw Mismatch(text + writers_warning, texts, sites, different, int64_t(f.sequence));
}

// The message that this rank waits for: "recv from rank 1, tag 0", or "".
std::string FailureReporter::awaited_message() const {
    const Whereabouts where = whereabouts(t_.segment, t_.members[size_t(t_.rank)].world_rank);
    return where.inside && where.operation->peer && where.operation->group == t_.group.number
               ? to_string(*where.operation, t_.group.number)
               : "";
}

// If ranks may still be writing into an array of this rank, a text that says so. Only a collective exposes memory.
std::string FailureReporter::await_no_writers(const Failure& f) {
    const double limit =
        f.cause == Cause::TimedOut ? std::chrono::duration<double>(kStoppedPeer).count() : t_.steps.timeout.load();
    const std::vector<int> writers = t_.memory.fail_and_await_writers(Waiter(limit, t_.program));
    if (writers.empty()) return "";
    std::string text = "\n";
    text += list_ranks(writers) +
            " may have been stopped in the middle of writing into this rank's array; do not use the array before ";
    return text +=
           writers.size() == 1 ? "that rank has raised an error or ended" : "these ranks have raised errors or ended";
}

void FailureReporter::throw_failure(const std::string& operation, int64_t sequence, const CallOptions& options) {
    options.before_waiting();
    const Failure f = t_.group.failure();
    const std::string writers_warning = sequence < 0 ? "" : await_no_writers(f);
    const std::string while_in = operation == name(Op::None)
                                     ? ""
                                     : ", while rank " + std::to_string(t_.members[size_t(t_.rank)].world_rank) +
                                           " was in " + operation +
                                           (sequence < 0 ? "" : " #" + std::to_string(sequence)) + of_group();
    switch (f.cause) {
    case Cause::PeerLost: report_lost(f, while_in, writers_warning, operation, sequence);
    case Cause::TimedOut: report_timed_out(f, while_in, writers_warning, operation, sequence);
    default: report_mismatch(writers_warning);
    }
}

void FailureReporter::report_lost(const Failure& f, const std::string& while_in, const std::string& writers_warning,
                                  const std::string& operation, int64_t sequence) {
    loss_found();
    const int world_rank = t_.members[size_t(f.rank)].world_rank;
    std::string how = f.how, where;
    if (how.empty()) {
        how = t_.await_how_it_ended(f.rank);
        const Whereabouts last = whereabouts(t_.segment, world_rank);
        if (last.begun()) where = (last.inside ? " in " : " after ") + to_string(*last.operation, t_.group.number);
    }
    const QualifiedPid joined = t_.group.peers[f.rank].pid.load();
    const QualifiedPid lost =
        joined.number ? joined : t_.segment.record(world_rank).pid.load();  // number 0: unknown, it never joined
    const bool elsewhere = lost.number && !lost.in_own_namespace();
    const std::string host = elsewhere ? "" : host_name();  // all ranks of a segment are on the same host
    const int pid = elsewhere ? 0 : lost.number;
    std::string about = elsewhere ? "in another container" : pid ? "pid " + std::to_string(pid) + " on " + host : "";
    if (world_rank != f.rank) add_to_list(about, "rank " + std::to_string(f.rank) + of_group());
    const std::string who = "rank " + std::to_string(world_rank) + (about.empty() ? " " : " (" + about + ") ");
    throw PeerLost(who + how + where + while_in + writers_warning, f.rank, how, operation, sequence, host, pid);
}

// What the rank that timed out has reported, or, if it could not, what this rank knows.
TimeoutReport FailureReporter::timeout_report(const Failure& f) const {
    if (const uint64_t written = t_.group.peers[f.rank].report.load()) return read_report(t_.segment, written);
    TimeoutReport report;
    for (const std::string_view rank : parts(f.how, ",")) report.missing.push_back(std::atoi(rank.data()));
    report.headline = report.missing == std::vector<int>{f.rank}
                          ? "rank " + std::to_string(f.rank) +
                                " waited for an event, before its next operation, longer than its timeout"
                          : list_ranks(report.missing) + " did not arrive within " + seconds(t_.steps.timeout);
    report.states = states();
    return report;
}

void FailureReporter::report_timed_out(const Failure& f, const std::string& while_in,
                                       const std::string& writers_warning, const std::string& operation,
                                       int64_t sequence) {
    const TimeoutReport report = timeout_report(f);
    // Ranks in the same operation throw the same text.
    const std::string message = awaited_message();
    const std::string text = (message.empty() ? ""
                                              : "rank " + std::to_string(t_.rank) + " was in " + message +
                                                    ", when rank " + std::to_string(f.rank) + " timed out: ") +
                             report.headline + (sequence == int64_t(f.sequence) || !message.empty() ? "" : while_in) +
                             list_states(report.states) + writers_warning;
    throw TimedOut(text, t_.steps.timeout, report.missing, report.states, operation, sequence, report.stacks);
}

}  // namespace rankwise
