// The errors of a failed group: which ranks caused the failure, how, and in which operation.
#include <unistd.h>

#include <algorithm>
#include <map>

#include "failure/stacks.hpp"
#include "failure/timeout_report.hpp"
#include "transport/slot_protocol.hpp"

namespace rankwise {

std::string (*call_site)() = [] { return std::string(); };

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
    add(a.amount != b.amount, a.has(kCounts) ? "counts" : "count");
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
        if (same > most) best = &call->second, most = same;
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

}  // namespace

void SlotProtocol::lost(int peer, const std::string& operation, int64_t sequence) {
    fail_group(group_, Cause::PeerLost, peer, group_.peers[peer].calls.load(), "");
    throw_failure(operation, sequence);
}

void SlotProtocol::refuse(const Call& call) {
    refused_ = call;
    throw_failure(name(call.op()), int64_t(calls_) + 1);
}

void SlotProtocol::mismatch() {
    fail_group(group_, Cause::Mismatch, rank, calls_, "");
    throw_failure();
}

// Some operations end on a rank that has waited for no other, such as a small broadcast on its root. If they are the
// last ones, their calls have not been compared. This compares them, with each peer, at the latest step that both ranks
// have posted.
void SlotProtocol::compare_last() {
    makes_calls_ = false;
    if (group_.failed() && group_.failure().cause == Cause::Mismatch && !mismatch_thrown_)
        throw_mismatch();  // found by a peer
    if (group_.failed()) return;
    const SlotHeader* mine = group_.peers[rank].headers;
    for (int p = 0; p < n; ++p) {
        for (uint64_t end = next_; end > 0 && end + kHeaders > next_; --end) {
            const size_t at = (end - 1) % kHeaders;
            const SlotHeader& theirs = group_.peers[p].headers[at];
            if (theirs.seq.load() != end) continue;
            const uint64_t history = theirs.history.load(std::memory_order_relaxed);
            std::atomic_thread_fence(std::memory_order_acquire);
            if (theirs.seq.load(std::memory_order_relaxed) != end)
                continue;  // overwritten: the peer makes further calls and compares
            if (history != mine[at].history.load(std::memory_order_relaxed)) mismatch();
            break;
        }
    }
}

void SlotProtocol::timed_out(uint64_t value) {
    // The awaited ranks that have not begun the operation are to blame, if there are any: the other awaited ranks may
    // be waiting for them too.
    std::vector<int> behind, absent;
    for (int p = 0; p < n; ++p) {
        if (p == rank || group_.peers[p].headers[(value - 1) % kHeaders].seq.load() >= value) continue;
        behind.push_back(p);
        if (group_.peers[p].calls.load() < calls_) absent.push_back(p);
    }
    TimeoutReport report;
    report.missing = absent.empty() ? behind : absent;
    report.headline = list_ranks(report.missing) + of_group() +
                      (absent.empty() ? " did not finish " : " did not reach ") + name(call_.op()) + " #" +
                      std::to_string(calls_) + " within the timeout of " + seconds(timeout) + deadlock(timeout);
    report.states = states();
    report.stacks = request_stacks(report.missing);
    std::string missing;
    for (int p : report.missing) add_to_list(missing, std::to_string(p), ",");
    group_.peers[rank].report.store(write_report(segment_, report));
    fail_group(group_, Cause::TimedOut, rank, calls_, missing);
    throw_failure();
}

std::string SlotProtocol::of_group() const {
    return group_.number ? " of group " + name_of_group(segment_.header(), group_.number) : "";
}

RankTexts SlotProtocol::states() const {
    RankTexts result;
    for (int p = 0; p < n; ++p) {
        const RankRecord& r = segment_.record(group_.member()[p]);
        std::string text;
        if (r.joined.load() <= group_.peers[p].process) text = "has not joined";
        else if (ended(p)) text = how_it_ended(p);
        else text = to_string(whereabouts(segment_.header(), group_.member()[p]), group_.number);
        result.emplace_back(p, text);
    }
    return result;
}

RankTexts SlotProtocol::request_stacks(const std::vector<int>& peers) const {
    std::vector<int> world;
    for (int p : peers) world.push_back(group_.member()[p]);
    RankTexts result = rankwise::request_stacks(segment_, world);
    for (auto& [r, text] : result) r = peers[size_t(std::find(world.begin(), world.end(), r) - world.begin())];
    return result;
}

// Publishes, once for each group, where in the program this rank made the call that failed, and the call itself if it
// was refused.
void SlotProtocol::publish_call_site() {
    CallSite& site = group_.peers[rank].site;
    uint32_t none = 0;
    if (!site.state.compare_exchange_strong(none, 1)) return;
    std::string text = makes_calls_ ? call_site() : "";
    if (text.size() >= sizeof site.text) text = "..." + text.substr(text.size() - sizeof site.text + 4);
    text.copy(site.text, sizeof site.text - 1);
    if (refused_.op() != Op::None) site.call = refused_, site.number = calls_ + 1;
    site.state.store(2);
}

// Ranks that are in a call of this group will soon notice that it failed: wait briefly until they have published where
// they made the call.
void SlotProtocol::await_call_sites() const {
    Waiter waiter(kCallSiteTimeout);
    for (int p = 0; p < n; ++p) {
        const int world_rank = group_.member()[p];
        waiter.watch(std::chrono::microseconds(500), [&] {
            if (group_.peers[p].site.state.load() == 2) return true;
            const Whereabouts where = whereabouts(segment_.header(), world_rank);
            return !where.inside || where.operation->group != group_.number || ended(p);
        });
    }
}

std::string SlotProtocol::call_site_of(int peer) const {
    const CallSite& site = group_.peers[peer].site;
    return site.state.load() == 2 ? site.text : "";
}

// A rank's latest calls that its slot headers still hold.
std::map<uint64_t, Call> SlotProtocol::recent_calls(int peer) const {
    std::map<uint64_t, const SlotHeader*> by_step;
    for (const SlotHeader& header : group_.peers[peer].headers)
        if (const uint64_t seq = header.seq.load()) by_step[seq] = &header;
    std::map<uint64_t, Call> calls;
    uint64_t number = group_.peers[peer].calls.load();
    for (auto header = by_step.rbegin(); header != by_step.rend() && number > 0; ++header) {
        calls[number] = header->second->call();
        const auto previous = std::next(header);
        if (previous != by_step.rend() && previous->second->history.load() != header->second->history.load()) --number;
    }
    return calls;
}

void SlotProtocol::throw_mismatch(const std::string& danger) {
    mismatch_thrown_ = true;
    constexpr uint64_t kShown = 3;  // calls of a rank
    publish_call_site();
    await_call_sites();
    std::vector<Numbered> calls{size_t(n)};
    for (int p = 0; p < n; ++p)
        for (const auto& [number, call] : recent_calls(p))
            calls[size_t(p)].emplace(number, with_description(call, number, group_.peers[p].last_description));
    const uint64_t first = first_different(calls);
    for (int p = 0; p < n; ++p) {  // a rank that made this call after the group had failed
        const PeerSlot& peer_slot = group_.peers[p];
        if (peer_slot.site.state.load() == 2 && peer_slot.site.number == first)
            calls[size_t(p)].emplace(first, with_description(peer_slot.site.call, first, peer_slot.last_description));
    }
    const Failure f = group_.failure();
    RankTexts texts, sites;
    std::vector<int> different;
    std::string text = (f.how[0] ? std::string(f.how) : "the ranks called different operations") + " (seen by rank " +
                       std::to_string(f.rank) + " at its operation #" + std::to_string(f.sequence) + ")";
    for (int p = 0; p < n; ++p) {
        const Numbered& mine = calls[size_t(p)];
        std::string call, differs;
        for (auto one = mine.lower_bound(first); one != mine.end() && one->first < first + kShown; ++one)
            add_to_list(call, one->second.to_string(), ", then ");
        if (const auto one = mine.find(first); one != mine.end())
            differs = differences(one->second, *most_frequent(calls, first));
        if (call.empty()) call = kNoCall;
        const int world_rank = group_.member()[p];
        const Whereabouts where = whereabouts(segment_.header(), world_rank);
        if (const std::string site = call_site_of(p); !site.empty()) {
            call += " at " + site;
            sites.emplace_back(p, site);
        } else if (ended(p)) {
            call += " (" + how_it_ended(p) + ")";
        } else if (!where.inside || where.operation->group != group_.number) {
            call += " (now " + to_string(where, group_.number) + ")";
        }
        texts.emplace_back(p, call);
        if (!differs.empty()) different.push_back(p);
        text += "\n  rank " + std::to_string(p) + ": " + call + (differs.empty() ? "" : "   <-- other " + differs);
    }
    throw Mismatch(text + danger, texts, sites, different, int64_t(f.sequence));
}

// The message that this rank waits for: "recv from rank 1, tag 0", or "".
std::string SlotProtocol::awaited_message() const {
    const Whereabouts where = whereabouts(segment_.header(), group_.member()[rank]);
    return where.inside && where.operation->peer && where.operation->group == group_.number
               ? to_string(*where.operation, group_.number)
               : "";
}

void SlotProtocol::throw_failure(const std::string& operation, int64_t sequence) {
    before_waiting();
    const Failure f = group_.failure();
    // Only a collective, which has a sequence number, exposes memory.
    const std::string danger =
        sequence < 0 ? ""
                     : await_no_writers(f.cause == Cause::TimedOut ? std::chrono::duration<double>(kStoppedPeer)
                                                                   : std::chrono::duration<double>(timeout),
                                        Waiter::Interruptible::Yes);
    const std::string who = "rank " + std::to_string(f.rank);
    const std::string here = operation == name(Op::None)
                                 ? ""
                                 : ", while rank " + std::to_string(rank) + " was in " + operation +
                                       (sequence < 0 ? "" : " #" + std::to_string(sequence)) + of_group();
    if (f.cause == Cause::PeerLost) {
        const int world_rank = group_.member()[f.rank];
        std::string how = f.how;
        std::string where;
        if (how.empty()) {
            how = how_it_ended(f.rank);
            const Whereabouts last = whereabouts(segment_.header(), world_rank);
            if (last.begun()) where = (last.inside ? " in " : " after ") + to_string(*last.operation, group_.number);
        }
        const QualifiedPid joined = group_.peers[f.rank].pid.load();
        const QualifiedPid lost =
            joined.number ? joined
                          : segment_.record(world_rank).pid.load();  // number 0: unknown, because it never joined
        if (lost.number && !lost.in_own_namespace())
            throw PeerLost(who + " (in another container) " + how + where + here + danger, f.rank, how, operation,
                           sequence);
        const std::string host = host_name();  // all ranks of a segment are on the same host
        const std::string process = lost.number ? " (pid " + std::to_string(lost.number) + " on " + host + ") " : " ";
        throw PeerLost(who + process + how + where + here + danger, f.rank, how, operation, sequence, host,
                       lost.number);
    }
    if (f.cause == Cause::TimedOut) {
        TimeoutReport report;
        if (const uint64_t written = group_.peers[f.rank].report.load()) {
            report = read_report(segment_, written);
        } else {
            for (const char* at = f.how; *at; at += *at == ',')
                report.missing.push_back(int(std::strtol(at, const_cast<char**>(&at), 10)));
            report.headline = report.missing == std::vector<int>{f.rank}
                                  ? who + " waited for an event, before its next operation, longer than its timeout"
                                  : list_ranks(report.missing) + " did not arrive within " + seconds(timeout);
            report.states = states();
        }
        // Ranks in the same operation throw the same text.
        const std::string message = awaited_message();
        const std::string text = (message.empty() ? ""
                                                  : "rank " + std::to_string(rank) + " was in " + message + ", when " +
                                                        who + " timed out: ") +
                                 report.headline + (sequence == int64_t(f.sequence) || !message.empty() ? "" : here) +
                                 list_states(report.states) + danger;
        throw TimedOut(text, timeout, report.missing, report.states, operation, sequence, report.stacks);
    }
    throw_mismatch(danger);
}

}  // namespace rankwise
