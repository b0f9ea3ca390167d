// Tests operations that are started by one call and completed by another.
#include <algorithm>
#include <atomic>
#include <memory>
#include <random>

#include "ranks.hpp"

using namespace rankwise;
using ranks::thrown;

namespace {

constexpr double kSoon = 60;

struct Interruptible final : Embedding {
    bool interrupted() override { return stops.exchange(false); }
    std::atomic<bool> stops{false};
};

std::shared_ptr<Task> start_sum(Comm& c, std::vector<int64_t>& x) {
    return c.start([&](const CallOptions& o) { c.all_reduce(x.data(), x.size(), DType::I64, ReduceOp::SUM, o); });
}

int64_t sum_of(const Comm& c, int64_t of_rank_0) {
    return c.world_size() * of_rank_0 + c.world_size() * (c.world_size() - 1) / 2;
}

// One started operation of any kind, and the check of its result.
struct Any {
    Any(Comm& c, int number, uint64_t count) : c(c), number(number), n(uint64_t(c.world_size())), count(count) {
        root = number % c.world_size();
        in.assign(count * n, 0);
        for (uint64_t i = 0; i < in.size(); ++i) in[i] = value(c.rank(), i);
        out.assign(count * n, -1);
        work = c.start([this](const CallOptions& o) { call(o); });
    }
    int64_t value(int rank, uint64_t i) const { return rank * 1000 + number + int64_t(i % 777); }
    void call(const CallOptions& o) {
        const DType t = DType::I64;
        switch (number % 10) {
        case 0: return c.all_reduce(in.data(), count, t, ReduceOp::SUM, o);
        case 1: return c.broadcast(in.data(), count, t, root, o);
        case 2: return c.all_gather(in.data(), out.data(), count, t, o);
        case 3: return c.gather(in.data(), out.data(), count, t, root, o);
        case 4: return c.scatter(in.data(), out.data(), count, t, root, o);
        case 5: return c.reduce_scatter(in.data(), out.data(), count, t, ReduceOp::MAX, o);
        case 6: return c.all_to_all(in.data(), out.data(), count, t, o);
        case 7: return c.scan(in.data(), out.data(), count, t, ReduceOp::SUM, o);
        case 8: return c.exscan(in.data(), out.data(), count, t, ReduceOp::SUM, o);
        default: return c.barrier_without_sync(o);
        }
    }
    void check() {
        work->wait(kSoon);
        const int me = c.rank(), last = c.world_size() - 1;
        for (const uint64_t i : {uint64_t(0), count / 2, count - 1}) {
            switch (number % 10) {
            case 0: CHECK_EQ(in[i], int64_t(n) * value(0, i) + 1000 * last * int64_t(n) / 2); break;
            case 1: CHECK_EQ(in[i], value(root, i)); break;
            case 2: CHECK_EQ(out[uint64_t(last) * count + i], value(last, i)); break;
            case 3: CHECK_EQ(out[uint64_t(last) * count + i], me == root ? value(last, i) : -1); break;
            case 4: CHECK_EQ(out[i], value(root, uint64_t(me) * count + i)); break;
            case 5: CHECK_EQ(out[i], value(last, uint64_t(me) * count + i)); break;
            case 6: CHECK_EQ(out[uint64_t(last) * count + i], value(last, uint64_t(me) * count + i)); break;
            case 7: CHECK_EQ(out[i], (me + 1) * value(0, i) + 1000 * me * (me + 1) / 2); break;
            case 8: CHECK_EQ(out[i], me ? me * value(0, i) + 1000 * me * (me - 1) / 2 : -1); break;
            default: break;
            }
        }
    }
    Comm& c;
    const int number;
    int root = 0;
    const uint64_t n, count;
    std::vector<int64_t> in, out;
    std::shared_ptr<Task> work;
};

// Many at a time, of all kinds and sizes, in another order on each rank; in between, calls that block.
void any_order(Comm& c) {
    std::mt19937 same(3), own(unsigned(c.rank()));
    for (int round = 0; round < 12; ++round) {
        std::vector<std::unique_ptr<Any>> all;
        for (int i = 0; i < 64; ++i) {
            const uint64_t counts[] = {1, 3, 16, 128, 900, 2500, 9000};
            all.push_back(std::make_unique<Any>(c, i, counts[same() % (round % 3 ? 4 : 7)]));
            if (same() % 40 == 0) ranks::meet(c);
        }
        std::shuffle(all.begin(), all.end(), own);
        for (const auto& one : all) one->check();
    }
}

// Nobody waits: the next call completes it.
void dropped(Comm& c) {
    for (const size_t count : {1, 1000, 8000, 200000}) {
        std::vector<int64_t> x(count, c.rank());
        start_sum(c, x);
        ranks::meet(c);
        CHECK_EQ(x.back(), sum_of(c, 0));
    }
}

// `done` alone completes it, and a wait in another thread.
void polled(Comm& c) {
    for (const size_t count : {1, 1000, 8000, 200000}) {
        std::vector<int64_t> x(count, c.rank());
        const auto work = start_sum(c, x);
        while (!work->done()) std::this_thread::yield();
        CHECK_EQ(x.back(), sum_of(c, 0));
        const auto again = start_sum(c, x);
        std::thread([&] { again->wait(); }).join();
        CHECK_EQ(x.front(), int64_t(c.world_size()) * sum_of(c, 0));
    }
}

// Ranks that start one operation on each of two groups, and wait for them in opposite orders.
void opposite_orders(Comm& c) {
    const auto a = c.split(0, 0), b = c.split(0, 0);
    for (const size_t count : {1, 1000, 8000, 200000}) {
        for (int round = 0; round < 20; ++round) {
            std::vector<int64_t> x(count, c.rank()), y(count, c.rank());
            const auto first = start_sum(*a, x), second = start_sum(*b, y);
            if (c.rank() % 2) first->wait(), second->wait();
            else second->wait(), first->wait();
            CHECK(x.back() == sum_of(c, 0) && y.front() == sum_of(c, 0));
        }
    }
    a->close(5);
    b->close(5);
}

// Threads of a rank, each with groups of its own that come and go, of several ranks or one, and operations on them that
// are completed in another order on each rank, some of them by another thread.
void groups_of_many_threads(Comm& c) {
    constexpr int kThreads = 4, kGroups = 4, kPending = 12;
    std::vector<std::shared_ptr<Comm>> everyone;
    for (int t = 0; t < kThreads; ++t) everyone.push_back(c.split(0, 0));
    const auto body = [&](int t) {
        std::mt19937 same{unsigned(t)}, own(unsigned(c.rank() * kThreads + t));
        for (int round = 0; round < 3; ++round) {
            std::vector<std::shared_ptr<Comm>> groups;
            for (int g = 0; g < kGroups; ++g) {
                const unsigned halves = unsigned(same());
                groups.push_back(everyone[size_t(t)]->split(int(halves >> c.rank() & 1), 0));
            }
            std::vector<std::unique_ptr<Any>> all;
            for (int i = 0; i < 60; ++i) {
                const uint64_t counts[] = {1, 3, 16, 128, 900, 2500, 9000};
                Comm& group = *groups[same() % kGroups];
                all.push_back(std::make_unique<Any>(group, i, counts[same() % 7]));
                std::swap(all[own() % all.size()], all.back());
                if (all.size() < kPending && i < 59) continue;
                std::thread([&] { all.back()->check(); }).join();
                all.pop_back();
            }
            while (!all.empty()) all.back()->check(), all.pop_back();
            for (const auto& group : groups) group->close(5);
        }
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            try {
                body(t);
            } catch (const std::exception& e) {
                CHECK(false, "thread " << t << " of rank " << c.rank() << " threw: " << e.what());
                c.abort("failed its test");
            }
        });
    for (auto& thread : threads) thread.join();
    for (const auto& each : everyone) each->close(5);
}

// The others complete what a rank has started, while it does something else.
void busy(Comm& c) {
    static std::atomic<int> complete;
    for (const size_t count : {1, 1000, 8000, 200000}) {
        std::vector<int64_t> x(count, c.rank());
        if (c.rank() == 0) complete = 0;
        ranks::meet(c);
        const auto work = start_sum(c, x);
        if (c.rank() == 0) {
            while (complete < c.world_size() - 1) std::this_thread::yield();
            work->wait();
        } else {
            work->wait();
            ++complete;
        }
        CHECK_EQ(x.back(), sum_of(c, 0));
        ranks::meet(c);
    }
}

// A function of several calls takes its turn among the others, whoever runs it: alone, the thread that waits for it.
void bodies(Comm& c) {
    if (c.world_size() == 1) {
        const auto alone = c.split(0, 0);
        std::thread::id ran;
        alone->start_body([&] { ran = std::this_thread::get_id(); })->wait();
        CHECK(ran == std::this_thread::get_id());
        alone->close(5);
    }
    for (int round = 0; round < 50; ++round) {
        std::vector<int64_t> x{c.rank()}, y{c.rank()}, z{c.rank()};
        const auto before = start_sum(c, x);
        const auto body = c.start_body([&] {
            for (int i = 0; i < 2; ++i) c.all_reduce(y.data(), 1, DType::I64, ReduceOp::SUM);
            y[0] += x[0];
        });
        const auto after = start_sum(c, z);
        if ((round + c.rank()) % 2) after->wait(kSoon);
        body->wait();
        CHECK_EQ(y[0], (c.world_size() + 1) * sum_of(c, 0));
        before->wait(kSoon);
        after->wait(kSoon);
        CHECK_EQ(z[0], sum_of(c, 0));
    }
    // The others need it while this rank does something else.
    static std::atomic<int> complete;
    if (c.rank() == 0) complete = 0;
    ranks::meet(c);
    std::vector<int64_t> x{c.rank()};
    const auto body = c.start_body([&] { c.all_reduce(x.data(), 1, DType::I64, ReduceOp::SUM); });
    if (c.rank() > 0) {
        body->wait();
        ++complete;
    }
    while (complete < c.world_size() - 1) std::this_thread::yield();
    body->wait();
    CHECK_EQ(x[0], sum_of(c, 0));
    // Each wait throws its error; if there is none, it is reported once.
    auto g = c.split(0, 0);
    const auto failing = [] { throw BadArgument("on purpose"); };
    const auto failed = g->start_body(failing);
    for (int i = 0; i < 2; ++i) CHECK_EQ(thrown([&] { failed->wait(); }), "BadArgument");
    g->start_body(failing);
    g->sync();
    CHECK_EQ(g->failed_operations().size(), 1u);
    g->close(5);
    CHECK(thrown([&] { g->start_body(failing); }) != "");
    ranks::meet(c);
}

// A wait that ends early leaves it pending.
void ended_waits(Comm& c, Interruptible& program) {
    for (const size_t count : {1, 1000}) {
        std::vector<int64_t> x(count, c.rank());
        int64_t go = 0;
        if (c.rank() == 0) {
            const auto work = start_sum(c, x);
            CHECK_EQ(thrown([&] { work->wait(0.02); }), "TimedOut");
            CHECK(!work->ended() && !work->done());
            c.messages().send_now({&go, 1, DType::I64, 1, 0});
            work->wait();
        } else {
            c.messages().recv_now({&go, 1, DType::I64, 0, 0});
            const auto work = start_sum(c, x);
            work->wait();
        }
        if (c.rank() == 0) {
            const auto work = start_sum(c, x);
            program.stops = true;
            CHECK_EQ(thrown([&] { work->wait(); }), "Interrupted");
            c.messages().send_now({&go, 1, DType::I64, 1, 0});
            work->wait();
        } else {
            c.messages().recv_now({&go, 1, DType::I64, 0, 0});
            start_sum(c, x)->wait();
        }
        CHECK_EQ(x.back(), int64_t(c.world_size()) * sum_of(c, 0));
    }
}

// An operation that differs between the ranks fails on each, and is told once if nobody waits.
void failures(Comm& c) {
    auto g = c.split(0, 0);
    std::vector<int64_t> x(size_t(c.rank()) + 1);
    const auto work = start_sum(*g, x);
    CHECK_EQ(thrown([&] { work->wait(); }), "Mismatch");
    CHECK(g->failed_operations().empty());
    g->close(1);

    g = c.split(0, 0);
    start_sum(*g, x);
    CHECK_EQ(thrown([&] { g->barrier(); }), "Mismatch");
    const auto failed = g->failed_operations();
    CHECK(failed.size() == 1 && g->failed_operations().empty());
    g->close(1);

    g = c.split(0, 0);  // closed before the others come
    if (c.rank() == 0) {
        const auto pending = start_sum(*g, x);
        CHECK(g->close(0.05), "close reports that an operation was abandoned");
        CHECK(thrown([&] { pending->wait(); }) != "");
    }
    c.barrier();
}

}  // namespace

int main() {
    for (const int n : ranks::worlds({1, 2, 3, 4})) {
        ranks::run(n, [](Comm& c) {
            any_order(c);
            dropped(c);
            polled(c);
            opposite_orders(c);
            groups_of_many_threads(c);
            busy(c);
            bodies(c);
            if (c.world_size() > 1) failures(c);
        });
    }
    auto segment = Segment::create(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
        threads.emplace_back([&, rank] {
            Interruptible program;
            Settings settings;
            settings.program = &program;
            auto comm = Comm::join(segment, rank, kSoon, Comm::RunsAs::Thread, settings);
            ended_waits(*comm, program);
            comm->close(5);
        });
    for (auto& thread : threads) thread.join();
    return check::result();
}
