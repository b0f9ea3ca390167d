// Tests receives of any length, objects, and matching among many pending receives and messages.
#include <numeric>

#include "ranks.hpp"

using namespace rankwise;
using ranks::meet;
using ranks::message;

namespace {

bool holds(Request& r, const std::vector<int64_t>& expected) {
    const Memory memory = r.take_memory();
    return r.dtype() == DType::I64 && r.count() == expected.size() &&
           std::equal(expected.begin(), expected.end(), reinterpret_cast<const int64_t*>(memory.data()));
}

// Whichever comes first, the message or its receive; from a certain rank, and from any.
void arrays_of_any_length(Comm& c) {
    const int n = c.world_size(), next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n;
    for (uint64_t count : {0, 1, 1000, 20000, 300000})
        for (bool early : {true, false})
            for (int from : {previous, kAny}) {
                const auto out = message(c.rank(), 5, count);
                std::shared_ptr<Request> receiving;
                if (early) receiving = c.messages().recv(Receive::of_any_length(Wanted::Any, from, kAny));
                meet(c);
                const auto sending = c.messages().send({out.data(), count, DType::I64, next, 5});
                meet(c);
                if (!early) receiving = c.messages().recv(Receive::of_any_length(Wanted::Any, from, kAny));
                receiving->wait(std::nullopt);
                CHECK_EQ(receiving->source(), previous);
                CHECK_EQ(receiving->tag(), 5);
                CHECK(holds(*receiving, message(previous, 5, count)), "any length: " << count);
                sending->wait(std::nullopt);
                meet(c);
            }
}

void objects_in_parts(Comm& c) {
    const int n = c.world_size(), next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n;
    for (uint64_t large : {10, 1000, 300000}) {
        const auto head = message(c.rank(), 1, 3), body = message(c.rank(), 2, large), tail = message(c.rank(), 3, 1);
        auto part = [](const std::vector<int64_t>& v) {
            return Stretch{reinterpret_cast<const uint8_t*>(v.data()), v.size() * 8};
        };
        const auto sending = c.messages().send(
            Send::of_object(std::vector<Stretch>{part(head), Stretch{nullptr, 0}, part(body), part(tail)}, next, 0));
        const auto receiving = c.messages().recv(Receive::of_any_length(Wanted::Object, previous, 0));
        receiving->wait(std::nullopt);
        CHECK_EQ(receiving->count(), (3 + large + 1) * 8);
        const Memory memory = receiving->take_memory();
        auto expected = message(previous, 1, 3);
        for (const auto& more : {message(previous, 2, large), message(previous, 3, 1)})
            expected.insert(expected.end(), more.begin(), more.end());
        CHECK(!std::memcmp(memory.data(), expected.data(), expected.size() * 8), "an object in parts");
        sending->wait(std::nullopt);
    }
}

// Into the caller's memory, which may be longer than the message and of another dtype.
void arrays_up_to_a_length(Comm& c) {
    const int n = c.world_size(), next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n;
    for (uint64_t count : {0, 1, 1000, 20000, 300000})
        for (uint64_t more : {0, 7})
            for (bool early : {true, false})
                for (int from : {previous, kAny}) {
                    const auto out = message(c.rank(), 5, count);
                    std::vector<int64_t> in(count + more);
                    const DType dtype = more ? DType::F64 : DType::I64;
                    const auto receive = [&] {
                        return c.messages().recv({in.data(), count + more, dtype, from, kAny, Wanted::UpTo});
                    };
                    std::shared_ptr<Request> receiving;
                    if (early) receiving = receive();
                    meet(c);
                    const auto sending = c.messages().send({out.data(), count, DType::I64, next, 5});
                    if (!early) receiving = receive();
                    receiving->wait(std::nullopt);
                    const auto expected = message(previous, 5, count);
                    CHECK_EQ(receiving->source(), previous);
                    CHECK_EQ(receiving->tag(), 5);
                    CHECK_EQ(receiving->count(), count);
                    CHECK(receiving->dtype() == DType::I64 && std::equal(expected.begin(), expected.end(), in.begin()),
                          "up to a length: " << count << " of " << count + more);
                    sending->wait(std::nullopt);
                    meet(c);
                    const auto again = c.messages().send({out.data(), count, DType::I64, next, 6});
                    const Arrival a = c.messages().recv_now({in.data(), count + more, dtype, from, 6, Wanted::UpTo});
                    CHECK(a.source == previous && a.tag == 6 && a.count == count && a.dtype == DType::I64);
                    again->wait(std::nullopt);
                    meet(c);
                }
    const auto three = message(0, 1, 3);
    std::vector<int64_t> in(4);
    const int self = c.rank();
    c.messages().send({three.data(), 3, DType::I64, self, 7});
    CHECK_EQ(ranks::thrown([&] { c.messages().recv_now({in.data(), 2, DType::I64, self, 7, Wanted::UpTo}); }),
             "Mismatch");
    CHECK_EQ(c.messages().recv_now({in.data(), 4, DType::I64, self, 7, Wanted::UpTo}).count, 3u);
    c.messages().send(
        Send::of_object(std::vector<Stretch>{Stretch{reinterpret_cast<const uint8_t*>(three.data()), 24}}, self, 8));
    CHECK_EQ(ranks::thrown([&] { c.messages().recv_now({in.data(), 4, DType::I64, self, 8, Wanted::UpTo}); }),
             "Mismatch");
    c.messages().recv(Receive::of_any_length(Wanted::Object, self, 8))->wait(std::nullopt);
}

// More short receives than the ring has room for, while this rank makes no progress by itself.
void short_receives_that_nobody_awaits(Comm& c) {
    const int n = c.world_size(), next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n, many = 200;
    const auto out = message(c.rank(), 2, 1000);
    std::vector<std::vector<int64_t>> in(many, std::vector<int64_t>(1000));
    std::vector<std::shared_ptr<Request>> receiving;
    for (auto& each : in)
        receiving.push_back(c.messages().recv({each.data(), 1000, DType::I64, previous, 2, Wanted::UpTo}));
    for (int i = 0; i < many; ++i) c.messages().send_now({out.data(), 1000, DType::I64, next, 2});
    c.barrier();
    for (int i = 0; i < many; ++i) {
        receiving[size_t(i)]->wait(std::nullopt);
        CHECK(in[size_t(i)] == message(previous, 2, 1000), "receive " << i);
    }
    meet(c);
}

void one_of_several(Comm& c) {
    if (c.world_size() < 2 || c.rank() > 1) return;
    int64_t x = 5;
    if (c.rank() == 1) {
        c.messages().recv_now({&x, 1, DType::I64, 0, 9});
        c.messages().send_now({&x, 1, DType::I64, 0, 2});
        return;
    }
    std::vector<std::shared_ptr<Request>> receiving;
    std::vector<int64_t> in(3);
    for (int i = 0; i < 3; ++i)
        receiving.push_back(c.messages().recv({&in[size_t(i)], 1, DType::I64, kAny, 1 + i, Wanted::UpTo}));
    Request::await_any(receiving, 0);
    CHECK(!receiving[1]->has_result());
    c.messages().send_now({&x, 1, DType::I64, 1, 9});
    Request::await_any(receiving, 30);
    CHECK(receiving[1]->has_result() && in[1] == 5 && !receiving[0]->has_result());
    receiving[0]->cancel(), receiving[2]->cancel();
}

// What a receive refuses stays for the next one, and keeps its place in the order.
void refused_messages_stay(Comm& c) {
    const auto first = message(0, 1, 3), second = message(0, 2, 3);
    const int self = c.rank();
    c.messages().send({first.data(), 3, DType::I64, self, 7});
    c.messages().send({second.data(), 3, DType::I64, self, 7});
    const auto object = c.messages().recv(Receive::of_any_length(Wanted::Object, self, 7)),
               short_one = c.messages().recv({nullptr, 0, DType::I64, self, 7, Wanted::UpTo});
    CHECK_EQ(ranks::thrown([&] { object->wait(std::nullopt); }), "Mismatch");
    CHECK_EQ(ranks::thrown([&] { short_one->wait(std::nullopt); }), "Mismatch");
    for (const auto& expected : {first, second}) {
        const auto r = c.messages().recv(Receive::of_any_length(Wanted::Any, kAny, kAny));
        r->wait(std::nullopt);
        CHECK(holds(*r, expected), "a message that was refused comes first");
    }
    c.messages().send(
        Send::of_object(std::vector<Stretch>{Stretch{reinterpret_cast<const uint8_t*>(first.data()), 24}}, self, 8));
    std::vector<int64_t> in(3);
    CHECK_EQ(ranks::thrown([&] { c.messages().recv({in.data(), 3, DType::I64, self, 8})->wait(std::nullopt); }),
             "Mismatch");
    const auto r = c.messages().recv(Receive::of_any_length(Wanted::Object, self, 8));
    r->wait(std::nullopt);
    CHECK_EQ(r->count(), 24u);
}

// As in MPI, each receive takes the message that it matches, even if that does not fit.
void whatever_comes(Comm& c) {
    const int self = c.rank();
    for (bool early : {true, false})
        for (uint64_t large : {10, 300000}) {
            const auto first = message(0, 1, large), second = message(0, 2, 3);
            std::vector<std::vector<int64_t>> in(3, std::vector<int64_t>(4));
            std::vector<std::shared_ptr<Request>> receiving;
            const auto receive = [&] {
                for (auto& each : in)
                    receiving.push_back(c.messages().recv({each.data(), 4, DType::I64, self, 7, Wanted::Any}));
                receiving.push_back(c.messages().recv({nullptr, 0, DType::U8, self, 7, Wanted::Any}));
            };
            if (early) receive();
            c.messages().send({first.data(), large, DType::I64, self, 7});
            c.messages().send({second.data(), 3, DType::I64, self, 7});
            c.messages().send(Send::of_object(
                std::vector<Stretch>{Stretch{reinterpret_cast<const uint8_t*>(second.data()), 24}}, self, 7));
            c.messages().send({second.data(), 3, DType::I64, self, 7});
            if (!early) receive();
            for (auto& each : receiving) each->wait(std::nullopt);
            CHECK(receiving[0]->overflows() && holds(*receiving[0], first), "too long: in memory of its own");
            CHECK(!receiving[1]->overflows() && receiving[1]->count() == 3 &&
                      std::equal(second.begin(), second.end(), in[1].begin()),
                  "one that fits");
            CHECK(receiving[2]->overflows() && receiving[2]->object() && receiving[2]->count() == 24, "an object");
            CHECK(!receiving[3]->object() && holds(*receiving[3], second), "of any length");
        }
}

void arrived_messages_are_taken_once(Comm& c) {
    const int n = c.world_size(), next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n;
    CHECK(!c.messages().recv_arrived(kAny, 5));
    meet(c);
    for (uint64_t count : {0, 3, 300000}) {
        const auto out = message(c.rank(), 1, count);
        const auto sending = c.messages().send({out.data(), count, DType::I64, next, 5});
        std::shared_ptr<Request> taken;
        while (!(taken = c.messages().recv_arrived(kAny, kAny))) usleep(10);
        CHECK(taken->source() == previous && taken->tag() == 5 && taken->count() == count);
        CHECK(!c.messages().probe(kAny, 5) && !c.messages().recv_arrived(previous, 5));
        taken->wait(std::nullopt);
        CHECK(holds(*taken, message(previous, 1, count)));
        sending->wait(std::nullopt);
        meet(c);
    }
}

// A receive that is given up while its message arrives leaves the message for the next receive, before later ones.
void given_up_receives_lose_nothing(Comm& c) {
    if (c.rank() > 1) return;
    const uint64_t count = 1 << 18;  // more than the ring holds
    const auto large = message(0, 3, count), after = message(0, 4, 5);
    if (c.rank() == 0) {
        std::vector<std::shared_ptr<Request>> sending;
        for (int i = 0; i < 50; ++i) {
            sending.push_back(c.messages().send({large.data(), count, DType::I64, 1, 3}));
            sending.push_back(c.messages().send({after.data(), 5, DType::I64, 1, 3}));
        }
        for (auto& r : sending) r->wait(std::nullopt);
        return;
    }
    for (int i = 0; i < 50; ++i) {
        const auto gone = c.messages().recv(Receive::of_any_length(Wanted::Any, i % 2 ? 0 : kAny, kAny));
        try {
            gone->wait(1e-4 * (i % 5));
        } catch (const TimedOut&) {
        }
        gone->cancel();
        const bool received = gone->has_result();
        CHECK(!received || holds(*gone, large), "complete before it was given up");
        if (!received) {
            const auto r = c.messages().recv(Receive::of_any_length(Wanted::Any, 0, kAny));
            r->wait(std::nullopt);
            CHECK(holds(*r, large), "the message whose receive was given up");
        }
        const auto r = c.messages().recv(Receive::of_any_length(Wanted::Any, 0, 3));
        r->wait(std::nullopt);
        CHECK(holds(*r, after), "the message behind it");
    }
}

// Receives match in the order posted and messages in the order sent, whatever is pending.
void many(Comm& c, bool posted_first) {
    const int count = 3000, self = c.rank();
    std::vector<int64_t> in(count), out(count);
    std::iota(out.begin(), out.end(), 0);
    std::vector<std::shared_ptr<Request>> receiving;
    const auto send_all = [&] {
        for (int i = 0; i < count; ++i) c.messages().send({&out[size_t(i)], 1, DType::I64, self, i % 3});
    };
    // The pattern of receives: from this rank with the tag, from any rank, with any tag, any of both.
    const auto post_all = [&] {
        for (int i = 0; i < count; ++i)
            receiving.push_back(
                c.messages().recv({&in[size_t(i)], 1, DType::I64, i % 2 ? kAny : self, i % 4 < 2 ? i % 3 : kAny}));
    };
    // Model: each message goes to the first receive posted that matches it, or each receive takes the first message.
    std::vector<int64_t> expected(size_t(count), -1);
    std::vector<bool> used(size_t(count), false);
    const auto matches = [](int receive, int m) { return receive % 4 < 2 ? receive % 3 == m % 3 : true; };
    for (int i = 0; i < count; ++i)
        for (int j = 0; j < count; ++j) {
            const int receive = posted_first ? j : i, m = posted_first ? i : j;
            if ((posted_first ? expected[size_t(receive)] >= 0 : bool(used[size_t(m)])) || !matches(receive, m))
                continue;
            expected[size_t(receive)] = m;
            used[size_t(m)] = true;
            break;
        }
    if (posted_first) post_all(), send_all();
    else send_all(), post_all();
    size_t complete = 0;
    for (size_t i = 0; i < receiving.size(); ++i) {
        if (expected[i] < 0) {
            receiving[i]->cancel();
            continue;
        }
        receiving[i]->wait(std::nullopt);
        complete += in[i] == expected[i];
    }
    CHECK_EQ(complete, size_t(std::count_if(expected.begin(), expected.end(), [](int64_t e) { return e >= 0; })));
    for (;;) {  // what no receive has matched
        if (!c.messages().probe(kAny, kAny)) break;
        c.messages().recv(Receive::of_any_length(Wanted::Any, kAny, kAny))->wait(std::nullopt);
    }
}

void probes_wait(Comm& c) {
    if (c.world_size() < 2 || c.rank() > 1) return;
    int64_t x = 5;
    if (c.rank() == 0) {
        usleep(20000);
        c.messages().send_now({&x, 1, DType::I64, 1, 2});
        return;
    }
    const auto found = c.messages().await_arrival(kAny, 2, 10);
    CHECK(found && found->source == 0 && found->tag == 2 && found->count == 1);
    c.messages().recv_now({&x, 1, DType::I64, 0, 2});
}

}  // namespace

int main() {
    for (int n : ranks::worlds({1, 2, 3, 4})) {
        ranks::run(n, [](Comm& c) {
            arrays_of_any_length(c);
            arrays_up_to_a_length(c);
            short_receives_that_nobody_awaits(c);
            one_of_several(c);
            meet(c);
            objects_in_parts(c);
            refused_messages_stay(c);
            whatever_comes(c);
            meet(c);
            arrived_messages_are_taken_once(c);
            meet(c);
            if (c.world_size() > 1) given_up_receives_lose_nothing(c);
            meet(c);
            for (bool posted_first : {true, false}) many(c, posted_first);
            meet(c);  // whose receives from any rank would take the next message
            probes_wait(c);
            c.barrier();
        });
    }
    // A receive or probe from a rank that has left raises, as soon as what it sent has been received.
    ranks::run(2, [](Comm& c) {
        int64_t x = 7;
        if (c.rank() == 0) {
            c.messages().send({&x, 1, DType::I64, 1, 0});
            c.close(1);
            return;
        }
        CHECK(c.messages().await_arrival(0, 0, 10));
        c.messages().recv(Receive::of_any_length(Wanted::Any, 0, 0))->wait(std::nullopt);
        CHECK_EQ(ranks::thrown([&] { c.messages().await_arrival(kAny, kAny, 10); }), "PeerLost");
        CHECK_EQ(
            ranks::thrown([&] { c.messages().recv(Receive::of_any_length(Wanted::Any, 0, 0))->wait(std::nullopt); }),
            "PeerLost");
    });
    return check::result();
}
