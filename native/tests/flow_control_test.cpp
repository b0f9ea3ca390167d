// Tests what a rank does with messages for which it has posted no receive: it keeps some, and the data of the others
// stays with their senders.
#include <unistd.h>

#include "ranks.hpp"

using namespace rankwise;
using ranks::meet;
using ranks::message;

namespace {

Settings keeping(uint64_t bytes, bool single_copy) {
    Settings settings;
    settings.unexpected_bytes = bytes;
    settings.single_copy = single_copy;
    return settings;
}

// Many messages ahead of one with another tag, which is received first.
void a_later_message_first(Comm& c) {
    constexpr int kMessages = 600;                      // more than there are slots for offers
    const int long_each = ranks::shortened() ? 35 : 7;  // either way they exceed the second largest limit
    const auto length = [=](int i) { return uint64_t(i % long_each == 0 ? 40000 : i % 3 == 0 ? 300 : i % 5); };
    const int n = c.world_size(), next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n;
    std::vector<std::vector<int64_t>> out;
    std::vector<std::shared_ptr<Request>> sending;
    for (int i = 0; i < kMessages; ++i) out.push_back(message(c.rank(), i, length(i)));
    for (int i = 0; i < kMessages; ++i)
        sending.push_back(c.messages().send({out[size_t(i)].data(), out[size_t(i)].size(), DType::I64, next, 0}));
    const auto last = message(c.rank(), -1, 5000);
    sending.push_back(c.messages().send({last.data(), last.size(), DType::I64, next, 1}));
    std::vector<int64_t> in(5000);
    c.messages().recv_now({in.data(), in.size(), DType::I64, previous, 1});
    CHECK(in == message(previous, -1, 5000), "the later message");
    for (int i = 0; i < kMessages; ++i) {
        if (i % 2) {
            in.resize(length(i));
            c.messages().recv_now({in.data(), in.size(), DType::I64, previous, 0});
            CHECK(in == message(previous, i, length(i)), "message " << i);
        } else {
            const auto r = c.messages().recv(Receive::of_any_length(Wanted::Any, previous, 0));
            r->wait(std::nullopt);
            const Memory memory = r->take_memory();
            const auto expected = message(previous, i, length(i));
            const auto* const got = reinterpret_cast<const int64_t*>(memory.data());
            CHECK(std::equal(expected.begin(), expected.end(), got, got + r->count()), "message " << i);
        }
    }
    for (auto& r : sending) r->wait(std::nullopt);
}

// A sender that cancels a message may reuse the memory. The receiver gets the message only if it had to be sent
// through the ring; one whose data is still with the sender is cancelled.
void cancelled_sends(Comm& c, bool cancels) {
    if (c.rank() > 1) return meet(c), meet(c);
    for (uint64_t count : {10, 5000, 100000}) {
        if (c.rank() == 0) {
            auto out = message(0, 4, count);
            const auto sending = c.messages().send({out.data(), count, DType::I64, 1, 0});
            try {
                sending->wait(0.01);
            } catch (const TimedOut&) {
            }
            sending->cancel();
            std::fill(out.begin(), out.end(), -1);
            const auto after = message(0, 5, 3);
            c.messages().send_now({after.data(), 3, DType::I64, 1, 1});
            int64_t done = 0;
            c.messages().recv_now({&done, 1, DType::I64, 1, 2});
        } else {
            std::vector<int64_t> in(3);
            c.messages().recv_now({in.data(), 3, DType::I64, 0, 1});
            if (const auto found = c.messages().probe(0, 0)) {
                in.resize(count);
                c.messages().recv_now({in.data(), count, DType::I64, 0, 0});
                CHECK(in == message(0, 4, count), "a message that was given up by its sender, of " << count);
            } else {
                CHECK(cancels, "a message of " << count << " is missing");
            }
            c.messages().send_now({in.data(), 1, DType::I64, 0, 2});
        }
    }
    meet(c);
    meet(c);
}

// Both ends give up at random moments. Every message that had begun arrives once, and whole, in the order sent.
void given_up_at_random(Comm& c) {
    if (c.rank() > 1) return;
    constexpr int kRounds = 60, kLast = -1;
    const auto length = [](int i) { return uint64_t(i % 3 ? 50000 : 20); };
    if (c.rank() == 0) {
        for (int i = 0; i < kRounds; ++i) {
            auto out = message(0, i, length(i));
            const auto* bytes = reinterpret_cast<const uint8_t*>(out.data());
            const auto sending = c.messages().send(Send::of_object(
                std::vector<Stretch>{Stretch{bytes, 80}, Stretch{bytes + 80, out.size() * 8 - 80}}, 1, 0));
            try {
                sending->wait(1e-4 * (i % 4));
            } catch (const TimedOut&) {
            }
            if (i % 5 == 0) sending->wait(std::nullopt);
            sending->cancel();
            std::fill(out.begin(), out.end(), -1);
        }
        const auto last = message(0, kLast, 20);
        c.messages().send_now(
            Send::of_object(std::vector<Stretch>{Stretch{reinterpret_cast<const uint8_t*>(last.data()), 160}}, 1, 0));
        return;
    }
    for (int64_t before = -1, number = 0; number != kLast; before = number) {
        std::shared_ptr<Request> r;
        for (int tries = 0; !r || !r->has_result(); ++tries) {
            r = c.messages().recv(Receive::of_any_length(Wanted::Object, 0, 0));
            try {
                r->wait(2e-4 * (tries % 3));
            } catch (const TimedOut&) {
            }
            r->cancel();
        }
        const Memory memory = r->take_memory();
        number = *reinterpret_cast<const int64_t*>(memory.data());
        CHECK(number == kLast || number > before, "message " << number << " after " << before);
        const auto expected = message(0, int(number), number == kLast ? 20 : length(int(number)));
        CHECK(r->count() == expected.size() * 8 && !std::memcmp(memory.data(), expected.data(), expected.size() * 8),
              "message " << number);
    }
}

}  // namespace

int main() {
    std::vector<uint64_t> limits{0, 64 << 20};
    if (!ranks::shortened()) limits.insert(limits.end(), {1000, 1 << 20});
    for (int n : ranks::worlds({1, 2, 3}))
        for (const uint64_t bytes : limits)
            for (bool single_copy : {true, false})
                ranks::run(
                    n,
                    [&](Comm& c) {
                        a_later_message_first(c);
                        meet(c);
                        if (c.world_size() > 1) cancelled_sends(c, single_copy);
                        if (c.world_size() > 1) given_up_at_random(c);
                        c.barrier();
                    },
                    60, keeping(bytes, single_copy));
    // A blocking send waits for the receive, and its timeout applies; the receiver keeps only so much.
    ranks::run(
        2,
        [](Comm& c) {
            const auto out = message(0, 1, 1000);
            if (c.rank() == 0) {
                const double limit = c.timeout();
                c.set_timeout(0.05);
                int sent = 0;
                CHECK_EQ(ranks::thrown([&] {
                             for (;; ++sent) c.messages().send_now({out.data(), 1000, DType::I64, 1, 0});
                         }),
                         "TimedOut");
                CHECK(sent >= 8 && sent < 60, "sends of 8,000 bytes without a receive: " << sent);
                c.set_timeout(limit);
                int64_t done = sent;
                c.messages().send_now({&done, 1, DType::I64, 1, 1});
            } else {
                int64_t sent = 0;
                c.messages().recv_now({&sent, 1, DType::I64, 0, 1});
                std::vector<int64_t> in(1000);
                for (int64_t i = 0; i < sent; ++i) {
                    c.messages().recv_now({in.data(), 1000, DType::I64, 0, 0});
                    CHECK(in == out, "message " << i);
                }
                CHECK(!c.messages().probe(0, 0), "the send that timed out has been cancelled");
            }
        },
        60, keeping(100000, true));
    // A program that looks for a later message in a loop, and never sleeps, lets the sender of a long one go on.
    ranks::run(2, [](Comm& c) {
        const auto out = message(0, 1, 100'000), last = message(0, 2, 10);
        for (const bool probes : {true, false}) {
            if (c.rank() == 0) {
                c.messages().send_now({out.data(), out.size(), DType::I64, 1, 0});
                c.messages().send_now({last.data(), last.size(), DType::I64, 1, 1});
            } else {
                std::vector<int64_t> in(out.size()), later(last.size());
                if (probes) {
                    while (!c.messages().probe(0, 1)) {
                    }
                    c.messages().recv_now({later.data(), later.size(), DType::I64, 0, 1});
                } else {
                    const auto r = c.messages().recv({later.data(), later.size(), DType::I64, 0, 1});
                    while (!r->done()) {
                    }
                }
                c.messages().recv_now({in.data(), in.size(), DType::I64, 0, 0});
                CHECK(in == out && later == last, "both messages");
            }
        }
    });
    // A rank that leaves takes its offers back.
    ranks::run(
        2,
        [](Comm& c) {
            if (c.rank() == 0) {
                auto out = message(0, 1, 1000);
                c.messages().send({out.data(), 1000, DType::I64, 1, 0});
                c.close(0.05);
                std::fill(out.begin(), out.end(), -1);
                return;
            }
            usleep(200000);
            std::vector<int64_t> in(1000);
            CHECK_EQ(ranks::thrown([&] { c.messages().recv_now({in.data(), 1000, DType::I64, 0, 0}); }), "PeerLost");
        },
        60, keeping(0, true));
    return check::result();
}
