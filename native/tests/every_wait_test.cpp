// Tests every operation with a fault in each of its waits: a signal handler that raises, that forks, or that closes the
// group; a close by another thread. Each rank in turn is the one that it happens to. Afterwards each rank has the right
// result or the error that says what happened, nobody writes to memory that a rank has taken back, and all is freed.
#include "every_operation.hpp"

#include <sys/wait.h>

#include <array>

#include "turns.hpp"

using namespace rankwise;
using every::Case;
using every::Ending;

namespace {

enum class Fault { None, Interrupt, Fork, Close, CloseBeside, CloseSlowlyBeside };
constexpr std::array kFaults{Fault::Interrupt, Fault::Fork, Fault::Close, Fault::CloseBeside, Fault::CloseSlowlyBeside};
const char* name_of(Fault fault) {
    constexpr const char* names[] = {"no fault", "interrupted",        "forked",
                                     "closed",   "closed by a thread", "closed, when it is over, by a thread"};
    return names[size_t(fault)];
}
bool closes(Fault fault) { return fault >= Fault::Close; }

// The program of all ranks. In the wait that the victim's signal reaches, it does what the fault is.
struct Program : Embedding {
    std::atomic<Fault> fault{Fault::None};
    std::atomic<Comm*> group{nullptr};  // the victim's
    std::atomic<bool> fired{false};
    std::thread beside;
    bool is_child = false;

    bool interrupted() override {
        if (!turns::take_signal()) return false;
        fired = true;
        switch (fault) {
        case Fault::Interrupt: return true;
        case Fault::Fork: return in_a_child(), false;
        case Fault::Close: return group.load()->close(0), false;
        case Fault::CloseBeside: return close_beside(0), false;
        case Fault::CloseSlowlyBeside: return close_beside(30), false;
        default: return false;
        }
    }
    void in_a_child() {
        if (const pid_t child = fork()) {
            int status = 0;
            CHECK_EQ(waitpid(child, &status, 0), child);
            CHECK_EQ(status, 0);
            return;
        }
        turns::forget();
        is_child = true;
        alarm(30);
    }
    void close_beside(double timeout) {
        beside = std::thread([this, timeout] { group.load()->close(timeout); });
    }
};

struct Trial {
    const Case& operation;
    Fault fault;
    int victim;
    turns::Order order;
    uint32_t at;  // the number of the wait, from 1 on
    std::string text() const {
        return operation.name + ": rank " + std::to_string(victim) +
               (order == turns::Order::VictimFirst ? ", which comes first, " : ", which comes last, ") +
               name_of(fault) + " in wait " + std::to_string(at);
    }
};

// What the ranks of a trial have found.
struct Results {
    std::array<Ending, turns::kMostRanks> call, next;
    std::array<size_t, turns::kMostRanks> blocks{};
};

size_t blocks_of_groups(Comm& c) {
    size_t count = 0;
    for (const BlockKind kind : {BlockKind::GroupSegment, BlockKind::Channel, BlockKind::Text})
        c.segment()->heap().visit(kind, [&](uint64_t) { ++count; });
    return count;
}

void check(const Trial& trial, const Results& results, int n, bool fired) {
    const int victim = trial.victim;
    const bool may_fail = fired && trial.fault != Fault::Fork;
    const auto& mine = results.call[size_t(victim)];
    bool failed = false;
    for (int r = 0; r < n; ++r) failed = failed || !results.next[size_t(r)].error.empty();
    const auto wrong = [&](int r, const char* when, const Ending& outcome) {
        CHECK(false, trial.text() << ", on " << n << ": rank " << r << ' ' << when << ": " << outcome.error << " "
                                  << outcome.text);
    };
    for (int r = 0; r < n; ++r) {
        const Ending &call = results.call[size_t(r)], &next = results.next[size_t(r)];
        const bool fine = call.error.empty();
        const bool closed = closes(trial.fault) && r == victim;
        const bool interrupted = trial.fault == Fault::Interrupt && r == victim;
        if (!may_fail || (trial.fault == Fault::Interrupt && trial.operation.interrupted == Case::Continues)) {
            if (!fine) wrong(r, "in the call", call);
            if (!next.error.empty()) wrong(r, "in the next call", next);
            continue;
        }
        // An interrupted operation that may be waited for again is complete, or has failed the group.
        const bool must_fail = closes(trial.fault) || trial.operation.interrupted == Case::Fails;
        const bool right = interrupted && must_fail ? call.error == "Interrupted"
                           : closed                 ? fine || call.error == "Closed" || call.names(victim)
                                                    : fine || (failed && call.names(victim));
        if (!right) wrong(r, "in the call", call);
        const bool right_next = closed ? next.error == "Closed" : failed ? next.names(victim) : next.error.empty();
        if (!right_next || (must_fail && next.error.empty())) wrong(r, "in the next call", next);
        if (trial.fault == Fault::CloseSlowlyBeside && trial.operation.interrupted == Case::Fails &&
            !mine.error.empty())
            wrong(victim, "closed when it was over", mine);
    }
}

// One rank's part in a trial.
void run(Comm& c, const Trial& trial, Program& program, Results& results) {
    const size_t me = size_t(c.rank());
    const bool is_victim = c.rank() == trial.victim;
    const size_t blocks = blocks_of_groups(c);
    c.barrier_without_sync();
    const auto part = c.split(0, c.rank());
    part->set_timeout(10);  // the others then still wait for this rank, and the trial is named
    if (is_victim) program.group = part.get();
    every::Rank rank{*part, trial.text(), closes(trial.fault) ? trial.victim : -1};
    const auto call = [&] { return Ending::of([&] { trial.operation.call(rank); }); };
    turns::enter(c.rank());
    Ending& outcome = results.call[me] = call();
    if (program.is_child && is_victim) _exit(outcome.error == "Closed" ? 0 : 1);
    if (outcome.error == "Interrupted" && trial.operation.interrupted != Case::Fails) {
        rank.again = true;
        outcome = call();
    }
    turns::leave();
    if (is_victim && program.beside.joinable()) program.beside.join();
    for (const auto& task : rank.tasks) ranks::thrown([&] { task->wait(5); });
    c.barrier_without_sync();
    for (const auto& request : rank.requests) request->cancel();
    rank.arrays.release();
    results.next[me] = Ending::of([&] { part->barrier_without_sync(); });
    part->close(5);
    c.barrier_without_sync();
    rank.arrays.check(trial.text());
    CHECK(blocks_of_groups(c) == blocks, trial.text() << ": " << blocks_of_groups(c) << " blocks, not " << blocks);
    c.barrier_without_sync();
}

// A fault, and the ranks and orders with which it is tried.
struct Plan {
    Fault fault;
    std::vector<int> victims;
    std::vector<turns::Order> orders;
};

// Makes one operation again and again, with the fault in one wait after the other.
void test(const Case& operation, int n, const std::vector<Plan>& plans) {
    Program program;
    Results results;
    Settings settings = operation.settings;
    settings.program = &program;
    std::atomic<uint32_t> waits{0};
    const auto in_each_wait = [&](Comm& c, Trial trial) {
        for (trial.at = 1; trial.at == 1 || waits >= trial.at - 1; ++trial.at) {
            c.barrier_without_sync();
            if (c.rank() == 0) {
                turns::begin(n, trial.victim, trial.order, trial.at);
                program.fault = trial.fault;
                program.fired = false;
            }
            c.barrier_without_sync();
            run(c, trial, program, results);
            if (c.rank() == 0) {
                check(trial, results, n, program.fired);
                waits = turns::table().waits;
                CHECK(trial.at < 200, trial.text() << ": there is no end of waits");
            }
            c.barrier_without_sync();
        }
    };
    ranks::run_in_threads(
        n,
        [&](Comm& c) {
            // Whoever finds that a rank has left the group does not wait for the status with which it may have exited.
            c.segment()->record(c.rank()).exit_status = uint64_t(1) << 32;
            for (const Plan& plan : plans)
                for (const int victim : plan.victims)
                    for (const auto order : plan.orders) in_each_wait(c, {operation, plan.fault, victim, order, 0});
        },
        60, settings);
}

// With RANKWISE_FAULTS=full everything. Otherwise every third operation, with one fault, one victim and one order.
std::vector<Plan> plans_for(size_t number, const Case& operation, int n) {
    using enum turns::Order;
    std::vector<Plan> plans;
    std::vector<int> everyone(static_cast<size_t>(n));
    std::iota(everyone.begin(), everyone.end(), 0);
    std::vector<Fault> faults(kFaults.begin(), kFaults.end());
    if (operation.any_source && n > 2) std::erase_if(faults, closes);
    for (const Fault fault : faults) plans.push_back({fault, everyone, {VictimFirst, VictimLast}});
    if (every::all()) return plans;
    if (number % 3 != 0) return {};
    const Fault fault = faults[number / 3 % faults.size()];
    return {{fault, {int(number / 3 / faults.size()) % n}, {number % 2 ? VictimLast : VictimFirst}}};
}

}  // namespace

// An argument: only the operations whose name contains it.
int main(int argc, char** argv) {
    size_t number = 0;
    for (const int n : {2, 3})
        for (const Case& operation : every::operations(n))
            if (argc < 2 || operation.name.find(argv[1]) != std::string::npos)
                if (const auto plans = plans_for(number++, operation, n); !plans.empty()) test(operation, n, plans);
    return check::result();
}
