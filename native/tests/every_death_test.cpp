// Tests every operation, between processes, with a rank that is killed in each of its waits, or whose system calls
// somebody's filter refuses from some moment on. The other ranks have the right result, or an error in time that names
// that rank.
#include "every_operation.hpp"

#include <sys/wait.h>

#include <csignal>

#include "refuse_memory.hpp"
#include "turns.hpp"

using namespace rankwise;
using every::Case;
using every::Ending;

namespace {

// What becomes of the victim.
struct Fault {
    std::string what;
    std::vector<int> refused{};  // its system calls that fail with `error`; it is killed if there are none
    int error = EPERM;
    bool from_the_start = false;  // before it joins the others, and not when it begins the operation
    bool kills() const { return refused.empty(); }
};
const Fault kKilled{"killed"};
// What the engine does without: the ranks' own memory, longer time slices, a core of its own, how a process has ended.
const std::vector<int> kOptional{SYS_process_vm_readv,  SYS_process_vm_writev, SYS_sched_setattr, SYS_sched_getattr,
                                 SYS_sched_setaffinity, SYS_pidfd_send_signal, SYS_prctl};
const std::vector<Fault> kRefused{
    {"refused what is optional", kOptional, EPERM, true},
    {"refused what is optional, later", kOptional, EPERM},
    {"refused what its kernel lacks, later", kOptional, ENOSYS},
    {"refused shared memory, later", {SYS_fallocate}, ENOSPC},
    {"refused threads, later", {SYS_clone, SYS_clone3}, EAGAIN},
};

struct Trial {
    const Case& operation;
    const Fault& fault;
    int n, victim;
    turns::Order order;
    uint32_t at;  // the number of the wait in which the victim is killed, from 1 on
    std::string text() const {
        return operation.name + " of " + std::to_string(n) + " ranks: rank " + std::to_string(victim) +
               (order == turns::Order::VictimFirst ? ", which comes first, " : ", which comes last, ") + fault.what +
               (fault.kills() ? " in wait " + std::to_string(at) : "");
    }
};

// Kills itself in the wait that the victim's signal reaches.
struct Program : Embedding {
    bool interrupted() override {
        if (!turns::take_signal()) return false;
        turns::leave();
        kill(getpid(), SIGKILL);
        return false;
    }
};

void refuse(const Trial& trial, int rank) {
    if (!trial.fault.kills() && rank == trial.victim) refuse_calls(trial.fault.refused, trial.fault.error, true);
}

void check(const Trial& trial, int rank, const Ending& call, const Ending& next) {
    const bool killed = trial.fault.kills() && turns::table().waits >= trial.at;
    const bool refused = !trial.fault.kills();
    const auto allowed = [&](const Ending& ending) {
        if (ending.error.empty() || (!refused && !killed)) return ending.error.empty();
        const bool mine = rank == trial.victim && (ending.error == "OutOfMemory" || ending.error == "Error" ||
                                                   (&ending == &next && ending.error == "Closed"));
        const bool all_alike = ending.error == "Unsupported" ||  // the forced algorithm
                               ending.text.find("another rank could not allocate") != std::string::npos;
        return ending.names(trial.victim) || (refused && (mine || all_alike));
    };
    for (const Ending* ending : {&call, &next})
        CHECK(allowed(*ending), trial.text()
                                    << ": rank " << rank << (ending == &call ? " in the call: " : " in the next call: ")
                                    << ending->error << ' ' << ending->text);
    CHECK(next.error.empty() != killed || refused, trial.text() << ": rank " << rank << " in the next call");
    if (killed && call.names(trial.victim))
        CHECK(call.text.find("was killed by SIGKILL") != std::string::npos, trial.text() << ": " << call.text);
}

[[noreturn]] void run(const Trial& trial, const std::shared_ptr<Segment>& segment, int rank) {
    check::failures = 0;
    alarm(60);  // shows the stacks
    Program program;
    Settings settings = trial.operation.settings;
    settings.program = &program;
    if (trial.fault.from_the_start) refuse(trial, rank);
    const auto comm = Comm::join(segment, rank, 20, Comm::RunsAs::Process, settings);
    comm->barrier_without_sync();
    if (!trial.fault.from_the_start) refuse(trial, rank);
    every::Rank context{*comm, trial.text(), trial.victim};
    turns::enter(rank);
    const Ending call = Ending::of([&] { trial.operation.call(context); });
    turns::leave();
    for (const auto& task : context.tasks) ranks::thrown([&] { task->wait(5); });
    // A rank that could not begin, or send a message, ends, as a program does by an error that it does not handle.
    if (rank == trial.victim && (call.error == "OutOfMemory" || call.error == "Error")) comm->close(0);
    const Ending next = Ending::of([&] { comm->barrier_without_sync(); });
    context.arrays.release();
    check(trial, rank, call, next);
    comm->close(5);
    context.arrays.check(trial.text());
    _exit(check::result());
}

// Returns whether the operation has this many waits.
bool test(const Trial& trial) {
    turns::begin(trial.n, trial.victim, trial.order, trial.fault.kills() ? trial.at : 0);
    const auto segment = Segment::create(trial.n);
    std::vector<pid_t> pids;
    for (int rank = 0; rank < trial.n; ++rank) {
        const pid_t pid = fork();
        if (pid == 0) run(trial, segment, rank);
        pids.push_back(pid);
    }
    const auto ended_well = [&](int rank, int status) {
        const bool killed = rank == trial.victim && trial.fault.kills() && turns::table().waits >= trial.at;
        return killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                      : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    };
    for (int rank = 0; rank < trial.n; ++rank) {
        int status = 0;
        waitpid(pids[size_t(rank)], &status, 0);
        CHECK(ended_well(rank, status), trial.text() << ": rank " << rank << " ended with status " << status);
    }
    CHECK(trial.at < 200, trial.text() << ": there is no end of waits");
    return turns::table().waits >= trial.at;
}

}  // namespace

// An argument: only the operations whose name contains it.
int main(int argc, char** argv) {
    const bool full = every::all(), refuses = can_refuse("ranks whose system calls are refused");
    using enum turns::Order;
    size_t number = 0;
    for (const int n : {2, 3})
        for (const Case& operation : every::operations(n)) {
            if (argc > 1 && operation.name.find(argv[1]) == std::string::npos) continue;
            ++number;
            for (int victim = 0; victim < n; ++victim)
                for (const auto order : {VictimFirst, VictimLast}) {
                    const size_t trial = number * 6 + size_t(victim) * 2 + size_t(order);
                    if (full || trial % 61 == 0)
                        for (uint32_t at = 1; test({operation, kKilled, n, victim, order, at}); ++at) {
                        }
                    if (refuses && (full || trial % 37 == 0))
                        for (const Fault& fault : kRefused)
                            if (full || &fault == &kRefused[trial % kRefused.size()])
                                test({operation, fault, n, victim, order, 1});
                }
        }
    return check::result();
}
