// Tests that the ranks that live go on after a loss, whatever dies or stops at whatever moment.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "ranks.hpp"

using namespace rankwise;
using ranks::thrown;

namespace {

float sum_of_ones(Comm& c, uint64_t count = 1) {
    std::vector<float> x(count, 1);
    c.all_reduce(x.data(), count, DType::F32, ReduceOp::SUM);
    return x[count - 1];
}

// ---- ranks as threads ----

void the_survivors_shrink(Comm& c) {
    auto g = c.split(0, -c.rank());  // in the reverse order
    const int last = g->world_size() - 1;
    if (g->rank() == last) {
        g->close(1);
        c.barrier();
        return;
    }
    CHECK_EQ(thrown([&] { g->barrier(); }), "PeerLost");
    CHECK_EQ(g->failed().count(last), 1u);
    auto small = g->shrink();
    CHECK_EQ(small->world_size(), last);
    CHECK_EQ(small->rank(), g->rank());
    CHECK_EQ(small->numbers_in(*g)[size_t(small->rank())], g->rank());
    CHECK_EQ(sum_of_ones(*small, 100'000), float(last));
    CHECK_EQ(thrown([&] { g->barrier(); }), "PeerLost");  // the former group stays failed
    c.barrier();                                          // its parent does not fail
}

void a_group_that_differed_goes_on(Comm& c) {
    auto g = c.split(0, 0);
    CHECK_EQ(thrown([&] {
                 std::vector<float> x(20);
                 g->all_reduce(x.data(), g->rank() == 0 ? 7 : 9, DType::F32, ReduceOp::SUM);
                 g->barrier();
             }),
             "Mismatch");
    CHECK(g->failed().empty());
    for (int times = 0; times < 5; ++times) g = g->shrink();
    CHECK_EQ(sum_of_ones(*g), float(c.world_size()));
}

void ranks_agree(Comm& c) {
    auto g = c.split(0, 0);
    for (int64_t round = 0; round < 50; ++round)
        CHECK_EQ(g->agree(g->rank() == round % g->world_size() ? round : -1), round);
    g->barrier();
    if (g->rank() == 0) g->abort("has had enough");
    CHECK_EQ(g->agree(-1), -1);
}

// Some ranks have noticed a failure and shrink the group, while another still agrees.
void one_agrees_while_others_shrink(Comm& c) {
    auto g = c.split(0, 0);
    if (g->rank() == 0) CHECK_EQ(thrown([&] { g->agree(1); }), "Mismatch");
    CHECK_EQ(sum_of_ones(*g->shrink()), float(c.world_size()));

    g = c.split(0, 0);
    if (g->rank() == 0) {
        g->abort("has had enough");
        CHECK_EQ(thrown([&] { g->agree(1); }), "PeerLost");
    }
    CHECK_EQ(sum_of_ones(*g->shrink()), float(c.world_size()));
}

// The others go on without a rank that lives, and do not wait for it.
void a_living_rank_is_excluded(Comm& c) {
    auto g = c.split(0, 0);
    const int last = c.world_size() - 1;
    CHECK_EQ(thrown([&] { g->shrink({c.rank()}); }), "BadArgument");
    CHECK_EQ(thrown([&] { g->shrink({last + 1}); }), "BadArgument");
    if (c.rank() == last) {
        c.barrier();
        CHECK_EQ(thrown([&] { g->shrink(); }), "PeerLost");
        return;
    }
    if (last > 1)
        CHECK_EQ(thrown([&] { g->shrink(c.rank() == 0 ? std::vector<int>{} : std::vector<int>{last}); }), "Mismatch");
    auto small = g->shrink({last});
    CHECK_EQ(small->world_size(), last);
    CHECK_EQ(sum_of_ones(*small, 100'000), float(last));
    CHECK_EQ(g->failed().count(last), 1u);
    CHECK_EQ(g->agree(3), 3);
    c.barrier();
}

// The others go on without a rank that does not come, and it learns that.
void a_rank_is_late(Comm& c) {
    auto g = c.split(0, 0);
    g->set_timeout(0.2);
    if (c.rank() == 0) {
        c.barrier();
        try {
            g->shrink();
            CHECK(false, "the others went on without this rank");
        } catch (const PeerLost& e) {
            CHECK_EQ(e.rank, 0);
            CHECK(std::string(e.what()).find("was excluded") != std::string::npos, e.what());
        }
        CHECK_EQ(thrown([&] { g->barrier(); }), "TimedOut");
        return;
    }
    auto small = g->shrink();
    CHECK_EQ(small->world_size(), c.world_size() - 1);
    CHECK_EQ(g->failed().count(0), 1u);
    CHECK_EQ(g->agree(3), 3);  // not waited for again
    c.barrier();
}

// A rank without which the others went on stays excluded: it does not become a group of its own when they have left.
void an_excluded_rank_stays_excluded(Comm& c) {
    auto g = c.split(0, 0);
    g->set_timeout(0.2);
    if (c.rank() == 0) {
        c.barrier();
        CHECK_EQ(thrown([&] { g->agree(1); }), "PeerLost");
        CHECK_EQ(thrown([&] { g->shrink(); }), "PeerLost");
        CHECK_EQ(thrown([&] { g->agree(1); }), "PeerLost");
        return;
    }
    CHECK_EQ(g->agree(3), 3);
    g->close(1);
    c.barrier();
}

// What waits for the excluded rank delays nobody.
void a_rank_is_excluded_from_what_is_pending(Comm& c) {
    auto g = c.split(0, 0);
    if (c.rank() > 0) {
        float x = 1;
        const auto pending = g->submit([&] { g->all_reduce(&x, 1, DType::F32, ReduceOp::SUM); });
        const auto small = g->shrink({0});
        CHECK_EQ(thrown([&] { pending->wait(60); }), "PeerLost");
        CHECK_EQ(sum_of_ones(*small), float(c.world_size() - 1));
    }
    c.barrier();
}

void nothing_restores_threads(Comm& c) {
    CHECK_EQ(thrown([&] { c.restore(); }), "Unsupported");
}

void memory_is_freed() {
    auto segment = ranks::run(3, [](Comm& c) {
        for (int times = 0; times < 10; ++times) {
            auto g = c.split(0, 0);
            g->shrink()->barrier();
        }
    });
    CHECK_EQ(segment->heap().allocated_blocks(), 1u);  // the group of all ranks
}

// ---- ranks as processes ----

// The processes of one job. The parent is their launcher; it has one thread.
class Job {
public:
    using Body = std::function<void(Segment&, int rank, uint32_t restart)>;
    Job(int n, Body body) : body_(std::move(body)), segment_(Segment::create(n)), restarts_(size_t(n)) {
        segment_->header().statuses_expected = 1;
    }
    Segment& segment() { return *segment_; }
    void start(int rank) {
        const int pid = fork();
        if (pid) {
            pids_[pid] = rank;
            return;
        }
        check::failures = 0;
        alarm(60);  // a rank that hangs fails the test
        try {
            body_(*segment_, rank, restarts_[size_t(rank)]);
        } catch (const std::exception& e) {
            std::cerr << "rank " << rank << ", process " << restarts_[size_t(rank)] << ": " << e.what() << "\n";
            _exit(1);
        }
        _exit(check::failures == 0 ? 0 : 1);
    }
    void start_all() {
        for (int rank = 0; rank < segment_->world_size(); ++rank) start(rank);
    }
    void signal(int rank, int number) {
        for (const auto& [pid, its] : pids_)
            if (its == rank) kill(pid, number);
    }
    // Waits for one process to end; returns its rank.
    int reap(int* status) {
        const int pid = wait(status);
        const int rank = pids_.at(pid);
        pids_.erase(pid);
        segment_->mark_ended(rank, WIFSIGNALED(*status) ? -WTERMSIG(*status) : WEXITSTATUS(*status),
                             restarts_[size_t(rank)]);
        return rank;
    }
    void replace(int rank) {
        ++restarts_[size_t(rank)];
        start(rank);
    }
    // Until every rank has a communicator, and has called an operation on it (the first call is join's).
    void await_joined() const {
        for (int rank = 0; rank < segment_->world_size(); ++rank)
            while (segment_->at<GroupSegment>(segment_->header().world_group)->peers[rank].calls.load() < 2)
                usleep(100);
    }
    bool running() const { return !pids_.empty(); }
    uint32_t restarts(int rank) const { return restarts_[size_t(rank)]; }

private:
    Body body_;
    std::shared_ptr<Segment> segment_;
    std::vector<uint32_t> restarts_;
    std::map<int, int> pids_;
};

bool is_loss(const std::exception& e) { return dynamic_cast<const PeerLost*>(&e) || dynamic_cast<const TimedOut*>(&e); }

// Communicates in groups that shrink, until a group of `until` ranks has made 20 rounds.
void shrink_until(Segment& segment, int rank, int until, double timeout) {
    auto comm = Comm::join(segment.shared_from_this(), rank, 30, Comm::RunsAs::Process);
    comm->set_timeout(timeout);
    for (int rounds = 0; rounds < 20 || comm->world_size() > until;) {
        try {
            const int n = comm->world_size();
            CHECK_EQ(sum_of_ones(*comm, rounds % 3 ? 10 : 100'000), float(n));
            CHECK(comm->agree(rounds) == rounds, "round " << rounds);
            ++rounds;
        } catch (const Error& e) {
            if (!is_loss(e)) throw;
            auto smaller = comm->shrink();
            comm->close(0.1);
            comm = smaller;
            rounds = 0;
        }
    }
    comm->close(1);
}

// Several ranks are killed at random moments, some at once.
void kills_while_shrinking(unsigned seed) {
    std::mt19937 random(seed);
    const int n = 2 + int(random() % 4), kills = 1 + int(random() % unsigned(n - 1));
    Job job(n, [&](Segment& segment, int rank, uint32_t) { shrink_until(segment, rank, n - kills, 30); });
    job.start_all();
    job.await_joined();
    usleep(random() % 20'000);
    for (int rank = 0; rank < kills; ++rank) {
        job.signal(rank, SIGKILL);
        if (random() % 2) usleep(random() % 3000);
    }
    for (int status; job.running();) {
        const int rank = job.reap(&status);
        if (rank < kills)
            CHECK(WIFSIGNALED(status), "seed " << seed << ", rank " << rank << " ended with status " << status);
        else
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "seed " << seed << ": rank " << rank << " of " << n
                                                                         << ", " << kills
                                                                         << " killed, ended with status " << status);
    }
}

// A survivor is stopped while the others shrink; they go on without it, and it gets an error when it wakes.
void a_stopped_survivor(unsigned seed) {
    std::mt19937 random(seed);
    Job job(4, [&](Segment& segment, int rank, uint32_t) {
        try {
            shrink_until(segment, rank, 2, 0.6);
        } catch (const Error& e) {
            if (rank != 2 || !is_loss(e)) throw;
            _exit(7);  // the others went on without it
        }
    });
    job.start_all();
    job.await_joined();
    usleep(random() % 10'000);
    job.signal(3, SIGKILL);
    usleep(random() % 3000);
    job.signal(2, SIGSTOP);
    for (int status; job.running();) {
        const int rank = job.reap(&status);
        if (rank == 1) job.signal(2, SIGCONT);
        if (rank < 2)
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0,
                  "seed " << seed << ": rank " << rank << " ended with status " << status);
        if (rank == 2)
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7,
                  "seed " << seed << ": the stopped rank ended with status " << status);
    }
}

// Every rank counts rounds until 30; whatever is killed is started again, and all meet. A rank that is restored when
// others have finished has nothing left to do.
void restored(Segment& segment, int rank, uint32_t restart) {
    std::shared_ptr<Comm> comm;
    try {
        comm = Comm::join(segment.shared_from_this(), rank, 30, Comm::RunsAs::Process, {}, restart);
        for (int64_t round = 0; round < 30;) {
            try {
                int64_t newest = round;  // those that have been restored begin where the others are
                comm->all_reduce(&newest, 1, DType::I64, ReduceOp::MAX);
                CHECK_EQ(sum_of_ones(*comm, 1000), float(segment.world_size()));
                round = newest + 1;
                usleep(500);
            } catch (const PeerLost&) {
                auto again = comm->restore();
                comm->close(0.1);
                comm = again;
                CHECK_EQ(comm->world_size(), segment.world_size());
                CHECK_EQ(comm->rank(), rank);
            }
        }
    } catch (const PeerLost& e) {
        if (e.how != "exited with status 0") throw;
    }
    if (comm) comm->close(1);
}

void kills_while_restoring(unsigned seed) {
    std::mt19937 random(seed);
    const int n = 2 + int(random() % 3), kills = 1 + int(random() % 5);
    Job job(n, restored);
    job.segment().header().restarts_expected = 1;
    job.start_all();
    const auto reap = [&] {
        int status;
        const int rank = job.reap(&status);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return job.replace(rank);
        job.segment().give_up(rank);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "seed " << seed << ": rank " << rank << " of " << n
                                                                     << ", process " << job.restarts(rank)
                                                                     << ", ended with status " << status);
    };
    for (int killed = 0; killed < kills && job.running(); ++killed) {
        usleep(random() % 8000);
        job.signal(int(random() % unsigned(n)), SIGKILL);
        if (random() % 4) reap();  // else two are killed at once
    }
    while (job.running()) reap();
}

// The launcher does not start a rank again, so nothing is restored; the others shrink.
void a_rank_given_up() {
    Job job(3, [](Segment& segment, int rank, uint32_t) {
        auto comm = Comm::join(segment.shared_from_this(), rank, 30, Comm::RunsAs::Process);
        if (rank == 1) kill(getpid(), SIGKILL);
        CHECK_EQ(thrown([&] { comm->barrier(); }), "PeerLost");
        try {
            comm->restore();
            CHECK(false, "restored without rank 1");
        } catch (const PeerLost& e) {
            CHECK_EQ(e.rank, 1);
            CHECK(std::string(e.what()).find(
                      "rank 1 was killed by SIGKILL, and the launcher does not start it again") == 0,
                  e.what());
        }
        CHECK_EQ(sum_of_ones(*comm->shrink()), 2.0f);
    });
    job.segment().header().restarts_expected = 1;
    job.start_all();
    for (int status; job.running();) {
        const int rank = job.reap(&status);
        if (rank == 1) usleep(20'000), job.segment().give_up(1);
        else CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank " << rank << " ended with status " << status);
    }
}

// What a killed rank had allocated is freed when the others go on.
void memory_of_the_dead_is_freed() {
    Job job(3, [](Segment& segment, int rank, uint32_t) {
        auto comm = Comm::join(segment.shared_from_this(), rank, 30, Comm::RunsAs::Process);
        const auto buffer = comm->allocate(1 << 20);
        comm->barrier();
        if (rank == 2) kill(getpid(), SIGKILL);
        CHECK_EQ(thrown([&] { comm->barrier(); }), "PeerLost");
        const auto smaller = comm->shrink();
        smaller->barrier();
        CHECK_EQ(segment.heap().allocated_blocks(), 4u);  // two groups, two buffers
        comm->close(1);
        smaller->barrier();
        CHECK_EQ(segment.heap().allocated_blocks(), 4u);  // the header still refers to the group of all ranks
        smaller->barrier();
    });
    job.start_all();
    for (int status; job.running();) {
        const int rank = job.reap(&status);
        if (rank < 2)
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank " << rank << " ended with status " << status);
    }
}

}  // namespace

int main() {
    const char* faults = std::getenv("RANKWISE_FAULTS");
    const unsigned tries = faults && std::strcmp(faults, "full") == 0 ? 300 : ranks::shortened() ? 3 : 12;
    const char* given = std::getenv("RANKWISE_FAULTS_SEED");
    const unsigned first = given ? unsigned(std::atoi(given)) : unsigned(time(nullptr));
    for (unsigned seed = first; seed < first + tries; ++seed) {  // before there are threads
        kills_while_shrinking(seed);
        kills_while_restoring(seed);
        a_stopped_survivor(seed);
    }
    a_rank_given_up();
    memory_of_the_dead_is_freed();
    for (int n : ranks::worlds({2, 3, 4}))
        ranks::run(n, [](Comm& c) {
            the_survivors_shrink(c);
            a_living_rank_is_excluded(c);
            a_group_that_differed_goes_on(c);
            ranks_agree(c);
            one_agrees_while_others_shrink(c);
            if (c.world_size() > 1) {
                a_rank_is_late(c);
                an_excluded_rank_stays_excluded(c);
                a_rank_is_excluded_from_what_is_pending(c);
            }
            nothing_restores_threads(c);
            c.barrier();
        });
    memory_is_freed();
    return check::result();
}
