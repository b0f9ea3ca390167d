// Tests that failures end in an error on every rank, in bounded time.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "failure/termination.hpp"
#include "failure/watcher.hpp"
#include "ranks.hpp"
#include "refuse_memory.hpp"

using namespace rankwise;
using ranks::thrown;

namespace {

struct Program : Embedding {
    std::string call_site() override { return "here:1"; }
};

void sum(Comm& c, uint64_t count) {
    std::vector<float> x(count, 1);
    c.all_reduce(x.data(), count, DType::F32, ReduceOp::SUM);
}

void different_calls(Comm& c) {
    auto g = c.split(0, 0);
    CHECK_EQ(thrown([&] { sum(*g, c.rank() == 1 ? 10 : 9); }), "Mismatch");
    CHECK_EQ(thrown([&] { g->barrier(); }), "Mismatch");  // a group that failed stays failed

    g = c.split(0, 0);
    CHECK_EQ(thrown([&] {
                 float x[4] = {};
                 if (c.rank() == 0) g->broadcast(x, 4, DType::F32, 0);
                 else sum(*g, 4);
                 g->barrier();
             }),
             "Mismatch");

    g = c.split(0, 0);  // every rank is root, so none waits, and the next call finds the mismatch
    try {
        float x[4] = {};
        g->broadcast(x, 4, DType::F32, g->rank());
        g->barrier();
        CHECK(false, "no mismatch");
    } catch (const Mismatch& e) {
        int shown = 0;  // a late rank finds the group failed, and its call is not shown
        for (const auto& [r, calls] : e.calls)
            shown += calls.find("broadcast(count=4, dtype=float32, root=" + std::to_string(r)) == 0;
        CHECK(shown >= 2, e.what());
    }

    g = c.split(0, 0);
    const Counts out(c.world_size(), 1), in(c.world_size(), c.rank() == 0 ? 2 : 1);
    std::vector<float> a(8), b(16);
    CHECK_EQ(thrown([&] {
                 g->all_to_all_v(a.data(), b.data(), out, in, DType::F32);
                 g->barrier();
             }),
             "Mismatch");
}

// The text lists every rank's call and call site, a rank that is in no call, and which ranks differ.
void text_of_a_mismatch(Comm& c) {
    if (c.world_size() < 3) return;
    auto g = c.split(0, 0);
    g->barrier();
    float x[5] = {};
    if (c.rank() == 2) {
        c.barrier();  // enters no call of this group until the others have failed it
        try {
            g->reduce(x, 4, DType::F32, ReduceOp::SUM, 1);
            CHECK(false, "no mismatch");
        } catch (const Mismatch& e) {
            const std::string text = e.what();
            CHECK(text.find("rank 2: reduce(count=4, dtype=float32, op=sum, root=1) at here:1") != std::string::npos,
                  text);
            CHECK(e.different == std::vector<int>{1}, text);
        }
        return;
    }
    try {
        if (c.rank() == 1) g->reduce(x, 5, DType::F32, ReduceOp::MAX, 1);
        else g->reduce(x, 4, DType::F32, ReduceOp::SUM, 1);
        g->barrier();
        CHECK(false, "no mismatch");
    } catch (const Mismatch& e) {
        const std::string text = e.what();
        CHECK(text.find("rank 1: reduce(count=5, dtype=float32, op=max, root=1) at here:1   <-- other count, op") !=
                  std::string::npos,
              text);
        CHECK(text.find("rank 0: reduce(count=4, dtype=float32, op=sum, root=1)") != std::string::npos, text);
        CHECK(text.find("rank 2: nothing yet (now in barrier #") != std::string::npos, text);
        CHECK(e.different == std::vector<int>{1}, text);
        for (const auto& [r, site] : e.sites) CHECK(r != 2 && site == "here:1");
    }
    c.barrier();
}

void one_rank_is_late(Comm& c) {
    auto g = c.split(0, 0);
    g->set_timeout(0.1);
    if (c.rank() == 0) c.barrier();  // the others reach it when their call has timed out
    CHECK_EQ(thrown([&] { g->barrier(); }), "TimedOut");
    if (c.rank() != 0) c.barrier();
}

void one_rank_leaves(Comm& c) {
    auto g = c.split(0, 0);
    if (c.rank() == 0) {
        g->close(1);
        CHECK_EQ(thrown([&] { g->barrier(); }), "Closed");
    } else {
        CHECK_EQ(thrown([&] { sum(*g, 100'000); }), "PeerLost");
    }
}

// The others wait for a rank that is late, and none of them for the one that has left.
void one_rank_leaves_and_one_is_late(Comm& c) {
    const int last = c.world_size() - 1;
    if (last < 2) return;
    for (const bool first_leaves : {true, false})
        for (const uint64_t count : {0, 1, 100'000}) {
            auto g = c.split(0, 0);
            g->set_timeout(5);
            if (c.rank() == (first_leaves ? 0 : last)) g->close(1);
            else if (c.rank() != (first_leaves ? last : 0))
                CHECK_EQ(thrown([&] { count ? sum(*g, count) : g->barrier(); }), "PeerLost");
            c.barrier();
        }
}

void one_rank_aborts(Comm& c) {
    auto g = c.split(0, 0);
    if (c.rank() == 0) g->abort("aborted");
    else CHECK_EQ(thrown([&] { g->barrier(); }), "PeerLost");
}

// The owner of an array leaves a failed operation when no peer writes there any more, or, if one is stopped in the
// middle of that, at the timeout, with an error that says so.
void a_writer_is_stopped() {
    for (const bool goes_on : {true, false}) {
        std::atomic<bool> raised{false};
        ranks::run(
            2,
            [&](Comm& c) {
                const auto part = c.split(0, c.rank());
                GroupSegment* group = nullptr;
                c.segment()->heap().visit(BlockKind::GroupSegment, [&](uint64_t offset) {
                    if (offset != c.segment()->header().world_group.load())
                        group = c.segment()->at<GroupSegment>(offset);
                });
                if (c.rank() == 1) {
                    const auto in_all_reduce = [&] {
                        const Whereabouts where = whereabouts(*c.segment(), 0);
                        return where.inside && where.operation->kind == Op::AllReduce;
                    };
                    while (!in_all_reduce()) std::this_thread::yield();
                    std::this_thread::sleep_for(std::chrono::milliseconds(100));
                    group->peers[1].writing = 1;  // as a rank that was stopped leaves it
                    part->abort("aborted");
                    std::this_thread::sleep_for(std::chrono::milliseconds(200));
                    CHECK(!raised);
                    while (!goes_on && !raised) std::this_thread::yield();
                    group->peers[1].writing = 0;
                } else {
                    std::vector<double> x(1 << 18);
                    const auto since = Clock::now();
                    try {
                        part->all_reduce(x.data(), x.size(), DType::F64, ReduceOp::SUM);
                        CHECK(false, "nothing was thrown");
                    } catch (const PeerLost& e) {
                        const bool says =
                            std::string(e.what()).find("\nrank 1 may have been stopped in the middle of writing") !=
                            std::string::npos;
                        CHECK_EQ(says, !goes_on);
                        CHECK(goes_on || Clock::now() - since > std::chrono::seconds(1));
                    }
                    raised = true;
                }
                c.barrier();
            },
            goes_on ? 60 : 1);
    }
}

// The same at the beginning of the operation, where a signal handler ends the wait for the others although one of them
// has come by then and writes.
void interrupted_while_a_peer_writes() {
    struct Handler : Embedding {
        std::thread::id where;
        GroupSegment* group = nullptr;
        std::atomic<bool> armed{false}, written{false};
        std::thread writer;
        bool interrupted() override {
            if (!armed || std::this_thread::get_id() != where) return false;
            armed = false;
            group->peers[1].writing = 1;
            writer = std::thread([this] {
                while (!group->failed()) std::this_thread::yield();
                std::this_thread::sleep_for(std::chrono::milliseconds(300));
                written = true;
                group->peers[1].writing = 0;
            });
            return true;
        }
    } handler;
    Settings settings;
    settings.program = &handler;
    ranks::run(
        2,
        [&](Comm& c) {
            GroupSegment& group = *c.segment()->at<GroupSegment>(c.segment()->header().world_group);
            if (c.rank() == 0) {
                handler.where = std::this_thread::get_id();
                handler.group = &group;
                handler.armed = true;
                std::vector<double> x(1 << 18);
                CHECK_EQ(thrown([&] { c.all_reduce(x.data(), x.size(), DType::F64, ReduceOp::SUM); }), "Interrupted");
                CHECK(handler.written, "the call ended while a peer wrote");
                handler.writer.join();
            } else {
                while (!group.failed()) std::this_thread::yield();
                CHECK_EQ(thrown([&] { c.barrier(); }), "PeerLost");
            }
        },
        60, settings);
}

void bad_arguments_do_not_fail_the_group(Comm& c) {
    float x = 1;
    if (c.rank() == 0) {
        CHECK_EQ(thrown([&] { c.broadcast(&x, 1, DType::F32, c.world_size()); }), "BadArgument");
        CHECK_EQ(thrown([&] { c.all_reduce(&x, 1, DType::I32, ReduceOp::MEAN); }), "BadArgument");
        CHECK_EQ(thrown([&] { c.gather_v(&x, &x, Counts(7), DType::F32, 0); }), "BadArgument");
        CHECK_EQ(thrown([&] { c.messages().send({&x, 1, DType::F32, -1, 0}); }), "BadArgument");
        CHECK_EQ(thrown([&] { c.set_timeout(0); }), "BadArgument");
        CHECK_EQ(thrown([&] { c.all_reduce(&x, uint64_t(1) << 62, DType::F32, ReduceOp::SUM); }), "BadArgument");
        const auto nowhere = [](size_t) -> uint8_t* { return nullptr; };
        collectives::Division uneven{1, Counts(size_t(c.world_size()), UINT64_MAX / 2), {}, {}};
        CHECK_EQ(thrown([&] { c.scatter_sized(uneven, &x, nowhere, 0); }), "BadArgument");
        collectives::Division even{size_t(1) << 32, {}, {}, uint64_t(1) << 32};
        CHECK_EQ(thrown([&] { c.scatter_sized(even, &x, nowhere, 0); }), "BadArgument");
    }
    c.barrier();
}

void close_waits_for_started_operations(Comm& c) {
    auto g = c.split(0, 0);
    std::vector<float> x(100'000, 1);
    auto task = g->submit([&] { g->all_reduce(x.data(), x.size(), DType::F32, ReduceOp::SUM); });
    CHECK(!g->close(5), "close reports nothing");
    task->wait(1);
    CHECK_EQ(x[0], float(c.world_size()));

    g = c.split(0, 0);  // and abandons an operation that does not finish
    if (c.rank() > 0) {
        c.barrier();
        CHECK_EQ(thrown([&] { g->barrier(); }), "PeerLost");
        return;
    }
    task = g->submit([&] { g->barrier(); });
    const auto since = Clock::now();
    CHECK(g->close(0.1), "close reports that an operation was abandoned");
    CHECK(Clock::now() - since < std::chrono::seconds(20));
    CHECK_EQ(thrown([&] { task->wait(1); }), "PeerLost");
    c.barrier();  // the other ranks reach the closed group only now
}

// A rank dies while a group that contains it is being created.
void a_new_group_with_a_dead_rank() {
    auto segment = Segment::create(2);
    segment->mark_ended(1, -SIGKILL);
    const GroupSegment& group = *segment->at<GroupSegment>(create_group_segment(*segment, {{0, 0}, {1, 0}}));
    CHECK(group.failed());
    CHECK_EQ(group.failure().rank, 1);
}

// The launcher has promised exit statuses and does not report them, because it is stopped: the wait for them counts
// from the end of each process, so that many losses, and later reports of them, do not wait one after the other.
void the_statuses_of_many_lost_ranks_are_late() {
    struct Impatient : Embedding {
        bool interrupted() override { return true; }  // at the first wait
    } impatient;
    Settings settings;
    settings.program = &impatient;
    const auto segment = Segment::create(4);
    const auto memory = std::make_shared<BufferCache>(segment);
    const Comm comm(memory, segment->header().world_group, 0, 60, settings);
    segment->header().statuses_expected = 1;
    for (int rank = 1; rank < 4; ++rank) segment->mark_ended(rank, kStatusUnknown);
    CHECK_EQ(thrown([&] { comm.failed(); }), "Interrupted");
    for (int rank = 1; rank < 4; ++rank) segment->record(rank).ended_at = Clock::now() - kSureStatus;
    CHECK_EQ(comm.failed().size(), 3u);
    CHECK_EQ(comm.failed().at(1), "ended");
}

// A rank dies, and the rank that noticed it dies before it has failed any group.
void a_death_noticed_by_a_dead_rank() {
    auto segment = Segment::create(3);
    segment->record(2).ended = 1;
    segment->mark_ended(2, -SIGKILL);
    const GroupSegment& world = *segment->at<GroupSegment>(segment->header().world_group);
    CHECK(world.failed());
    CHECK_EQ(world.failure().rank, 2);
    CHECK(world.failure().cause == Cause::PeerLost);
}

// Ranks that are processes: one is killed while the others wait for it. Its parent has not reaped it when they find
// that, and a launcher ends them at once.
void a_process_dies() {
    auto segment = Segment::create(3);
    int pids[3];
    for (int rank = 0; rank < 3; ++rank) {
        if ((pids[rank] = fork())) continue;
        auto comm = Comm::join(segment, rank, 30, Comm::RunsAs::Process);
        if (rank == 2) {
            comm->barrier();
            kill(getpid(), SIGKILL);
        }
        comm->barrier();
        std::string how;
        try {
            comm->barrier();
        } catch (const PeerLost& e) {
            how = e.how;
        }
        raise(SIGTERM);
        _exit(how == "was killed by SIGKILL" ? 0 : 1);
    }
    for (int rank = 0; rank < 3; ++rank) {
        int status = 0;
        waitpid(pids[rank], &status, 0);
        if (rank < 2)
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank " << rank << " ended with status " << status);
        else CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
}

// A timeout report requests the stacks of a rank whose process can start no thread: the report does without them.
void no_thread_for_the_stacks() {
    if (!can_refuse("a timeout report of a rank that can start no thread")) return;
    const auto segment = Segment::create(2);
    const auto& world = *segment->at<GroupSegment>(segment->header().world_group);
    int pids[2];
    for (int rank = 0; rank < 2; ++rank) {
        if ((pids[rank] = fork())) continue;
        const auto comm = Comm::join(segment, rank, 30, Comm::RunsAs::Process);
        comm->barrier();
        if (rank == 0) {
            comm->set_timeout(0.5);
            _exit(thrown([&] { comm->barrier(); }) == "TimedOut" ? 0 : 1);
        }
        sock_filter refuse[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
        const sock_fprog filter{std::size(refuse), refuse};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0) _exit(2);
        if (thrown([] { engine_thread([] {}).join(); }) != "Error") _exit(3);
        sigset_t blocked;
        pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
        if (sigismember(&blocked, SIGTERM)) _exit(4);
        while (!world.failed()) usleep(1000);
        _exit(0);
    }
    for (int rank = 0; rank < 2; ++rank) {
        int status = 0;
        waitpid(pids[rank], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank " << rank << " ended with status " << status);
    }
}

void a_process_without_a_loss_is_ended() {
    const int pid = fork();
    if (!pid) {
        defer_termination();
        raise(SIGTERM);
        for (;;) pause();
    }
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "ended with status " << status);
}

int watched_processes() {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;  // the iterator's own descriptor
        count += std::filesystem::read_symlink(entry, gone).string().find("pidfd") != std::string::npos;
    }
    return count;
}

// A rank watches a few others. When they die, all at once, it watches those that they have watched.
void most_processes_die() {
    constexpr int n = 12;
    auto segment = Segment::create(n);
    int pids[n];
    const auto dies = [](int rank) { return rank > 0 && rank < 10; };
    for (int rank = 0; rank < n; ++rank) {
        if ((pids[rank] = fork())) continue;
        const auto comm = Comm::join(segment, rank, 60, Comm::RunsAs::Process);
        const bool few = watched_processes() <= kWatched;
        comm->barrier();
        if (dies(rank)) kill(getpid(), SIGKILL);
        const bool first = thrown([&] { comm->barrier(); }) == "PeerLost";
        const auto three = comm->shrink();
        three->barrier();
        if (rank == 10) kill(getpid(), SIGKILL);
        const bool second = thrown([&] { three->barrier(); }) == "PeerLost";
        const auto two = three->shrink();
        two->barrier();
        _exit(few && first && second && three->world_size() == 3 && two->world_size() == 2 ? 0 : 1);
    }
    for (int rank = 0; rank < n; ++rank) {
        int status = 0;
        waitpid(pids[rank], &status, 0);
        if (dies(rank) || rank == 10) CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank " << rank << " ended with status " << status);
    }
}

}  // namespace

int main() {
    Program program;
    Settings settings;
    settings.program = &program;
    a_process_dies();  // before there are threads
    a_process_without_a_loss_is_ended();
    most_processes_die();
    no_thread_for_the_stacks();
    for (int n : ranks::worlds({2, 3, 4}))
        ranks::run(
            n,
            [](Comm& c) {
                different_calls(c);
                text_of_a_mismatch(c);
                one_rank_is_late(c);
                one_rank_leaves(c);
                one_rank_leaves_and_one_is_late(c);
                one_rank_aborts(c);
                close_waits_for_started_operations(c);
                bad_arguments_do_not_fail_the_group(c);
            },
            60, settings);
    a_writer_is_stopped();
    interrupted_while_a_peer_writes();
    a_new_group_with_a_dead_rank();
    a_death_noticed_by_a_dead_rank();
    the_statuses_of_many_lost_ranks_are_late();
    CHECK_EQ(thrown([] { Segment::create(0); }), "BadArgument");
    CHECK_EQ(thrown([] { Segment::create(2)->heap().allocate(size_t(1) << 50, BlockKind::Buffer); }), "OutOfMemory");
    return check::result();
}
