// Tests that a timeout is called a deadlock if and only if the ranks can be seen to wait for each other.
#include "failure/deadlock.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "ranks.hpp"

using namespace rankwise;

namespace {

constexpr double kTimeout = 0.6;
constexpr uint64_t kLong = 1 << 22;  // elements of a message that no ring holds

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void texts() {
    const auto receive = [](int from) { return Awaited{from, "recv, tag 0", true}; };
    CHECK_EQ(describe_deadlock({receive(1), std::nullopt}, 0), "");
    CHECK_EQ(describe_deadlock({std::nullopt, receive(0)}, 0), "");
    CHECK_EQ(describe_deadlock({receive(1), receive(0)}, 1),
             "; a deadlock: rank 0 waits for rank 1 (recv, tag 0), and rank 1 waits for rank 0 (recv, tag 0); one of "
             "them must send first");
    // A rank that waits for a cycle says what the ranks of the cycle say.
    CHECK_EQ(describe_deadlock({receive(2), Awaited{2, "barrier #1", false}, receive(1)}, 0),
             "; a deadlock: rank 1 waits for rank 2 (barrier #1), and rank 2 waits for rank 1 (recv, tag 0)");
    std::vector<std::optional<Awaited>> ring;
    for (int p = 0; p < 20; ++p) ring.push_back(receive((p + 1) % 20));
    CHECK(has(describe_deadlock(ring, 5),
              "rank 7 waits for rank 8 (recv, tag 0), and so on, up to rank 19, which waits for rank 0;"),
          describe_deadlock(ring, 5));
}

template <class Call> std::string error_of(Call&& call) {
    try {
        call();
    } catch (const Error& e) {
        return e.what();
    }
    return "";
}

std::atomic<bool> away;  // rank 1 is outside any call

// Runs both ranks' calls at the same time until rank 0's times out, and returns what each rank's error says.
template <class Zero, class One> std::vector<std::string> both(Zero&& zero, One&& one) {
    std::vector<std::string> said(2);
    away = false;
    ranks::run(2, [&](Comm& c) {
        c.barrier();
        if (c.rank() == 0) {
            const Segment& segment = *c.segment();
            const uint64_t last = whereabouts(segment, 0).operation->number;
            while (!away && whereabouts(segment, 1).operation->number == last) std::this_thread::yield();
            c.set_timeout(kTimeout);
        }
        said[size_t(c.rank())] = error_of([&] { c.rank() == 0 ? zero(c) : one(c); });
        if (c.rank() == 0) c.abort("has said what it waited for");  // rank 1 need not wait any longer
    });
    return said;
}

void receive(Comm& c) {
    double x = 0;
    c.messages().recv_now({&x, 1, DType::F64, 1 - c.rank(), 3});
}

void send_much(Comm& c) {
    std::vector<double> x(kLong);
    c.messages().send_now({x.data(), kLong, DType::F64, 1 - c.rank(), 3});
}

void send_synchronously(Comm& c) {
    const double x = 0;
    c.messages().send({&x, 1, DType::F64, 1 - c.rank(), 3, Send::Mode::Synchronous})->wait(std::nullopt);
}

void wait_after_other_messages(Comm& c) {
    double x = 0, y = 0;
    const auto early = c.messages().recv({&x, 1, DType::F64, 1 - c.rank(), 8});
    c.messages().recv_now({&y, 1, DType::F64, 1 - c.rank(), 3});
}

void barrier(Comm& c) { c.barrier(); }

void outside(Comm&) {
    away = true;
    std::this_thread::sleep_for(std::chrono::duration<double>(2 * kTimeout));
}

void barrier_on_the_stream(Comm& c) {
    const auto task = c.submit([&c] { c.barrier(); });
    outside(c);
}

void send_in_the_background(Comm& c) {  // as a message that takes longer than the timeout
    Tracer tracer(*c.segment(), c.rank());
    TraceEntry* const sent =
        tracer.begin(make_call(Op::Send, DType::F64, {}, 1 - c.rank()).what | kBackground, 0, 3, 0, 8, ticks());
    CHECK(!error_of([&] { receive(c); }).empty());
    tracer.end(sent, ticks(), 0);
}

void deadlocks() {
    const std::string receives =
        "a deadlock: rank 0 waits for rank 1 (recv, tag 3), and rank 1 waits for rank 0 (recv, tag 3); one of them "
        "must send first\n";
    CHECK(has(both(receive, receive)[0], "was not complete within 0.6 s; " + receives));
    CHECK(has(both(wait_after_other_messages, wait_after_other_messages)[0], receives));

    CHECK(has(both(send_synchronously, send_synchronously)[0],
              "a deadlock: rank 0 waits for rank 1 (send, tag 3), and rank 1 waits for rank 0 (send, tag 3)\n"));

    const auto another = [](Comm& c) {
        double x = 0;
        c.messages().recv_now({&x, 1, DType::F64, 1 - c.rank(), 4});
    };
    CHECK(has(both(another, send_synchronously)[0],
              "a deadlock: rank 0 waits for rank 1 (recv, tag 4), and rank 1 waits for rank 0 (send, tag 3)\n"));

    auto said = both(receive, barrier);
    CHECK(has(said[0],
              "rank 0's recv from rank 1 (1 x float64 with tag 3) was not complete within 0.6 s; a deadlock: "
              "rank 0 waits for rank 1 (recv, tag 3), and rank 1 waits for rank 0 (barrier #2)\n"),
          said[0]);
    CHECK(has(said[0], "\n  rank 1: in barrier #2 for "), said[0]);

    said = both(barrier, receive);
    const std::string late =
        "rank 1 did not reach barrier #2 within the timeout of 0.6 s; a deadlock: "
        "rank 0 waits for rank 1 (barrier #2), and rank 1 waits for rank 0 (recv, tag 3)\n";
    CHECK(said[0].find(late) == 0, said[0]);
    CHECK(said[1].find("rank 1 was in recv from rank 0, tag 3, when rank 0 timed out: " + late) == 0, said[1]);

    CHECK(has(both(barrier, send_much)[0],
              "a deadlock: rank 0 waits for rank 1 (barrier #2), and rank 1 waits for rank 0 (send, tag 3)\n"));
}

void no_deadlocks() {
    const auto none = [](const std::vector<std::string>& said) {
        CHECK(has(said[0], "\n  rank 1: "), said[0]);
        CHECK(!has(said[0], "deadlock"), said[0]);
    };
    none(both(receive, outside));
    none(both(receive, barrier_on_the_stream));
    none(both(receive, send_in_the_background));
    none(both(
        [](Comm& c) {  // the program means to come back
            double x = 0;
            c.set_timeout(60);
            c.messages().recv({&x, 1, DType::F64, 1, 3})->wait(kTimeout);
        },
        receive));
}

// In how many ranks, processes of one thread each, `body` does not throw. meanwhile: what else happens to them.
template <class Body, class Meanwhile>
int processes(int n, const Body& body, const Meanwhile& meanwhile, const Settings& settings = {}) {
    const auto segment = Segment::create(n);
    std::vector<int> pids;
    for (int rank = 0; rank < n; ++rank) {
        pids.push_back(fork());
        if (pids.back()) continue;
        signal(SIGALRM, SIG_DFL);  // the test's own handler could send, for all that the ranks know
        const auto comm = Comm::join(segment, rank, 60, Comm::RunsAs::Thread, settings);
        comm->barrier();
        const std::string error = error_of([&] { body(*comm); });
        if (!error.empty()) std::fprintf(stderr, "rank %d: %s\n", rank, error.c_str());
        comm->close(5);
        _exit(error.empty() ? 0 : 1);
    }
    meanwhile(pids);
    int right = 0;
    for (const int pid : pids) {
        int status = 0;
        waitpid(pid, &status, 0);
        right += status == 0;
    }
    return right;
}

void nothing(const std::vector<int>&) {}

void receive_from_previous(Comm& c) {
    double x = 0;
    c.messages().recv_now({&x, 1, DType::F64, (c.rank() + c.world_size() - 1) % c.world_size(), 3});
}

void send_to_next(Comm& c) {
    const double x = 0;
    c.messages().send_now({&x, 1, DType::F64, (c.rank() + 1) % c.world_size(), 3});
}

// Long before the timeout of 60 s.
void a_certain_deadlock() {
    const auto body = [](Comm& c) {
        const std::string error = error_of([&] { receive_from_previous(c); });
        if (has(error, "was aborted")) return;  // by the rank that was the first to see it
        const std::string cycle =
            "(1 x float64 with tag 3) can never be complete; a deadlock: rank 0 waits for rank 2 "
            "(recv, tag 3), rank 2 waits for rank 1 (recv, tag 3), and rank 1 waits for rank 0 "
            "(recv, tag 3); one of them must send first\n";
        if (!has(error, cycle)) throw Error("not the error: " + error);
        c.abort("was aborted");
    };
    CHECK_EQ(processes(3, body, nothing), 3);
}

struct SendsWhenCalled final : Embedding {
    bool interrupted() override {
        if (comm && Clock::now() > time) send_to_next(*std::exchange(comm, nullptr));
        return false;
    }
    Comm* comm = nullptr;
    const Clock::time_point time = Clock::now() + std::chrono::milliseconds(1500);
};

// All ranks wait for longer than it takes to find a deadlock, but one of them will send in the end.
template <class First> int wait_for_rank_0(const First& first) {
    const auto body = [&](Comm& c) {
        if (c.rank() == 0) return first(c);
        receive_from_previous(c);
        send_to_next(c);
    };
    return processes(3, body, nothing);
}

void waits_that_end() {
    const auto another_thread_sends = [](Comm& c) {
        std::thread other([&] {
            usleep(1'500'000);
            send_to_next(c);
        });
        receive_from_previous(c);
        other.join();
    };
    CHECK_EQ(wait_for_rank_0(another_thread_sends), 3);

    const auto after_its_limit = [](Comm& c) {
        double x = 0;
        const auto message = c.messages().recv({&x, 1, DType::F64, 2, 3});
        if (!has(error_of([&] { message->wait(1.5); }), "not complete within 1.5 s")) throw Error("it was complete");
        send_to_next(c);
        message->wait(std::nullopt);
    };
    CHECK_EQ(wait_for_rank_0(after_its_limit), 3);

    const auto after_a_shorter_timeout = [](Comm& c) {
        c.set_timeout(1.5);
        if (!has(error_of([&] { receive_from_previous(c); }), "not complete within 1.5 s"))
            throw Error("it was complete");
        c.set_timeout(60);
        send_to_next(c);
    };
    CHECK_EQ(wait_for_rank_0(after_a_shorter_timeout), 3);
}

void a_signal_handler_sends() {
    SendsWhenCalled program;
    const auto body = [&](Comm& c) {
        if (c.rank() == 0) program.comm = &c;
        else receive_from_previous(c);
        if (c.rank() == 0) receive_from_previous(c);
        else send_to_next(c);
    };
    signal(SIGUSR1, [](int) {});
    Settings settings;
    settings.program = &program;
    CHECK_EQ(processes(3, body, nothing, settings), 3);
    signal(SIGUSR1, SIG_DFL);
}

// All wait for each other, and have for long, while one of them has been stopped before it got its message.
void a_message_on_its_way() {
    const auto body = [](Comm& c) {
        if (c.rank() == 2) {
            usleep(1'500'000);
            send_to_next(c);
        }
        receive_from_previous(c);
        send_to_next(c);
        if (c.rank() == 0) receive_from_previous(c);
    };
    const auto stop_one = [](const std::vector<int>& pids) {
        usleep(1'000'000);
        kill(pids[1], SIGSTOP);
        usleep(2'000'000);
        kill(pids[1], SIGCONT);
    };
    CHECK_EQ(processes(3, body, stop_one), 3);
}

// Whether this process has a thread that could send, for all that the engine knows: a sanitizer's, which it starts only
// later, or an emulator's.
bool has_another_thread() {
#ifdef __SANITIZE_THREAD__
    return true;
#else
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks)) > 1;
#endif
}

}  // namespace

int main() {
    // First what forks, before there are threads.
    if (has_another_thread())
        std::fprintf(stderr, "not tested: a certain deadlock: a thread of a sanitizer or an emulator could send\n");
    else a_certain_deadlock();
    waits_that_end();
    a_signal_handler_sends();
    a_message_on_its_way();
    texts();
    deadlocks();
    no_deadlocks();
    return check::result();
}
