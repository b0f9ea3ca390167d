// Tests streams and events: order, waiting, closing, invalid numbers, and the use by many threads.
#include <future>
#include <memory>
#include <set>
#include <thread>

#include "ranks.hpp"
#include "stream/events.hpp"

using namespace rankwise;
using ranks::thrown;

namespace {

constexpr double kSoon = 60;  // seconds within which everything must end

// A task that runs until the gate is opened.
class Gate {
public:
    std::function<void()> task() const {
        return [open = open_] { open.wait(); };
    }
    void open() { promise_.set_value(); }

private:
    std::promise<void> promise_;
    std::shared_future<void> open_ = promise_.get_future().share();
};

void runs_in_order() {
    Stream stream;
    std::vector<int> order;
    std::shared_ptr<Task> last;
    for (int i = 0; i < 1000; ++i) last = stream.submit([&order, i] { order.push_back(i); });
    last->wait(kSoon);
    CHECK_EQ(order.size(), size_t(1000));
    for (int i = 0; i < int(order.size()); ++i) CHECK_EQ(order[i], i);
    CHECK(stream.drain(kSoon));
    CHECK(stream.idle());
    CHECK_EQ(thrown([&] { stream.submit([] { throw BadArgument("on purpose"); })->wait(kSoon); }), "BadArgument");
    CHECK(stream.mark()->done() || stream.drain(kSoon));
}

// Streams that run one after another need one thread, not one each.
void many_streams_share_a_thread() {
    std::vector<std::unique_ptr<Stream>> streams;
    std::set<std::thread::id> threads;
    for (int i = 0; i < 100; ++i) {
        streams.push_back(std::make_unique<Stream>());
        streams.back()->submit([&] { threads.insert(std::this_thread::get_id()); })->wait(kSoon);
        CHECK(streams.back()->drain(kSoon));
    }
    CHECK(threads.size() <= 10, threads.size() << " threads");  // mostly 1 or 2: a thread is idle only after the task
}

void marks_order_streams() {
    Stream first, second;
    Gate gate;
    std::atomic<int> stage{0};
    first.submit(gate.task());
    first.submit([&] { stage = 1; });
    const auto mark = first.mark();
    second.follow(mark);
    const auto after = second.submit([&] { stage = stage == 1 ? 2 : -1; });
    CHECK(!mark->done() && !after->done());
    CHECK_EQ(thrown([&] { mark->wait(0.01); }), "TimedOut");
    gate.open();
    after->wait(kSoon);
    CHECK_EQ(stage.load(), 2);
    second.follow(mark);  // already reached, so nothing is queued
    CHECK(second.drain(kSoon));
}

void closing_ends_waiting_tasks() {
    Stream first, second, third;
    Gate gate;
    first.submit(gate.task());
    second.follow(first.mark());
    third.follow(second.mark());
    const auto queued = third.submit([] {});
    CHECK(!second.drain(0.01));
    CHECK(second.close(0));                                    // it waits for a mark that is not reached
    CHECK_EQ(thrown([&] { queued->wait(kSoon); }), "Closed");  // third waited for second's mark
    CHECK_EQ(thrown([&] { third.submit([] {})->wait(kSoon); }), "Closed");
    CHECK_EQ(thrown([&] { third.mark()->wait(kSoon); }), "Closed");
    CHECK_EQ(thrown([&] { second.submit([] {}); }), "Closed");
    gate.open();
    first.close(0);
}

void close_abandons_user_code_that_does_not_return() {
    Gate gate;
    std::promise<void> begun;
    auto stream = std::make_unique<Stream>();
    const auto stuck = stream->submit(
        [&, wait = gate.task()] {
            begun.set_value();
            wait();
        },
        CodeOf::Program);
    const auto queued = stream->submit([] {});
    begun.get_future().wait();
    CHECK(!stream->close(0.01));
    stream.reset();
    CHECK_EQ(thrown([&] { queued->wait(kSoon); }), "Closed");
    CHECK(!stuck->done());
    gate.open();
    stuck->wait(kSoon);
}

void a_task_may_close_its_stream() {
    auto stream = std::make_shared<Stream>();
    auto* raw = stream.get();
    const auto closing = raw->submit([held = std::move(stream)]() mutable { held.reset(); }, CodeOf::Program);
    closing->wait(kSoon);
}

void a_task_cannot_wait_for_its_own_stream() {
    Stream stream;
    const auto waiting = stream.submit([&] { stream.submit([] {})->wait(kSoon); });
    try {
        waiting->wait(kSoon);
        CHECK(false, "it waited");
    } catch (const Error& e) {
        CHECK(std::string(e.what()).find("cannot wait") != std::string::npos, e.what());
    }
}

void invalid_numbers() {
    const auto stream = HostStream::create();
    const uint64_t event = events::create(), gone = events::create();
    events::destroy(gone);
    CHECK(events::reached(event));
    events::wait(stream->handle(), event);
    CHECK(stream->idle());
    for (uint64_t wrong : {gone, stream->handle(), kThisThread, ~uint64_t(0)}) {
        CHECK_EQ(thrown([&] { events::destroy(wrong); }), "BadArgument");
        CHECK_EQ(thrown([&] { events::record(wrong, stream->handle()); }), "BadArgument");
        CHECK_EQ(thrown([&] { events::wait(stream->handle(), wrong); }), "BadArgument");
        CHECK_EQ(thrown([&] { events::reached(wrong); }), "BadArgument");
    }
    CHECK_EQ(thrown([&] { events::record(event, event); }), "BadArgument");
    CHECK_EQ(thrown([&] { events::wait(gone, event); }), "BadArgument");

    Gate gate, later;
    stream->submit(gate.task());
    events::record(event, stream->handle());
    const auto other = HostStream::create();
    events::wait(other->handle(), event);
    const auto behind = other->submit([] {});
    stream->submit(later.task());
    events::record(event, stream->handle());  // does not change earlier waits
    gate.open();
    behind->wait(kSoon);
    CHECK(!events::reached(event));
    events::destroy(event);
    later.open();
}

// Compute stream, communication stream, compute stream: each waits for an event of the one before.
void events_order_streams(Comm& c) {
    const auto compute = HostStream::create();
    std::vector<double> x(5000, -1);
    Gate gate;
    compute->submit(gate.task());
    compute->submit([&] { std::fill(x.begin(), x.end(), c.rank() + 1); });
    const uint64_t ready = events::create(), reduced = events::create();
    events::record(ready, compute->handle());
    c.wait_event(ready);
    const auto reducing = c.submit([&] { c.all_reduce(x.data(), x.size(), DType::F64, ReduceOp::SUM); });
    c.record_event(reduced);
    events::wait(compute->handle(), reduced);
    double seen = 0;
    const auto used = compute->submit([&] { seen = x.back(); });
    events::destroy(ready);
    events::destroy(reduced);
    CHECK(!reducing->done() && !used->done() && x[0] == -1);
    gate.open();
    used->wait(kSoon);
    CHECK_EQ(seen, c.world_size() * (c.world_size() + 1) / 2.0);
    c.barrier();
}

void an_event_never_reached(Comm& c) {
    auto g = c.split(0, 0);
    const auto stream = HostStream::create();
    Gate gate;
    stream->submit(gate.task());
    const uint64_t event = events::create();
    events::record(event, stream->handle());
    if (g->rank() == 0) {
        g->set_timeout(0.1);
        g->wait_event(event);
    }
    const auto work = g->submit([&g] { g->barrier(); });
    CHECK_EQ(thrown([&] { work->wait(kSoon); }), "TimedOut");
    const uint64_t after = events::create();  // recorded on a failed group, so it is never reached
    g->record_event(after);
    const auto behind = HostStream::create();
    events::wait(behind->handle(), after);
    CHECK_EQ(thrown([&] { behind->submit([] {})->wait(kSoon); }), "TimedOut");
    CHECK_EQ(thrown([&] { events::synchronize(after, kSoon); }), "TimedOut");
    events::destroy(after);

    g = c.split(0, 0);  // the same with a group that is closed meanwhile
    g->wait_event(event);
    const auto cancelled = g->submit([&g] { g->barrier(); });
    CHECK(g->close(0.05), "close reports that an operation was abandoned");
    CHECK(thrown([&] { cancelled->wait(kSoon); }) != "");
    gate.open();
    events::destroy(event);
}

constexpr int kThreads = 8, kRounds = 40;

// Eight threads of a rank, each with its own group and stream, also use one group together, with a message tag for
// each.
void many_threads(Comm& c) {
    const int n = c.world_size();
    std::vector<std::shared_ptr<Comm>> own;
    for (int t = 0; t < kThreads; ++t) own.push_back(c.split(0, 0));
    auto body = [&](int t) {
        Comm& mine = *own[t];
        const auto owner = HostStream::create();
        HostStream& stream = *owner;
        std::vector<int64_t> x(1 + 700 * t), y(3);
        const uint64_t ready = events::create(), reduced = events::create();
        for (int round = 0; round < kRounds; ++round) {
            std::fill(x.begin(), x.end(), 0);
            const auto filled = stream.submit([&] { std::fill(x.begin(), x.end(), mine.rank() + round); });
            events::record(ready, stream.handle());
            mine.wait_event(ready);
            const auto summed = mine.submit([&] { mine.all_reduce(x.data(), x.size(), DType::I64, ReduceOp::SUM); });
            mine.record_event(reduced);
            events::wait(stream.handle(), reduced);
            const auto used = stream.submit([&] { CHECK_EQ(x.back(), n * (n - 1) / 2 + int64_t(n) * round); });

            int64_t shared = 1;  // the same in every thread, so that any order of the calls is right
            c.all_reduce(&shared, 1, DType::I64, ReduceOp::SUM);
            CHECK_EQ(shared, n);
            if (round % 4 == 0) {
                const int64_t number = 1000 * t + round;
                const auto sending = c.messages().send({&number, 1, DType::I64, (c.rank() + 1) % n, t});
                c.messages().recv_now({&y[0], 1, DType::I64, (c.rank() + n - 1) % n, t});
                CHECK_EQ(y[0], number);
                sending->wait(kSoon);
            }
            if (round % 8 == 0) mine.barrier();  // after the queued operations
            used->wait(kSoon);
            CHECK(filled->done() && summed->done() && events::reached(reduced));
        }
        events::destroy(ready);
        events::destroy(reduced);
        mine.close(5);
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) threads.emplace_back(body, t);
    for (auto& thread : threads) thread.join();
}

// Threads that record, wait for and destroy each other's events in any order.
void events_of_many_threads() {
    std::shared_ptr<HostStream> streams[3];
    for (auto& stream : streams) stream = HostStream::create();
    std::atomic<uint64_t> shared{events::create()};
    std::atomic<int> ran{0};
    auto body = [&](int t) {
        for (int i = 0; i < 300; ++i) {
            HostStream& stream = *streams[(t + i) % 3];
            const uint64_t event = shared.load();
            try {
                events::record(event, stream.handle());
                events::wait(streams[i % 3]->handle(), event);
                events::reached(event);
                if (i % 10 == 0) events::destroy(shared.exchange(events::create()));
            } catch (const BadArgument&) {  // another thread destroyed it
            }
            stream.submit([&] { ran.fetch_add(1); });
        }
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) threads.emplace_back(body, t);
    for (auto& thread : threads) thread.join();
    for (auto& stream : streams) stream->sync(kSoon);
    CHECK_EQ(ran.load(), 300 * kThreads);
    events::destroy(shared);
}

}  // namespace

int main() {
    runs_in_order();
    many_streams_share_a_thread();
    marks_order_streams();
    closing_ends_waiting_tasks();
    close_abandons_user_code_that_does_not_return();
    a_task_may_close_its_stream();
    a_task_cannot_wait_for_its_own_stream();
    invalid_numbers();
    events_of_many_threads();
    for (int n : ranks::worlds({1, 2, 3})) {
        ranks::run(n, events_order_streams);
        if (n > 1) ranks::run(n, an_event_never_reached);
        ranks::run(n, many_threads);
    }
    return check::result();
}
