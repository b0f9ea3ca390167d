// Tests that ranks in different programs, such as the interpreters of two languages, can be threads of one process.
#include <thread>

#include "ranks.hpp"
#include "stream/events.hpp"

using namespace rankwise;

namespace {

struct Program : Embedding {
    const std::string name;
    std::atomic<bool> stops{false};  // the rank's next wait
    std::atomic<int> asked{0};
    explicit Program(std::string name) : name(std::move(name)) {}
    std::atomic<int> sessions{0};  // how often it still says that a rank is in a debugger
    Clock::time_point debugged() override {
        return sessions > 0 && sessions-- > 0 ? Clock::now() : Clock::time_point();
    }
    bool interrupted() override {
        ++asked;
        return stops.exchange(false);
    }
    std::string call_site() override { return name; }
};

struct Lock : ReleasedToWait {
    int released = 0;
    void release() override { ++released; }
};

// Runs two ranks, each in a program of its own.
void run(const std::function<void(Comm&, Program& own, Program& other)>& body) {
    Program programs[2] = {Program("one.py:1"), Program("two.tcl:2")};
    const auto segment = Segment::create(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
        threads.emplace_back([&, rank] {
            Settings settings;
            settings.program = &programs[rank];
            const auto comm = Comm::join(segment, rank, 60, Comm::RunsAs::Thread, settings);
            body(*comm, programs[rank], programs[1 - rank]);
            comm->close(5);
        });
    for (auto& thread : threads) thread.join();
}

// Returns once a rank that waits has slept since the call.
void await_sleep(const Program& program) {
    const int before = program.asked;
    while (program.asked == before) std::this_thread::yield();
}

// Each program's interrupt ends its own waits only.
void interrupts(Comm& c, Program& own, Program& other) {
    int64_t x = 0;
    if (c.rank() == 0) {
        own.stops = true;
        CHECK_EQ(ranks::thrown([&] { c.messages().recv_now({&x, 1, DType::I64, 1, 0}); }), "Interrupted");
        std::atomic<bool> over{false};
        const auto stream = HostStream::create(own);
        const auto task = stream->submit([&] {
            while (!over) std::this_thread::yield();
        });
        own.stops = true;
        CHECK_EQ(ranks::thrown([&] { task->wait(60); }), "Interrupted");
        over = true;
        await_sleep(other);
        x = 5;
        c.messages().send_now({&x, 1, DType::I64, 1, 0});
    } else {
        c.messages().recv_now({&x, 1, DType::I64, 0, 0});
        CHECK_EQ(x, 5);
    }
    c.barrier();
    // A rank that is interrupted in a collective fails the group.
    const auto part = c.split(0, 0);
    if (c.rank() == 0) {
        own.stops = true;
        CHECK_EQ(ranks::thrown([&] { part->barrier(); }), "Interrupted");
        c.messages().send_now({&x, 1, DType::I64, 1, 0});
    } else {
        c.messages().recv_now({&x, 1, DType::I64, 0, 0});
        CHECK_EQ(ranks::thrown([&] { part->barrier(); }), "PeerLost");
    }
}

// An error names where each program made its call, or started it.
void call_sites(Comm& c, Program&, Program&) {
    for (const bool started : {false, true}) {
        const auto part = c.split(0, 0);
        int64_t x[2] = {};
        const auto call = [&] { part->all_reduce(x, 1 + uint64_t(c.rank()), DType::I64, ReduceOp::SUM); };
        std::shared_ptr<Task> task;  // owns the error
        try {
            if (started) task = part->submit(call), task->wait(60);
            else call();
            CHECK(false, "no mismatch");
        } catch (const Mismatch& e) {
            CHECK(e.sites == (RankTexts{{0, "one.py:1"}, {1, "two.tcl:2"}}), e.what());
        }
        c.barrier();
    }
}

// A call releases its lock only if it waits.
void locks(Comm& c, Program&, Program& other) {
    Lock waits, does_not;
    int64_t x = 0;
    c.split(c.rank(), 0)->barrier({{}, &does_not});
    CHECK_EQ(does_not.released, 0);
    if (c.rank() == 0) {
        c.messages().recv_now({&x, 1, DType::I64, 1, 0}, {{}, &waits});
        CHECK(waits.released > 0);
    } else {
        await_sleep(other);
        c.messages().send_now({&x, 1, DType::I64, 0, 0});
    }
}

// A timeout begins anew as long as a rank is in a debugger.
void debuggers(Comm& c, Program& own, Program&) {
    int64_t x = 0;
    if (c.rank() == 0) {
        own.sessions = 5;
        const auto begin = Clock::now();
        CHECK(!c.messages().await_arrival(1, 0, 0.05));
        CHECK(Clock::now() - begin > std::chrono::milliseconds(250));
        CHECK_EQ(own.sessions, 0);
        c.messages().send_now({&x, 1, DType::I64, 1, 0});
    } else {
        c.messages().recv_now({&x, 1, DType::I64, 0, 0});
    }
}

}  // namespace

int main() {
    run(interrupts);
    run(call_sites);
    run(locks);
    run(debuggers);
    return check::result();
}
