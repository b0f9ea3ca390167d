// Tests sends and receives at the same time, in exact and shorter messages, and what becomes of them after an error.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "kernels/non_temporal.hpp"
#include "ranks.hpp"

using namespace rankwise;
using ranks::message;

namespace {

// Two messages to the next rank and two from the previous one, of lengths that differ.
void around_the_ring(Comm& c, uint64_t first, uint64_t second, Wanted wanted) {
    const bool up_to = wanted == Wanted::UpTo;
    const int n = c.world_size(), next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n;
    auto a = message(c.rank(), 1, first), b = message(c.rank(), 2, second);
    std::vector<int64_t> in_a(first), in_b(second + up_to);
    const Send sends[] = {{a.data(), first, DType::I64, next, 1}, {b.data(), second, DType::I64, next, 2}};
    const Receive receives[] = {{in_a.data(), in_a.size(), DType::I64, previous, 1, wanted},
                                {in_b.data(), in_b.size(), DType::I64, up_to ? kAny : previous, 2, wanted}};
    const Arrival last = c.messages().exchange(sends, receives);
    in_b.resize(second);
    CHECK(in_a == message(previous, 1, first) && in_b == message(previous, 2, second),
          first << " and " << second << " elements" << (up_to ? ", up to" : ""));
    CHECK_EQ(last.source, previous);
    CHECK_EQ(last.count, second);
}

// Copies are made in another way where the addresses meet in their pages.
void wherever_they_begin_in_their_pages(Comm& c) {
    constexpr uint64_t kCount = 40'000;
    const int n = c.world_size(), next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n;
    const auto expected = message(previous, 6, kCount), content = message(c.rank(), 6, kCount);
    struct alignas(4096) Memory {
        int64_t words[kCount + 8];
    };
    const auto from = std::make_unique<Memory>(), to = std::make_unique<Memory>();
    for (int begin : {0, 1, 2, 4, 5}) {
        std::copy(content.begin(), content.end(), from->words + 2);
        std::fill(std::begin(to->words), std::end(to->words), -1);
        const Send send{from->words + 2, kCount, DType::I64, next, 6};
        const Receive receive{to->words + begin, kCount, DType::I64, previous, 6};
        c.messages().exchange({&send, 1}, {&receive, 1});
        CHECK(std::equal(expected.begin(), expected.end(), to->words + begin), "from word 2 to word " << begin);
        CHECK(to->words[begin + kCount] == -1 && (begin == 0 || to->words[begin - 1] == -1), "beside word " << begin);
    }
}

void one_side(Comm& c) {
    int64_t x = c.rank();
    const Send sends{&x, 1, DType::I64, c.world_size() - 1, 3};
    const Receive receives{&x, 1, DType::I64, 0, 3};
    if (c.rank() == 0) c.messages().exchange({&sends, 1}, {});
    if (c.rank() == c.world_size() - 1) {
        x = 99;
        c.messages().exchange({}, {&receives, 1});
        CHECK_EQ(x, 0);
    }
    c.messages().exchange({}, {});
}

// The first receive expects another length: the second one is completed, and the message of the first stays.
void mismatch(Comm& c, uint64_t count) {
    const int n = c.world_size(), next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n;
    auto out = message(c.rank(), 4, count);
    std::vector<int64_t> in(count), other(count + 1);
    const Send sends[] = {{out.data(), count, DType::I64, next, 4}, {out.data(), count, DType::I64, next, 5}};
    const Receive receives[] = {{other.data(), count + 1, DType::I64, previous, 4},
                                {in.data(), count, DType::I64, previous, 5}};
    CHECK_EQ(ranks::thrown([&] { c.messages().exchange(sends, receives); }), "Mismatch");
    CHECK(in == message(previous, 4, count), "the other receive of " << count);
    in.assign(count, 0);
    c.messages().recv_now({in.data(), count, DType::I64, previous, 4});
    CHECK(in == message(previous, 4, count), "the message of " << count << " is still there");
}

// No message comes in time: neither receive takes a later one.
void timeout(Comm& c, uint64_t count) {
    const double limit = c.timeout();
    {
        std::vector<int64_t> gone(count);
        const Receive receives[] = {{gone.data(), count, DType::I64, c.rank(), 6},
                                    {gone.data(), count, DType::I64, c.rank(), 7}};
        int64_t x = 1;
        const Send sends{&x, 1, DType::I64, c.rank(), 8};
        c.set_timeout(0.02);
        CHECK_EQ(ranks::thrown([&] { c.messages().exchange({&sends, 1}, receives); }), "TimedOut");
        c.set_timeout(limit);
    }
    const auto out = message(c.rank(), 6, count);
    std::vector<int64_t> in(count);
    for (int tag : {6, 7}) {
        c.messages().send({out.data(), count, DType::I64, c.rank(), tag});
        c.messages().recv_now({in.data(), count, DType::I64, c.rank(), tag});
        CHECK(in == out, "tag " << tag << " after the timeout");
    }
    int64_t x = 0;
    c.messages().recv_now({&x, 1, DType::I64, c.rank(), 8});
    CHECK_EQ(x, 1);
}

// An exchange in a group that has failed by a timeout starts nothing.
void after_a_timeout_of_the_group() {
    const ranks::SharedCount failed;
    ranks::run(2, [&failed](Comm& c) {
        c.set_timeout(0.02);
        if (c.rank() == 0) CHECK_EQ(ranks::thrown([&] { c.barrier(); }), "TimedOut");
        ++*failed;
        while (*failed < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        for (const uint64_t count : {1u, 1'000'000u}) {
            std::vector<int64_t> out(count), in(count);
            const Send sends{out.data(), count, DType::I64, 1 - c.rank(), 0};
            const Receive receives{in.data(), count, DType::I64, 1 - c.rank(), 0};
            CHECK_EQ(ranks::thrown([&] { c.messages().exchange({&sends, 1}, {&receives, 1}); }), "TimedOut");
        }
    });
}

// A message that an exchange without success gives back comes after one that had arrived before it.
void given_back_in_order(Comm& c) {
    if (c.rank() == 0)
        for (int tag : {5, 7}) {
            c.messages().send_now({&tag, 1, DType::I32, 1, tag});
            c.barrier();
        }
    if (c.rank() != 1) return;
    CHECK(c.messages().await_arrival(0, 5, 10), "the first message");
    c.barrier();
    c.barrier();
    int x = 0, y = 0;
    const Receive receives[] = {{&x, 1, DType::I32, 0, 7}, {&y, 1, DType::I32, 0, 9}};
    const double limit = c.timeout();
    c.set_timeout(0.02);
    CHECK_EQ(ranks::thrown([&] { c.messages().exchange({}, receives); }), "TimedOut");
    c.set_timeout(limit);
    for (int tag : {5, 7}) CHECK_EQ(c.messages().recv_now({&x, 1, DType::I32, 0, kAny}).tag, tag);
}

void every_kind(Comm& c) {
    set_peers_far(!c.conditions().single_copy);  // both ways to write the rings
    const uint64_t exchanged = c.messages().most_in_ring() / 8;
    for (uint64_t first : {uint64_t(0), uint64_t(1), uint64_t(3000), exchanged, exchanged + 1, uint64_t(100'000)})
        for (uint64_t second : {uint64_t(7), exchanged, uint64_t(50'000)})
            for (const Wanted wanted : {Wanted::Exactly, Wanted::UpTo}) around_the_ring(c, first, second, wanted);
    for (uint64_t count : {10, 50'000}) mismatch(c, count), timeout(c, count);
    one_side(c);
    wherever_they_begin_in_their_pages(c);
    if (c.world_size() == 2) given_back_in_order(c);
    c.barrier();
}

}  // namespace

int main() {
    for (int n : ranks::worlds({1, 2, 3, 4}))
        for (bool single_copy : {true, false}) {
            Settings settings;
            settings.single_copy = single_copy;
            ranks::run(n, every_kind, 60, settings);
        }
    after_a_timeout_of_the_group();
    // A rank that leaves: the receive from it fails; but a message that did not fit is what the program learns.
    for (bool fits : {true, false}) {
        const ranks::SharedCount ready;
        ranks::run(3, [fits, &ready](Comm& c) {
            int64_t x[2] = {1, 2};
            if (c.rank() == 0) {  // the others notice it only when their messages have arrived
                while (*ready < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                std::this_thread::sleep_for(std::chrono::milliseconds(200));
                c.close(1);
                return;
            }
            ++*ready;
            const int other = 3 - c.rank();
            const Send sends{x, fits ? 2u : 1u, DType::I64, other, 0};
            const Receive receives[] = {{x, 2, DType::I64, other, 0}, {x, 2, DType::I64, 0, 0}};
            CHECK_EQ(ranks::thrown([&] { c.messages().exchange({&sends, 1}, receives); }),
                     fits ? "PeerLost" : "Mismatch");
        });
    }
    return check::result();
}
