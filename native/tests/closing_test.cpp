// Tests that a group can be closed at any moment: nobody uses its memory afterwards, and nobody waits forever.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

#include "ranks.hpp"
#include "stream/events.hpp"

using namespace rankwise;

namespace {

using std::chrono::microseconds;

// Whether a new block of the size of a group's memory, probably the very memory that was just released, stays zeroed.
class Unused {
public:
    Unused(Segment& segment, size_t bytes)
        : segment_(segment), bytes_(bytes), offset_(segment.heap().allocate(bytes, BlockKind::Buffer)) {}
    ~Unused() {
        const uint8_t* memory = segment_.at<uint8_t>(offset_);
        CHECK_EQ(std::count(memory, memory + bytes_, 0), std::ptrdiff_t(bytes_));
        segment_.heap().release(offset_);
    }

private:
    Segment& segment_;
    const size_t bytes_;
    const uint64_t offset_;
};

// The only rank of a segment, with groups of its own.
struct Alone {
    const std::shared_ptr<Segment> segment = Segment::create(1);
    const std::shared_ptr<Comm> whole;
    explicit Alone(const Settings& settings = {}) : whole(Comm::join(segment, 0, 60, Comm::RunsAs::Thread, settings)) {}
    ~Alone() { whole->close(1); }
    std::shared_ptr<Comm> part() const { return whole->split(0, 0); }
    Unused unused() const { return Unused(*segment, group_segment_bytes(1)); }
};

// Calls `operation` in another thread until it throws, and closes the group at a random moment.
void closed_meanwhile(const std::function<void(Comm&)>& operation) {
    std::mt19937 random(1);
    const Alone rank;
    for (int round = 0; round < (ranks::shortened() ? 100 : 400); ++round) {
        const auto part = rank.part();
        std::atomic<bool> begun{false};
        std::string how;
        std::thread other([&] {
            how = ranks::thrown([&] {
                for (;; begun = true) operation(*part);
            });
        });
        while (!begun) std::this_thread::yield();
        std::this_thread::sleep_for(microseconds(random() % 50));
        part->close(60);
        {
            const Unused memory = rank.unused();
            other.join();
        }
        CHECK_EQ(how, "Closed");
    }
}

void calls_race_with_close() {
    closed_meanwhile([](Comm& c) {
        int64_t x = 1;
        c.all_reduce(&x, 1, DType::I64, ReduceOp::SUM);
    });
    closed_meanwhile([](Comm& c) {
        const Comm::Lock lock = c.lock();
        for (int i = 0; i < 3; ++i) c.barrier();
    });
    closed_meanwhile([](Comm& c) {
        int64_t x = 1;
        c.messages().send({&x, 1, DType::I64, 0, 0});
        if (!c.messages().probe(0, 0)) throw Closed("the message to itself is missing");
        c.messages().recv({&x, 1, DType::I64, 0, 0})->wait(std::nullopt);
    });
    const uint64_t event = events::create();
    closed_meanwhile([&](Comm& c) {
        c.record_event(event);
        c.wait_event(event);
        c.sync_stream();
        c.algorithms(Op::AllReduce, 8);
        c.name_group("part");
        c.failed();
    });
    events::destroy(event);
}

// A close that waits for a call of another thread lets nobody else begin one, but what is queued on the stream, and the
// caller of several calls, may finish.
void new_calls_are_turned_away() {
    ranks::run(2, [](Comm& c) {
        const auto part = c.split(0, c.rank());
        if (c.rank() == 1) {
            c.barrier();
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            for (int i = 0; i < 3; ++i) part->barrier();
            c.barrier();
            CHECK(!part->close(60));
            return;
        }
        std::atomic<bool> locked{false};
        std::thread inside([&] {
            const Comm::Lock lock = part->lock();
            locked = true;
            for (int i = 0; i < 2; ++i) part->barrier();
        });
        while (!locked) std::this_thread::yield();
        const auto queued = part->submit([&] { part->barrier(); });
        std::thread closing([&] { CHECK(!part->close(60)); });
        while (ranks::thrown([&] { part->name_group("part"); }).empty()) std::this_thread::yield();
        CHECK_EQ(ranks::thrown([&] { part->barrier(); }), "Closed");
        CHECK(!queued->done());
        c.barrier();
        inside.join();
        CHECK_EQ(ranks::thrown([&] { queued->wait(60); }), "");
        closing.join();
        c.barrier();
    });
}

// A thread that waits for the lock gets an error when the group is closed.
void closed_while_a_thread_waits_for_the_lock() {
    const Alone rank;
    for (int round = 0; round < 20; ++round) {
        const auto part = rank.part();
        if (round % 2) part->set_timeout(1e-4 * round);  // about when it is closed
        const Comm::Lock lock = part->lock();
        std::string how;
        std::thread other([&] { how = ranks::thrown([&] { part->barrier(); }); });
        std::this_thread::sleep_for(microseconds(100 * round));
        CHECK(!part->close(60));
        const Unused memory = rank.unused();
        other.join();
        CHECK(how == "Closed" || (round % 2 && how == "TimedOut"), how);
    }
}

// A function that runs on the stream closes the group. What is queued behind it can never run, so the close does not
// wait for that.
void closed_on_its_stream() {
    const Alone rank;
    for (const bool more : {false, true}) {
        const auto part = rank.part();
        std::atomic<bool> queued{false};
        const auto since = Clock::now();
        const auto closes = part->submit(
            [&] {
                while (!queued) std::this_thread::yield();
                CHECK_EQ(bool(part->close(60)), more);
                CHECK_EQ(ranks::thrown([&] { part->barrier(); }), "Closed");
            },
            CodeOf::Program);
        const auto behind = more ? part->submit([&] { part->barrier(); }) : nullptr;
        queued = true;
        closes->wait(60);
        if (behind) CHECK_EQ(ranks::thrown([&] { behind->wait(60); }), "Closed");
        CHECK(Clock::now() - since < std::chrono::seconds(30));
        const Unused memory = rank.unused();
    }
}

// A lock is no call: close does not wait for it, whichever thread has it.
void locked_while_closed() {
    const Alone rank;
    for (const bool by_this_thread : {true, false}) {
        const auto part = rank.part();
        std::atomic<bool> locked{false}, closed{false};
        const auto hold = [&](const std::function<void()>& meanwhile) {
            const Comm::Lock lock = part->lock();
            locked = true;
            meanwhile();
            CHECK_EQ(ranks::thrown([&] { part->barrier(); }), "Closed");
        };
        if (by_this_thread) {
            hold([&] { CHECK(!part->close(60)); });
            continue;
        }
        std::thread other(hold, [&] {
            while (!closed) std::this_thread::yield();
        });
        while (!locked) std::this_thread::yield();
        CHECK(!part->close(60));
        closed = true;
        other.join();
    }
}

// A thread that waits for a message uses what belongs to the communicator, whose destructor must wait for it.
void destroyed_while_a_thread_waits() {
    const Alone rank;
    for (int round = 0; round < 20; ++round) {
        auto part = rank.part();
        int64_t x = 0;
        const auto request = part->messages().recv({&x, 1, DType::I64, 0, 0});
        std::thread waiter([&] { CHECK_EQ(ranks::thrown([&] { request->wait(30); }), "Closed"); });
        std::this_thread::sleep_for(microseconds(100 * round));
        part.reset();
        waiter.join();
    }
}

// What is asked of a group that is closed, and whose memory others have overwritten.
void known_of_a_closed_group() {
    const Alone rank;
    const auto part = rank.part();
    part->close(1);
    const uint64_t offset = rank.segment->heap().allocate(group_segment_bytes(1), BlockKind::Buffer);
    std::memset(rank.segment->at(offset), 3, group_segment_bytes(1));
    CHECK(rank.whole->numbers_in(*part) == std::vector<int>{0});
    CHECK_EQ(ranks::thrown([&] { part->algorithms(Op::AllReduce, 8); }), "Closed");
    CHECK_EQ(ranks::thrown([&] { part->name_group("part"); }), "Closed");
    CHECK_EQ(ranks::thrown([&] { part->sync(); }), "Closed");
    part->set_counted(false);
    part->abort("because of the test");
    part->announce_end();
    CHECK_EQ(rank.segment->record(0).ending.load(), 1u);
    rank.segment->heap().release(offset);
}

// A program whose signal handler does this once, when the engine first lets it.
struct Handler : Embedding {
    std::function<void()> on_signal;
    bool interrupted() override {
        if (const auto handle = std::exchange(on_signal, nullptr)) handle();
        return false;
    }
    Settings settings() {
        Settings settings;
        settings.program = this;
        return settings;
    }
};

// A signal handler may close the group in the middle of an operation of its own thread, which then ends, and only then
// is the memory freed.
void closed_by_a_signal_handler() {
    Handler handler;
    const Alone rank(handler.settings());
    const auto part = rank.part();
    int64_t x = 0;
    const auto request = part->messages().recv({&x, 1, DType::I64, 0, 0});
    std::optional<Unused> memory;
    handler.on_signal = [&] {
        part->close(1);
        memory.emplace(*rank.segment, group_segment_bytes(1));
    };
    CHECK_EQ(ranks::thrown([&] { request->wait(30); }), "Closed");
    memory.reset();
}

// The same in a collective: the close does not wait for its own thread, and the collective fails.
void closed_by_a_signal_handler_in_a_collective() {
    const auto segment = Segment::create(2);
    const auto run = [&](int rank) {
        Handler handler;
        const auto whole = Comm::join(segment, rank, 60, Comm::RunsAs::Thread, handler.settings());
        Comm& c = *whole;
        const size_t blocks = c.segment()->heap().allocated_blocks();
        c.barrier();
        const auto part = c.split(0, c.rank());
        if (c.rank() == 0) {
            handler.on_signal = [&] {
                const auto since = Clock::now();
                CHECK(part->close(30));
                CHECK(Clock::now() - since < std::chrono::seconds(3));
            };
            CHECK_EQ(ranks::thrown([&] { part->barrier(); }), "PeerLost");
        }
        c.barrier();
        part->close(30);
        c.barrier();
        CHECK_EQ(c.segment()->heap().allocated_blocks(), blocks);
        c.barrier();
        c.close(5);
    };
    std::thread other(run, 1);
    run(0);
    other.join();
}

// An agreement of another thread, whose partner does not come, ends when the group is closed, and uses its memory no
// more.
void agreements_race_with_close() {
    for (const bool shrinks : {false, true}) {
        ranks::run(2, [&](Comm& c) {
            const auto part = c.split(0, c.rank());
            std::string how;
            std::thread other;
            if (c.rank() == 0) {
                other = std::thread([&] {
                    how = ranks::thrown([&] {
                        if (shrinks) part->shrink();
                        else part->agree(1);
                    });
                });
                std::this_thread::sleep_for(std::chrono::milliseconds(100));
                CHECK(part->close(0.2));
            }
            c.barrier();
            part->close(1);
            c.barrier();
            if (c.rank() == 0) {
                const Unused memory(*c.segment(), group_segment_bytes(2));
                other.join();
                CHECK_EQ(how, "Closed");
            }
            c.barrier();
        });
    }
}

// Several threads fail the group at the moment at which it is closed.
void aborts_race_with_close() {
    const Alone rank;
    for (int round = 0; round < (ranks::shortened() ? 100 : 500); ++round) {
        const auto part = rank.part();
        std::atomic<int> ready{0};
        std::vector<std::thread> others;
        for (int t = 0; t < 3; ++t)
            others.emplace_back([&] {
                ++ready;
                while (ready < 4) std::this_thread::yield();
                part->abort("because of the test");
            });
        while (ready < 3) std::this_thread::yield();
        ++ready;
        part->close(60);
        const Unused memory = rank.unused();
        for (auto& t : others) t.join();
    }
}

// A receive of a large message puts an address into the group's memory, and takes it back when it is cancelled.
void large_receives_race_with_close() {
    ranks::run(2, [](Comm& c) {
        std::mt19937 random(1);
        std::vector<int64_t> in(1 << 17);
        for (int round = 0; round < (ranks::shortened() ? 30 : 200); ++round) {
            const auto part = c.split(0, c.rank());
            std::atomic<bool> begun{false};
            std::string how;
            std::thread other;
            if (c.rank() == 0) {
                other = std::thread([&] {
                    how = ranks::thrown([&] {
                        for (;; begun = true) part->messages().recv({in.data(), in.size(), DType::I64, 1, 0})->cancel();
                    });
                });
                while (!begun) std::this_thread::yield();
            }
            c.barrier();
            if (c.rank() == 0) std::this_thread::sleep_for(microseconds(random() % 50));
            part->close(60);
            c.barrier();
            if (c.rank() == 0) {
                const Unused memory(*c.segment(), group_segment_bytes(2));
                other.join();
                CHECK_EQ(how, "Closed");
            }
            c.barrier();
        }
    });
}

// The build for tests finds any use that comes too late.
void a_late_use_crashes() {
    const Alone rank;
    const uint64_t offset = rank.whole->make_subgroup({0});
    const pid_t child = fork();
    if (!child) {
        GroupMemory memory(rank.segment, offset, 0);
        if (const GroupMemory::Use lease = memory.lease()) memory.close();
        _exit(memory.group().nranks);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, status);
}

// A rank may leave as soon as it has joined, while others still wait for its last step of joining.
void leaving_at_once() {
    Settings settings;
    settings.oversubscribed = true;
    for (int i = 0; i < (ranks::shortened() ? 20 : 200); ++i) ranks::run(4, [](Comm&) {}, 60, settings);
}

// A request that is over stays so: cancel() after close writes nothing, not even into memory of the
// group that somebody else has by then.
void cancelled_again_after_close() {
    const Alone alone;
    const auto part = alone.part();
    int64_t x = 0;
    const auto received = part->messages().recv({&x, 1, DType::I64, 0, 0});
    part->messages().send_now({&x, 1, DType::I64, 0, 0});
    const auto pending = part->messages().recv({&x, 1, DType::I64, 0, 0});
    const auto cancelled = part->messages().recv({&x, 1, DType::I64, 0, 1});
    cancelled->cancel();
    part->close(1);
    const Unused unused = alone.unused();
    for (const auto& request : {received, pending, cancelled}) {
        request->cancel();
        CHECK(request->done());
        ranks::thrown([&] { request->wait(1); });
        ranks::thrown([&] { Request::await_any({request}, 1); });
    }
    CHECK(!pending->cancelled() && !pending->has_result());
}

}  // namespace

int main() {
    if (RANKWISE_POISON) a_late_use_crashes();
    calls_race_with_close();
    new_calls_are_turned_away();
    closed_while_a_thread_waits_for_the_lock();
    closed_on_its_stream();
    locked_while_closed();
    destroyed_while_a_thread_waits();
    known_of_a_closed_group();
    cancelled_again_after_close();
    closed_by_a_signal_handler();
    closed_by_a_signal_handler_in_a_collective();
    agreements_race_with_close();
    aborts_race_with_close();
    large_receives_race_with_close();
    leaving_at_once();
    return check::result();
}
