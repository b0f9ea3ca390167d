// Tests every operation, between processes, with a rank that is refused one of its requests for private memory or for a
// thread, for each of them in turn; or all of its requests from that one on. That rank has the right result or an error
// that says so, and can call again what has not begun. The others have the right result, or an error in time that names
// that rank. Afterwards the same processes make the next group.
#include "every_operation.hpp"

#include <sys/wait.h>

#include "refused_requests.hpp"
#include "turns.hpp"

using namespace rankwise;
using every::Case;
using every::Ending;
using requests::Extent;
using requests::Kind;
using requests::Refusal;

namespace {

struct Trial {
    const Case& operation;
    int n, victim;
    turns::Order order;
    Refusal refusal;
    std::string text() const {
        return operation.name + " of " + std::to_string(n) + " ranks: rank " + std::to_string(victim) +
               (order == turns::Order::VictimFirst ? ", which comes first, " : ", which comes last, ") + "refused " +
               (refusal.kind == Kind::Memory ? "memory" : "a thread") + " in request " + std::to_string(refusal.at) +
               (refusal.extent == Extent::AllFrom ? " and all later ones" : "");
    }
};

// How the ranks' parts in a trial ended.
struct Endings {
    Ending call;
    Ending again;  // of the victim, if the call was refused what it needed
    Ending next;
};

void check(const Trial& trial, int rank, const Endings& endings, bool refused) {
    const auto allowed = [&](const Ending& ending) {
        if (ending.error.empty() || !refused) return ending.error.empty();
        const bool mine =
            rank == trial.victim && &ending == &endings.call &&
            (ending.error == "bad_alloc" || ending.text.find("cannot start a thread") != std::string::npos);
        const bool failed = endings.next.names(trial.victim);
        if (rank == trial.victim && &ending == &endings.next && ending.error == "Closed") return true;  // it has left
        return mine || (failed && (ending.names(trial.victim) || (rank == trial.victim && &ending == &endings.again)));
    };
    for (const Ending* ending : {&endings.call, &endings.again, &endings.next})
        CHECK(allowed(*ending), trial.text() << ": rank " << rank
                                             << (ending == &endings.call    ? " in the call: "
                                                 : ending == &endings.again ? " in the call after it: "
                                                                            : " in the next call: ")
                                             << ending->error << ' ' << ending->text);
}

size_t blocks_of_groups(Comm& c) {
    size_t count = 0;
    for (const BlockKind kind : {BlockKind::GroupSegment, BlockKind::Channel, BlockKind::Text})
        c.segment()->heap().visit(kind, [&](uint64_t) { ++count; });
    return count;
}

// One rank's part in a trial. Returns whether the victim has made so many requests.
bool run(Comm& c, const Trial& trial, const ranks::SharedCount& made) {
    alarm(60);  // shows the stacks
    const Waiter watch(kStoppedPeer);
    const bool is_victim = c.rank() == trial.victim;
    const size_t blocks = blocks_of_groups(c);
    c.barrier_without_sync();
    if (c.rank() == 0) turns::begin(trial.n, trial.victim, trial.order, 0);
    const auto part = c.split(0, c.rank());
    part->set_timeout(10);  // the others then still wait for this rank, and the trial is named
    const bool leaves = trial.operation.name == "shrink";  // the others may have gone on with the next group
    every::Rank rank{*part, trial.text(), leaves ? trial.victim : -1};
    rank.keep_room();
    Endings endings;
    turns::enter(c.rank());
    endings.call = Ending::of([&] {
        std::optional<requests::Refused> refused;
        if (is_victim) refused.emplace(trial.refusal);
        trial.operation.call(rank);
    });
    if (is_victim) *made = requests::made.load();
    if (is_victim && !endings.call.error.empty()) {
        if (leaves) part->close(0);
        rank.again = true;
        if (!leaves) endings.again = Ending::of([&] { trial.operation.call(rank); });
    }
    turns::leave();
    for (const auto& task : rank.tasks) Ending::of([&] { task->wait(5); });
    c.barrier_without_sync();
    for (const auto& request : rank.requests) request->cancel();
    rank.arrays.release();
    endings.next = Ending::of([&] { part->barrier_without_sync(); });
    part->close(5);
    c.barrier_without_sync();
    const bool refused = *made >= trial.refusal.at;
    check(trial, c.rank(), endings, refused);
    rank.arrays.check(trial.text());
    CHECK(watch.left().count() > 0, trial.text()
                                        << ": rank " << c.rank() << " waited for " << watch.spent().count() << " s");
    CHECK(blocks_of_groups(c) == blocks, trial.text() << ": " << blocks_of_groups(c) << " blocks, not " << blocks);
    CHECK(trial.refusal.at < 500, trial.text() << ": there is no end of requests");
    c.barrier_without_sync();
    return refused;
}

// Runs body(c, made) in each of the processes of a new segment. Returns what it has left in `made`.
template <class Body> int in_processes(const Case& operation, int n, const Body& body) {
    const ranks::SharedCount made;
    const auto segment = Segment::create(n);
    std::vector<pid_t> pids;
    for (int rank = 0; rank < n; ++rank) {
        const pid_t pid = fork();
        if (pid == 0) {
            check::failures = 0;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            const auto comm = Comm::join(segment, rank, 20, Comm::RunsAs::Process, operation.settings);
            // Whoever finds that a rank has left the group does not wait for the status with which it may have exited.
            segment->record(rank).exit_status = uint64_t(1) << 32;
            body(*comm, made);
            comm->close(5);
            _exit(check::result());
        }
        pids.push_back(pid);
    }
    for (int rank = 0; rank < n; ++rank) {
        int status = 0;
        waitpid(pids[size_t(rank)], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0,
              operation.name << " of " << n << " ranks: rank " << rank << " ended with status " << status);
    }
    return *made;
}

// A rank that is refused, when it comes, and of what.
struct Plan {
    int victim;
    turns::Order order;
    Kind kind;
    Extent extent;
};

void test(const Case& operation, int n, const std::vector<Plan>& plans) {
    const auto trial = [&](const Plan& plan, int at) {
        return Trial{operation, n, plan.victim, plan.order, {plan.kind, plan.extent, at}};
    };
    in_processes(operation, n, [&](Comm& c, const ranks::SharedCount& made) {
        for (const Plan& plan : plans)
            if (plan.kind == Kind::Memory)
                for (int at = 1; run(c, trial(plan, at), made);) ++at;
    });
    for (const Plan& plan : plans) {
        if (plan.kind == Kind::Memory) continue;  // the threads that a process has started stay
        for (int at = 1;; ++at)
            if (in_processes(operation, n, [&](Comm& c, const auto& made) { run(c, trial(plan, at), made); }) < at)
                break;
    }
}

}  // namespace

// With RANKWISE_FAULTS=full every fifth of the plans, and otherwise few of them. An argument: only the operations whose
// name contains it.
int main(int argc, char** argv) {
    using enum turns::Order;
    turns::table();  // which the processes share
    const size_t stride = every::all() ? 5 : ranks::shortened() ? 307 : 101;
    size_t number = 0;
    for (const int n : {2, 3})
        for (const Case& operation : every::operations(n)) {
            if (argc > 1 && operation.name.find(argv[1]) == std::string::npos) continue;
            std::vector<Plan> plans;
            for (int victim = 0; victim < n; ++victim)
                for (const auto order : {VictimFirst, VictimLast})
                    for (const Kind kind : {Kind::Memory, Kind::Thread})
                        for (const Extent extent : {Extent::One, Extent::AllFrom})
                            if (++number % stride == 0) plans.push_back({victim, order, kind, extent});
            if (!plans.empty()) test(operation, n, plans);
        }
    return check::result();
}
