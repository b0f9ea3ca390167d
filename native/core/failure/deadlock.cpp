#include "failure/deadlock.hpp"

#include <algorithm>

#include "failure/stacks.hpp"
#include "trace/trace.hpp"

namespace rankwise {

namespace {

constexpr size_t kShown = 8;  // ranks of a cycle

// The ranks of the cycle to which `from` leads, the lowest one first; empty if there is none.
std::vector<int> cycle_from(const std::vector<std::optional<Awaited>>& waits, int from) {
    std::vector<int> path;
    for (int r = from; waits[size_t(r)]; r = waits[size_t(r)]->peer) {
        const auto again = std::find(path.begin(), path.end(), r);
        if (again == path.end()) {
            path.push_back(r);
            continue;
        }
        path.erase(path.begin(), again);
        std::rotate(path.begin(), std::min_element(path.begin(), path.end()), path.end());
        return path;
    }
    return {};
}

// Whether a message from this rank to `peer` is under way, which `receive` may be about to get. A synchronous send
// waits forever for another receive.
bool sends_to(const Whereabouts& where, int peer, const Operation& receive) {
    const auto sends = [&](const Operation& o) {
        const bool another = *receive.tag >= 0 && o.tag != receive.tag;
        return o.kind == Op::Send && o.peer == peer && !(o.synchronous && another);
    };
    return sends(*where.operation) || std::any_of(where.others.begin(), where.others.end(), sends);
}

// Whether this rank takes in what others send, because it has messages of its own to make progress on.
bool takes_in(const Whereabouts& where) { return is_message(where.operation->kind) || !where.others.empty(); }

}  // namespace

std::string describe_deadlock(const std::vector<std::optional<Awaited>>& waits, int from) {
    const std::vector<int> cycle = cycle_from(waits, from);
    if (cycle.empty()) return "";
    const size_t shown = std::min(cycle.size(), kShown);
    std::string text = "; a deadlock: ";
    for (size_t i = 0; i < shown; ++i) {
        const Awaited& awaited = *waits[size_t(cycle[i])];
        text += (i == 0                 ? ""
                 : i + 1 < cycle.size() ? ", "
                                        : ", and ") +
                ("rank " + std::to_string(cycle[i])) + " waits for rank " + std::to_string(awaited.peer) + " (" +
                awaited.in + ")";
    }
    if (shown < cycle.size())
        text += ", and so on, up to rank " + std::to_string(cycle.back()) + ", which waits for rank " +
                std::to_string(cycle[0]);
    if (std::all_of(cycle.begin(), cycle.end(), [&](int r) { return waits[size_t(r)]->receives; }))
        text += "; one of them must send first";
    return text;
}

// In a deadlock, each rank has long been in an operation that waits for the next rank, and nothing that the next rank
// does in the background can end that wait. A stopped process is part of none: it might have gone on if it had not been
// stopped.
std::vector<std::optional<Awaited>> awaited_ranks(const Segment& segment, const GroupSegment& group,
                                                  const std::vector<Member>& members, double limit) {
    const int n = int(members.size());
    std::vector<Whereabouts> where;
    for (int p = 0; p < n; ++p) where.push_back(whereabouts(segment, members[size_t(p)].world_rank));
    const auto stays = [&](int p) {
        const Whereabouts& w = where[size_t(p)];
        const QualifiedPid pid = group.peers[p].pid.load(std::memory_order_relaxed);
        return w.inside && !w.operation->on_stream && w.operation->group == group.number &&
               double(w.since) / 1e9 >= limit / 2 &&
               std::all_of(w.others.begin(), w.others.end(), [](const Operation& o) { return o.background; }) &&
               pid.in_own_namespace() && !is_stopped(pid.number);
    };
    std::vector<std::optional<Awaited>> waits{size_t(n)};
    for (int p = 0; p < n; ++p) {
        if (!stays(p)) continue;
        const Operation& in = *where[size_t(p)].operation;
        const int peer = is_message(in.kind) ? *in.peer : int(group.peers[p].waits_for.load()) - 1;
        if (peer < 0 || peer >= n || peer == p || !stays(peer)) continue;
        if (in.kind == Op::Recv && sends_to(where[size_t(peer)], p, in)) continue;
        if (in.kind == Op::Send && !in.synchronous && takes_in(where[size_t(peer)])) continue;
        if (!is_message(in.kind) && group.peers[peer].calls.load() >= in.sequence) continue;  // it takes part
        std::string text = name(in.kind);
        if (is_message(in.kind)) text += *in.tag < 0 ? ", any tag" : ", tag " + std::to_string(*in.tag);
        else text += " #" + std::to_string(in.sequence);
        waits[size_t(p)] = Awaited{peer, text, in.kind == Op::Recv};
    }
    return waits;
}

std::string certain_deadlock(const Segment& segment, const GroupSegment& group, const std::vector<Member>& members,
                             int from) {
    std::vector<int64_t> since;
    for (size_t p = 0; p < members.size(); ++p) since.push_back(group.peers[p].vain_since.load());
    const auto waits = awaited_ranks(segment, group, members, 0);
    const std::vector<int> cycle = cycle_from(waits, from);
    int64_t latest = 0, looked = INT64_MAX;
    for (const int p : cycle) {
        latest = std::max(latest, since[size_t(p)]);
        looked = std::min(looked, group.peers[p].vain_until.load());
    }
    const auto unchanged = [&](int p) {
        return since[size_t(p)] && group.peers[p].vain_since.load() == since[size_t(p)];
    };
    return looked >= latest && std::ranges::all_of(cycle, unchanged) ? describe_deadlock(waits, from) : "";
}

}  // namespace rankwise
