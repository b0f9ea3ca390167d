// Tests send and recv: order, tags, messages to oneself, large messages both ways, receives posted early and late.
#include <unistd.h>

#include <cstring>

#include "ranks.hpp"
#include "refuse_memory.hpp"

using namespace rankwise;
using ranks::meet;
using ranks::message;

namespace {

void around_the_ring(Comm& c, uint64_t count) {
    const int n = c.world_size(), next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n;
    const auto out = message(c.rank(), 5, count);
    std::vector<int64_t> in(count);
    auto sending = c.messages().send({out.data(), count, DType::I64, next, 5});
    c.messages().recv({in.data(), count, DType::I64, previous, 5})->wait(std::nullopt);
    sending->wait(std::nullopt);
    CHECK(in == message(previous, 5, count), "ring of " << count);
}

void tags_out_of_order(Comm& c) {
    if (c.rank() > 1) return;
    const int other = 1 - c.rank();
    std::vector<std::vector<int64_t>> out, in(20);
    for (int tag = 0; tag < 20; ++tag) out.push_back(message(c.rank(), tag, 100 * uint64_t(tag * tag)));
    for (int tag = 0; tag < 20; ++tag) c.messages().send({out[tag].data(), out[tag].size(), DType::I64, other, tag});
    for (int tag = 19; tag >= 0; --tag) {
        in[tag].resize(out[tag].size());
        c.messages().recv({in[tag].data(), in[tag].size(), DType::I64, other, tag})->wait(std::nullopt);
        CHECK(in[tag] == message(other, tag, in[tag].size()), "tag " << tag);
    }
    c.sync();
}

void large_both_ways(Comm& c) {
    if (c.rank() > 1) return;
    const uint64_t count = 1 << 20;
    const auto out = message(c.rank(), 1, count);
    std::vector<int64_t> in(count);
    c.messages().send({out.data(), count, DType::I64, 1 - c.rank(), 1})->wait(std::nullopt);  // blocking, on both sides
    c.messages().recv({in.data(), count, DType::I64, 1 - c.rank(), 1})->wait(std::nullopt);
    CHECK(in == message(1 - c.rank(), 1, count), "large both ways");
}

void wrong_size_loses_nothing(Comm& c) {
    const auto out = message(c.rank(), 3, 10);
    c.messages().send({out.data(), 10, DType::I64, c.rank(), 3});
    std::vector<int64_t> in(11);
    CHECK_EQ(ranks::thrown([&] { c.messages().recv({in.data(), 11, DType::I64, c.rank(), 3})->wait(std::nullopt); }),
             "Mismatch");
    c.messages().recv({in.data(), 10, DType::I64, c.rank(), 3})->wait(std::nullopt);
    in.resize(10);
    CHECK(in == out, "the message is still there");
}

void timeout_keeps_the_request(Comm& c) {
    int64_t in = 0;
    const int64_t out = 42;
    auto receiving = c.messages().recv({&in, 1, DType::I64, c.rank(), 9});
    CHECK_EQ(ranks::thrown([&] { receiving->wait(0.02); }), "TimedOut");
    c.messages().send({&out, 1, DType::I64, c.rank(), 9});
    receiving->wait(std::nullopt);
    CHECK_EQ(in, 42);
}

void cancelled(Comm& c) {
    const double limit = c.timeout();
    c.set_timeout(0.05);
    {
        auto gone = std::make_unique<int64_t[]>(4);
        CHECK_EQ(ranks::thrown([&] { c.messages().recv_now({gone.get(), 4, DType::I64, c.rank(), 8}); }), "TimedOut");
    }
    const uint64_t count = 1 << 18;  // more than the ring holds
    c.set_timeout(limit);
    c.barrier();  // a rank still waiting above would make progress on these messages
    if (c.world_size() > 1 && c.rank() == 0) {
        c.set_timeout(0.05);
        auto out = std::make_unique<std::vector<int64_t>>(message(0, 8, count));
        CHECK_EQ(ranks::thrown([&] { c.messages().send_now({out->data(), count, DType::I64, 1, 8}); }), "TimedOut");
        std::fill(out->begin(), out->end(), -1);
        c.set_timeout(limit);
    }
    c.barrier();  // the sender has cancelled its send
    if (c.rank() == 1) {
        std::vector<int64_t> in(count);
        const bool begun = !c.conditions().single_copy;  // else the data was still with the sender
        CHECK_EQ(bool(c.messages().probe(0, 8)), begun);
        if (begun) c.messages().recv_now({in.data(), count, DType::I64, 0, 8});
        CHECK(!begun || in == message(0, 8, count), "a send cancelled in the middle");
    }
    c.set_timeout(limit);
    const auto out = message(c.rank(), 8, 4);
    std::vector<int64_t> in(4);
    c.messages().send_now({out.data(), 4, DType::I64, c.rank(), 8});
    c.messages().recv_now({in.data(), 4, DType::I64, c.rank(), 8});
    CHECK(in == out, "after a cancelled receive");
}

// A large send that is given up is delivered whole, if the receiver has begun to take it, or not at all.
void given_up_while_it_is_received(Comm& c) {
    const int n = c.world_size(), next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n;
    const uint64_t count = 100003;
    auto out = message(c.rank(), 9, count);
    std::vector<int64_t> in(count);
    const auto receiving = c.messages().recv({in.data(), count, DType::I64, previous, 9});
    meet(c);
    c.messages().send({out.data(), count, DType::I64, next, 9})->cancel();
    std::fill(out.begin(), out.end(), -1);
    meet(c);
    const auto whole = [&] { CHECK(in == message(previous, 9, count), "a send given up while it is received"); };
    if (receiving->done()) return whole();
    receiving->cancel();
    if (!c.messages().probe(previous, 9)) return;
    c.messages().recv_now({in.data(), count, DType::I64, previous, 9});
    whole();
}

// Both ranks copy a large object, and the arrays between objects; nobody waits for some of the sends.
void objects_between_arrays(Comm& c) {
    if (c.rank() > 1) return;
    for (int i = 0; i < 40; ++i) {
        const int from = i / 4 % 2, other = 1 - c.rank();
        const bool object = i % 3;
        const auto caller = i % 2 ? Messages::Caller::WaitsAtOnce : Messages::Caller::GoesOn;
        const auto sent = message(from, i, 100003);
        const uint64_t bytes = sent.size() * 8;
        if (c.rank() == from) {
            const auto* data = reinterpret_cast<const uint8_t*>(sent.data());
            const auto sending =
                object ? c.messages().send(
                             Send::of_object(std::vector<Stretch>{Stretch{data, 100}, Stretch{data + 100, bytes - 100}},
                                             other, i),
                             {}, caller)
                       : c.messages().send({sent.data(), sent.size(), DType::I64, other, i}, {}, caller);
            sending->wait(std::nullopt);
            continue;
        }
        if (object) {
            const auto receiving = c.messages().recv(Receive::of_any_length(Wanted::Object, other, i));
            receiving->wait(std::nullopt);
            const Memory memory = receiving->take_memory();
            CHECK(receiving->count() == bytes && !std::memcmp(memory.data(), sent.data(), bytes), "object " << i);
        } else {
            std::vector<int64_t> in(sent.size());
            c.messages().recv({in.data(), in.size(), DType::I64, other, i})->wait(std::nullopt);
            CHECK(in == sent, "array " << i);
        }
    }
}

// An object is fetched before the sender of an array has seen that its receive is complete.
void object_after_an_array(Comm& c) {
    if (!c.conditions().single_copy) return;
    for (uint64_t count : {20000, 1 << 16, 1 << 18}) {
        const auto array = message(0, 1, 1 << 17), object = message(0, 2, count);
        if (c.rank() == 0) {
            const Stretch part{reinterpret_cast<const uint8_t*>(object.data()), count * 8};
            const auto first =
                c.messages().send(Send::of_object(std::vector<Stretch>{part}, 1, 1), {}, Messages::Caller::WaitsAtOnce);
            meet(c);
            meet(c);
            const auto second =
                c.messages().send({array.data(), array.size(), DType::I64, 1, 2}, {}, Messages::Caller::WaitsAtOnce);
            meet(c);
            meet(c);
            first->wait(std::nullopt);
            second->wait(std::nullopt);
            continue;
        }
        meet(c);
        std::vector<int64_t> in(array.size());
        const auto receiving = c.messages().recv({in.data(), in.size(), DType::I64, 0, 2});
        meet(c);
        meet(c);
        receiving->wait(std::nullopt);
        CHECK(in == array, "the array");
        const auto fetching = c.messages().recv(Receive::of_any_length(Wanted::Object, 0, 1));
        fetching->wait(std::nullopt);
        const Memory memory = fetching->take_memory();
        CHECK(!std::memcmp(memory.data(), object.data(), count * 8), "an object of " << count);
        meet(c);
    }
}

// A message that stays with its sender and that a posted receive refuses is still there for another one.
void refused_and_offered(Comm& c) {
    const int64_t done = 1;
    const auto out = message(0, 6, 20003);
    if (c.rank() == 0) {
        meet(c);
        c.messages().send({out.data(), out.size(), DType::I64, 1, 6})->wait(std::nullopt);
        c.messages().send_now({&done, 1, DType::I64, 1, 7});
        return;
    }
    std::vector<int64_t> in(out.size() + 1);
    const auto refusing = c.messages().recv({in.data(), in.size(), DType::I64, 0, 6});
    meet(c);
    CHECK_EQ(ranks::thrown([&] { refusing->wait(std::nullopt); }), "Mismatch");
    CHECK(!c.messages().probe(0, 8), "no such message");  // takes what is offered
    int64_t last = 0;
    c.messages().recv_now({&last, 1, DType::I64, 0, 7});
    in.pop_back();
    c.messages().recv_now({in.data(), in.size(), DType::I64, 0, 6});
    CHECK(in == out && last == done, "refused, and then received");
}

// A synchronous send is complete only when a receive has matched it, even if the receiver looks for messages or sleeps.
void synchronous(Comm& c) {
    const int n = c.world_size(), next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n;
    const auto stays = [&](const Request& sending) {
        CHECK(c.messages().await_arrival(previous, 10, 10), "it can be found");
        int64_t x = 0;
        const auto other = c.messages().recv({&x, 1, DType::I64, previous, 11});
        CHECK_EQ(ranks::thrown([&] { other->wait(0.05); }), "TimedOut");
        other->cancel();
        meet(c);
        CHECK(!sending.has_result(), "before the receive");
        meet(c);
    };
    for (uint64_t count : {0, 1, 20003}) {
        const auto out = message(c.rank(), 10, count);
        std::vector<int64_t> in(count);
        auto sending = c.messages().send({out.data(), count, DType::I64, next, 10, Send::Mode::Synchronous});
        stays(*sending);
        c.messages().recv_now({in.data(), count, DType::I64, previous, 10});
        sending->wait(std::nullopt);
        CHECK(in == message(previous, 10, count), "synchronous");

        const auto receiving = c.messages().recv({in.data(), count, DType::I64, previous, 10});
        meet(c);
        c.messages().send({out.data(), count, DType::I64, next, 10, Send::Mode::Synchronous})->wait(std::nullopt);
        receiving->wait(std::nullopt);

        const Stretch part{reinterpret_cast<const uint8_t*>(out.data()), count * sizeof(int64_t)};
        sending = c.messages().send(Send::of_object(std::vector<Stretch>{part}, next, 10, Send::Mode::Synchronous), {},
                                    Messages::Caller::GoesOn);
        stays(*sending);
        const auto object = c.messages().recv(Receive::of_any_length(Wanted::Object, previous, 10));
        object->wait(std::nullopt);
        sending->wait(std::nullopt);
        CHECK_EQ(object->count(), part.bytes);

        // A short receive that was posted matches even while this rank does something else.
        const auto early = c.messages().recv({in.data(), count, DType::I64, previous, 10, Wanted::UpTo});
        meet(c);
        c.messages().send({out.data(), count, DType::I64, next, 10, Send::Mode::Synchronous})->wait(std::nullopt);
        c.barrier();
        early->wait(std::nullopt);

        if (n > 1 && !c.conditions().single_copy) continue;  // the message would be delivered all the same
        sending = c.messages().send({out.data(), count, DType::I64, next, 10, Send::Mode::Synchronous});
        stays(*sending);
        sending->cancel();
        meet(c);
        CHECK(!c.messages().probe(previous, 10), "cancelled");
        meet(c);
    }
}

// A send whose receive is posted goes on although the ring is full and the receiver does something else.
void behind_a_full_ring(Comm& c) {
    constexpr int kOthers = 2000;
    const auto out = message(0, 5, 100);
    std::vector<int64_t> in(out.size());
    for (bool synchronous : {false, true}) {
        if (c.rank() == 0) {
            c.barrier();
            for (int i = 0; i < kOthers; ++i) c.messages().send({out.data(), out.size(), DType::I64, 1, 1});
            if (synchronous)
                c.messages()
                    .send({out.data(), out.size(), DType::I64, 1, 5, Send::Mode::Synchronous})
                    ->wait(std::nullopt);
            else c.messages().send_now({out.data(), out.size(), DType::I64, 1, 5});
            c.barrier();
            c.sync();
            continue;
        }
        const auto early = c.messages().recv({in.data(), in.size(), DType::I64, 0, 5, Wanted::UpTo});
        c.barrier();
        c.barrier();
        early->wait(std::nullopt);
        CHECK(in == out, "behind a full ring");
        for (int i = 0; i < kOthers; ++i) c.messages().recv_now({in.data(), in.size(), DType::I64, 0, 1});
    }
}

// Large messages whose receives are already posted, whether or not the sender waits. Two at a time.
void posted_receives(Comm& c) {
    const int n = c.world_size(), next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n;
    for (uint64_t count : {1000, 2048, 5001, 100003, 300000}) {
        for (bool waits : {true, false}) {
            const auto out = message(c.rank(), 6, count), after = message(c.rank(), 7, count);
            std::vector<int64_t> in(count), later(count);
            auto first = c.messages().recv({in.data(), count, DType::I64, previous, 6});
            auto second = c.messages().recv({later.data(), count, DType::I64, previous, 7});
            meet(c);
            if (waits) {
                c.messages().send_now({out.data(), count, DType::I64, next, 6});
                c.messages().send_now({after.data(), count, DType::I64, next, 7});
            } else {
                c.messages().send({out.data(), count, DType::I64, next, 6});
                c.messages().send({after.data(), count, DType::I64, next, 7});
            }
            second->wait(std::nullopt);
            first->wait(std::nullopt);
            c.sync();
            CHECK(in == message(previous, 6, count) && later == message(previous, 7, count),
                  "posted receives of " << count << " elements");
        }
    }
}

// The message that arrives does not match the posted receive, or the receive has been cancelled.
void posted_receives_without_a_match(Comm& c) {
    const uint64_t count = 20000;
    if (c.rank() == 0) {
        for (int tag : {2, 1}) {
            meet(c);
            const auto out = message(0, tag, count);
            c.messages().send_now({out.data(), count, DType::I64, 1, tag});
        }
        meet(c);
        c.messages().send_now({message(0, 3, count - 1).data(), count - 1, DType::I64, 1, 3});
        meet(c);
        c.messages().send_now({message(0, 4, count).data(), count, DType::I64, 1, 4});
        return;
    }
    std::vector<int64_t> in(count), other(count);
    auto receiving = c.messages().recv({in.data(), count, DType::I64, 0, 1});
    meet(c);
    c.messages().recv_now({other.data(), count, DType::I64, 0, 2});
    CHECK(other == message(0, 2, count), "a message with another tag came first");
    meet(c);
    receiving->wait(std::nullopt);
    CHECK(in == message(0, 1, count), "after another tag");

    receiving = c.messages().recv({in.data(), count, DType::I64, 0, 3});
    meet(c);
    CHECK_EQ(ranks::thrown([&] { receiving->wait(std::nullopt); }), "Mismatch");
    c.messages().recv_now({in.data(), count - 1, DType::I64, 0, 3});
    in.resize(count - 1);
    CHECK(in == message(0, 3, count - 1), "the message of another length is still there");

    const double limit = c.timeout();
    c.set_timeout(0.05);
    {
        std::vector<int64_t> gone(count);
        CHECK_EQ(ranks::thrown([&] { c.messages().recv_now({gone.data(), count, DType::I64, 0, 4}); }), "TimedOut");
    }
    c.set_timeout(limit);
    meet(c);
    c.messages().recv_now({other.data(), count, DType::I64, 0, 4});
    CHECK(other == message(0, 4, count), "after a cancelled receive");
}

void from_any_rank(Comm& c) {
    const int n = c.world_size();
    if (c.rank() > 0) {
        const auto out = message(c.rank(), 4, 50);
        c.messages().send({out.data(), 50, DType::I64, 0, 4 + c.rank()})->wait(std::nullopt);
        return;
    }
    std::vector<bool> received(n);
    for (int k = 1; k < n; ++k) {
        std::optional<Arrival> probed;
        while (k % 2 && !(probed = c.messages().probe(kAny, kAny))) {
        }
        std::vector<int64_t> in(50);
        auto r = c.messages().recv({in.data(), 50, DType::I64, kAny, kAny});
        r->wait(std::nullopt);
        CHECK_EQ(r->tag(), 4 + r->source());
        CHECK(in == message(r->source(), 4, 50), "from any rank");
        CHECK(!received[r->source()]);
        CHECK(!probed || (probed->source == r->source() && probed->count == 50));
        received[r->source()] = true;
    }
    CHECK(!c.messages().probe(kAny, kAny));
}

// The messages of a collective match no receive of the program, which may be from any rank with any tag.
void parts_of_a_gather(Comm& c) {
    const int n = c.world_size(), me = c.rank();
    constexpr uint64_t kCount = 700;
    for (const bool posted : {true, false}) {
        std::vector<int64_t> in(kCount);
        const auto mine = message(me, 6, kCount);
        std::vector<std::vector<int64_t>> parts(n, std::vector<int64_t>(kCount));
        const auto rooms = [&](const Counts&) {
            std::vector<uint8_t*> places;
            for (auto& part : parts) places.push_back(reinterpret_cast<uint8_t*>(part.data()));
            return places;
        };
        const auto gather = [&] { c.gather_sized(mine.data(), kCount * sizeof(int64_t), {}, rooms, 0); };
        if (me > 0) {
            gather();
            meet(c);
            c.messages().send_now({mine.data(), kCount, DType::I64, 0, me});
            continue;
        }
        std::shared_ptr<Request> any;
        if (posted) any = c.messages().recv({in.data(), kCount, DType::I64, kAny, kAny});
        else usleep(10000);  // the parts arrive
        CHECK(!c.messages().probe(kAny, kAny));
        gather();
        meet(c);
        for (int r = 0; r < n; ++r) CHECK(parts[r] == message(r, 6, kCount), "gather of a long part");
        for (int k = 1; k < n; ++k) {
            if (!any) any = c.messages().recv({in.data(), kCount, DType::I64, kAny, kAny});
            any->wait(std::nullopt);
            CHECK_EQ(any->tag(), any->source());
            CHECK(in == message(any->source(), 6, kCount), "after a gather");
            any.reset();
        }
        if (any) any->cancel();
    }
}

// A message for which there is no memory is refused, and nothing is left of it: not even its address.
void refused_for_lack_of_memory() {
    if (!can_refuse("a message without memory")) return;
    ranks::run(2, [](Comm& c) {
        std::vector<int64_t> in(5000);
        const auto out = message(0, 0, 5000);
        if (c.rank() == 0) {
            std::thread([&] {
                refuse_memory();
                std::vector<int64_t> freed(5000, 8);
                CHECK_EQ(ranks::thrown([&] { c.messages().send({freed.data(), 5000, DType::I64, 1, 0}); }),
                         "OutOfMemory");
                CHECK_EQ(ranks::thrown([&] { c.messages().send_now({freed.data(), 5000, DType::I64, 1, 0}); }),
                         "OutOfMemory");
            }).join();
            meet(c);
            c.messages().send_now({out.data(), 5000, DType::I64, 1, 0});
        } else {
            std::thread([&] {
                refuse_memory();
                std::vector<int64_t> freed(5000);
                ranks::thrown([&] {
                    c.messages().recv({freed.data(), 5000, DType::I64, 0, 0})->cancel();
                });  // refused, if it may bypass the ring
            }).join();
            meet(c);
            c.messages().recv_now({in.data(), 5000, DType::I64, 0, 0});
            CHECK(in == out, "the message after those that were refused");
            CHECK(!c.messages().probe(0, 0));
        }
        c.barrier();
    });
}

// Whatever a rank's own bug writes over a channel, the others use it neither as an address nor as a length.
void overwritten_channel(const std::function<void(Channel&, std::atomic<uint64_t>& entry)>& overwrite) {
    ranks::run(
        2,
        [&](Comm& c) {
            int64_t x = 7;
            if (c.rank() == 0) {
                c.messages().send_now({&x, 1, DType::I64, 1, 0});
                meet(c);
                std::atomic<uint64_t>& entry =
                    c.segment()->at<GroupSegment>(c.segment()->header().world_group.load())->channel(0, 1);
                overwrite(*c.segment()->at<Channel>(entry.load()), entry);
                meet(c);
                return;
            }
            c.messages().recv_now({&x, 1, DType::I64, 0, 0});
            meet(c);
            meet(c);
            CHECK_EQ(ranks::thrown([&] { c.messages().recv_now({&x, 1, DType::I64, 0, 1}); }), "PeerLost");
        },
        2);
}

// A message is not marked as arrived while the ring has no room for its padding: a receiver that finds the mark counts
// the padding as read.
void no_room_for_padding() {
    Settings settings;
    settings.single_copy = false;
    ranks::run(
        2,
        [](Comm& c) {
            if (c.rank() == 1) return meet(c);
            const uint64_t piece = kRingPiece, bytes = ring_bytes(2) + piece - sizeof(MessageHeader);
            const std::vector<uint8_t> longer(bytes);
            const auto first = c.messages().send({longer.data(), bytes, DType::U8, 1, 0});
            Channel& channel = *c.segment()->at<Channel>(
                c.segment()->at<GroupSegment>(c.segment()->header().world_group.load())->channel(0, 1).load());
            channel.read += sizeof(MessageHeader) + piece;  // as if its receiver had read so much
            first->wait(std::nullopt);
            const uint64_t at = channel.written.load();
            CHECK_EQ(channel.room(), sizeof(MessageHeader));
            const auto second = c.messages().send({longer.data(), 0, DType::U8, 1, 0});
            CHECK_EQ(channel.written.load(), at + sizeof(MessageHeader));
            CHECK(channel.stamp_at(at).load() != channel.stamp(at), "an unfinished message is marked");
            meet(c);
            c.close(0);
        },
        10, settings);
}

void every_kind(Comm& c) {
    for (uint64_t count : {0, 1, 7, 8, 1000, 32768, 200003}) around_the_ring(c, count);
    if (c.world_size() > 1) tags_out_of_order(c);
    if (c.world_size() > 1) large_both_ways(c);
    if (c.world_size() > 1) posted_receives(c);
    if (c.world_size() > 1) given_up_while_it_is_received(c);
    if (c.world_size() > 1) objects_between_arrays(c);
    if (c.world_size() == 2) object_after_an_array(c);
    if (c.world_size() == 2) refused_and_offered(c);
    if (c.world_size() == 2) behind_a_full_ring(c);
    if (c.world_size() == 2) posted_receives_without_a_match(c);
    synchronous(c);
    wrong_size_loses_nothing(c);
    timeout_keeps_the_request(c);
    c.barrier();
    cancelled(c);
    c.barrier();
    from_any_rank(c);
    c.barrier();
    parts_of_a_gather(c);
    c.barrier();
}

}  // namespace

int main() {
    refused_for_lack_of_memory();
    no_room_for_padding();
    overwritten_channel([](Channel&, std::atomic<uint64_t>& entry) { entry = 1ull << 50; });
    overwritten_channel([](Channel& c, std::atomic<uint64_t>&) { c.capacity = 0; });
    overwritten_channel([](Channel& c, std::atomic<uint64_t>&) {
        const uint64_t at = c.written.load();
        c.put_header(at, {1ull << 50, 2, 1, uint8_t(DType::I64), false, Form::Message, 0, 0});
        c.stamp_at(at) = c.stamp(at);
        c.written = at + kCacheLine;
    });
    overwritten_channel([](Channel& c, std::atomic<uint64_t>&) {
        c.put_header(c.written.load(), {3, 1, 1, 200, false, Form::Message, 0, 0});
        c.written += kCacheLine;
    });
    overwritten_channel([](Channel& c, std::atomic<uint64_t>&) {
        c.read += 24;
        c.written += 1000;
    });
    for (int n : ranks::worlds({1, 2, 3, 4}))
        for (bool single_copy : {true, false}) {
            Settings settings;
            settings.single_copy = single_copy;
            ranks::run(n, every_kind, 60, settings);
        }
    // A message that a rank sent before it closed is still delivered.
    ranks::run(2, [](Comm& c) {
        int64_t x = 7;
        if (c.rank() == 0) {
            c.messages().send({&x, 1, DType::I64, 1, 0});
            c.close(1);
            return;
        }
        x = 0;
        c.messages().recv({&x, 1, DType::I64, 0, 0})->wait(std::nullopt);
        CHECK_EQ(x, 7);
        CHECK_EQ(ranks::thrown([&] { c.messages().recv({&x, 1, DType::I64, 0, 0})->wait(std::nullopt); }), "PeerLost");
    });
    // A synchronous send fails when its receiver leaves.
    ranks::run(2, [](Comm& c) {
        const int64_t x = 7;
        if (c.rank() == 0) return c.close(1), void();
        CHECK_EQ(ranks::thrown([&] {
                     c.messages().send({&x, 1, DType::I64, 0, 0, Send::Mode::Synchronous})->wait(std::nullopt);
                 }),
                 "PeerLost");
    });
    // A rank that closes cancels its posted receive.
    ranks::run(2, [](Comm& c) {
        std::vector<int64_t> x(20000, 7);
        if (c.rank() == 0) {
            c.messages().recv({x.data(), x.size(), DType::I64, 1, 0});
            meet(c);
            c.close(1);
            return;
        }
        meet(c);
        const std::string how = ranks::thrown([&] {
            for (;;) c.messages().send_now({x.data(), x.size(), DType::I64, 0, 1});
        });
        CHECK_EQ(how, "PeerLost");
    });
    return check::result();
}
