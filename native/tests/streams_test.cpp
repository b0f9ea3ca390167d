// Streams and events: order, waiting, closing, numbers that are none; and many threads on all of it.

#include <future>

#include "ranks.hpp"
#include "stream/events.hpp"

using namespace rankwise;
using ranks::thrown;

namespace {

constexpr double kSoon = 60;  // seconds within which anything must end

// Work that goes on until it is opened.
class Gate {
public:
    std::function<void()> piece() const {
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

void marks_order_streams() {
    Stream first, second;
    Gate gate;
    std::atomic<int> stage{0};
    first.submit(gate.piece());
    first.submit([&] { stage = 1; });
    const auto mark = first.mark();
    second.follow(mark);
    const auto after = second.submit([&] { stage = stage == 1 ? 2 : -1; });
    CHECK(!mark->done() && !after->done());
    CHECK_EQ(thrown([&] { mark->wait(0.01); }), "TimedOut");
    gate.open();
    after->wait(kSoon);
    CHECK_EQ(stage.load(), 2);
    second.follow(mark);  // reached: nothing is queued
    CHECK(second.drain(kSoon));
}

void closing_ends_what_waits() {
    Stream first, second, third;
    Gate gate;
    first.submit(gate.piece());
    second.follow(first.mark());
    third.follow(second.mark());
    const auto queued = third.submit([] {});
    CHECK(!second.drain(0.01));
    CHECK(second.close(0));  // waits for a mark that is not reached
    CHECK_EQ(thrown([&] { queued->wait(kSoon); }), "Closed");  // third waited for second's
    CHECK_EQ(thrown([&] { third.submit([] {})->wait(kSoon); }), "Closed");
    CHECK_EQ(thrown([&] { third.mark()->wait(kSoon); }), "Closed");
    CHECK_EQ(thrown([&] { second.submit([] {}); }), "Closed");
    gate.open();
    first.close(0);
}

void what_never_ends_is_left_alone() {
    Gate gate;
    std::promise<void> begun;
    auto stream = std::make_unique<Stream>();
    const auto stuck = stream->submit([&, wait = gate.piece()] { begun.set_value(); wait(); }, true);
    const auto queued = stream->submit([] {});
    begun.get_future().wait();
    CHECK(!stream->close(0.01));
    stream.reset();
    CHECK_EQ(thrown([&] { queued->wait(kSoon); }), "Closed");
    CHECK(!stuck->done());
    gate.open();
    stuck->wait(kSoon);
}

void a_piece_may_close_its_stream() {
    auto stream = std::make_shared<Stream>();
    auto* raw = stream.get();
    const auto closing = raw->submit([held = std::move(stream)]() mutable { held.reset(); }, true);
    closing->wait(kSoon);
}

void a_piece_does_not_wait_for_itself() {
    Stream stream;
    const auto waiting = stream.submit([&] { stream.submit([] {})->wait(kSoon); });
    try {
        waiting->wait(kSoon);
        CHECK(false, "it waited");
    } catch (const Error& e) {
        CHECK(std::string(e.what()).find("cannot wait") != std::string::npos, e.what());
    }
}

void numbers() {
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
    stream->submit(gate.piece());
    events::record(event, stream->handle());
    const auto other = HostStream::create();
    events::wait(other->handle(), event);
    const auto behind = other->submit([] {});
    stream->submit(later.piece());
    events::record(event, stream->handle());  // changes nothing for who waits already
    gate.open();
    behind->wait(kSoon);
    CHECK(!events::reached(event));
    events::destroy(event);
    later.open();
}

// The life of an event on every rank, each step behind the one before.
void the_life_of_an_event(Comm& c) {
    const auto compute = HostStream::create();
    std::vector<double> x(5000, -1);
    Gate gate;
    compute->submit(gate.piece());
    compute->submit([&] { std::fill(x.begin(), x.end(), c.rank() + 1); });
    const uint64_t ready = events::create(), reduced = events::create();
    events::record(ready, compute->handle());
    c.wait_event(ready);
    const auto reducing = c.start([&] { c.all_reduce(x.data(), x.size(), DType::F64, ReduceOp::SUM); });
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
    stream->submit(gate.piece());
    const uint64_t event = events::create();
    events::record(event, stream->handle());
    if (g->rank() == 0) {
        g->set_timeout(0.1);
        g->wait_event(event);
    }
    const auto work = g->start([&g] { g->barrier(); });
    CHECK_EQ(thrown([&] { work->wait(kSoon); }), "TimedOut");
    const uint64_t after = events::create();  // it stands for a group that failed, and is not reached
    g->record_event(after);
    const auto behind = HostStream::create();
    events::wait(behind->handle(), after);
    CHECK_EQ(thrown([&] { behind->submit([] {})->wait(kSoon); }), "TimedOut");
    CHECK_EQ(thrown([&] { events::synchronize(after, kSoon); }), "TimedOut");
    events::destroy(after);

    g = c.split(0, 0);  // and its group is closed meanwhile
    g->wait_event(event);
    const auto dropped = g->start([&g] { g->barrier(); });
    CHECK(g->close(0.05), "says that something was given up");
    CHECK(thrown([&] { dropped->wait(kSoon); }) != "");
    gate.open();
    events::destroy(event);
}

constexpr int kThreads = 8, kRounds = 40;

// Eight threads of a rank: each with a group and a stream of its own, all on one group that they
// share, with messages that the tags keep apart.
void many_threads(Comm& c) {
    const int n = c.world_size();
    std::vector<std::shared_ptr<Comm>> own;
    for (int t = 0; t < kThreads; ++t) own.push_back(c.split(0, 0));
    auto body = [&](int t) {
        Comm& mine = *own[t];
        const auto held = HostStream::create();
        HostStream& stream = *held;
        std::vector<int64_t> x(1 + 700 * t), y(3);
        const uint64_t ready = events::create(), reduced = events::create();
        for (int round = 0; round < kRounds; ++round) {
            std::fill(x.begin(), x.end(), 0);
            const auto filled = stream.submit([&] { std::fill(x.begin(), x.end(), mine.rank() + round); });
            events::record(ready, stream.handle());
            mine.wait_event(ready);
            const auto summed = mine.start([&] { mine.all_reduce(x.data(), x.size(), DType::I64, ReduceOp::SUM); });
            mine.record_event(reduced);
            events::wait(stream.handle(), reduced);
            const auto used = stream.submit([&] { CHECK_EQ(x.back(), n * (n - 1) / 2 + int64_t(n) * round); });

            int64_t shared = 1;  // every thread the same, so that any order of them is right
            c.all_reduce(&shared, 1, DType::I64, ReduceOp::SUM);
            CHECK_EQ(shared, n);
            if (round % 4 == 0) {
                const int64_t number = 1000 * t + round;
                const auto sending = c.send(&number, 1, DType::I64, (c.rank() + 1) % n, t);
                c.recv_now(&y[0], 1, DType::I64, (c.rank() + n - 1) % n, t);
                CHECK_EQ(y[0], number);
                sending->wait(kSoon);
            }
            if (round % 8 == 0) mine.barrier();  // behind what is queued
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

// Threads that record, wait for and destroy each other's events as it comes.
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
    marks_order_streams();
    closing_ends_what_waits();
    what_never_ends_is_left_alone();
    a_piece_may_close_its_stream();
    a_piece_does_not_wait_for_itself();
    numbers();
    events_of_many_threads();
    for (int n : ranks::worlds({1, 2, 3})) {
        ranks::run(n, the_life_of_an_event);
        if (n > 1) ranks::run(n, an_event_never_reached);
        ranks::run(n, many_threads);
    }
    return check::result();
}
