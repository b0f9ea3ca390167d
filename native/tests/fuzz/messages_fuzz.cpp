// A rank whose channels hold anything, because a stray write of the other rank has changed them: its sends and receives
// end in an error, or wait, and neither read nor write outside the rings and their own memory.
#include <cstdlib>
#include <new>

#include "input.hpp"
#include "two_ranks.hpp"

#include <sanitizer/asan_interface.h>  // whose macros do nothing without AddressSanitizer

using namespace rankwise;

// The memory of messages. A length that a stray write has changed may be any; sanitizers would end the program.
void* operator new[](size_t bytes, std::align_val_t alignment) {
    void* memory = nullptr;
    if (bytes > 64 * MiB || posix_memalign(&memory, size_t(alignment), bytes) != 0) throw std::bad_alloc();
    return memory;
}
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }

namespace {

constexpr auto waits = Messages::Caller::WaitsAtOnce;

constexpr size_t kLong = 200'000;  // bytes; such a message stays with its sender

// Rank 0 is the one that is tested. Behind the ring of each channel, nothing may be used.
class Pair {
public:
    explicit Pair(TwoRanks& ranks) : segment_(*ranks.segment), group_(ranks) {
        const int64_t x = 0;
        for (int rank = 0; rank < 2; ++rank) {  // makes the channels
            messages(rank).send_now({&x, 1, DType::I64, 1 - rank, 0});
            ASAN_POISON_MEMORY_REGION(end_of(rank), kBehind);
        }
        int64_t y;
        for (int rank = 0; rank < 2; ++rank) messages(rank).recv_now({&y, 1, DType::I64, 1 - rank, 0});
    }
    ~Pair() {
        for (int rank = 0; rank < 2; ++rank) ASAN_UNPOISON_MEMORY_REGION(end_of(rank), kBehind);
    }
    Messages& messages(int rank) { return group_.comms[rank]->messages(); }
    Channel& channel(int from) { return *segment_.at<Channel>(group_.group.channel(from, 1 - from).load()); }

private:
    static constexpr size_t kBehind = 16 * KiB;  // within the last unit of its block of the heap
    uint8_t* end_of(int from) { return channel(from).ring + ring_bytes(2); }

    Segment& segment_;
    GroupOfTwo group_;
};

class Program {
public:
    // memory: of the receives, until the group is closed.
    Program(Pair& pair, Input& input, std::vector<Memory>& memory) : pair_(pair), input_(input), memory_(memory) {}

    void step() {
        Channel& in = pair_.channel(1);
        switch (input_.below(12)) {
        case 0: send(1); break;
        case 1: send(0); break;
        case 2: receive(); break;
        case 3: look(); break;
        case 4: write_header(in); break;
        case 5: overwrite_ring(pair_.channel(int(input_.below(2)))); break;
        case 6: overwrite_counts(pair_.channel(int(input_.below(2)))); break;
        case 7:
            if (!requests_.empty()) requests_[input_.below(requests_.size())]->cancel();
            break;
        case 8:
            if (!requests_.empty()) requests_[input_.below(requests_.size())]->done();
            break;
        case 9: pair_.messages(1).probe(0, kAny); break;
        case 10: in.offers[input_.below(4)] = OfferStage(input_.below(2)); break;
        case 11:
            if (!requests_.empty()) requests_[input_.below(requests_.size())]->wait(0);
            break;
        }
    }

private:
    // Rank 1's are written to the ring; rank 0's may have to wait.
    void send(int rank) {
        Messages& messages = pair_.messages(rank);
        const int tag = int(input_.below(3));
        const size_t count = input_.one_of<size_t>({0, 1, 100, 20'000, kLong});
        std::shared_ptr<Request> sent;
        switch (input_.below(4)) {
        case 0: messages.send_at_once({data_, count, DType::U8, 1 - rank, tag}); break;
        case 1: sent = messages.send({data_, count, DType::U8, 1 - rank, tag}, {}, waits); break;
        case 2:
            sent =
                messages.send(Send::of_object(std::vector<Stretch>{{data_, count / 2}, {data_ + kLong / 2, count / 2}},
                                              1 - rank, tag),
                              {}, waits);
            break;
        case 3:
            sent = messages.send(
                Send::of_object(std::vector<Stretch>{{data_, count}}, 1 - rank, tag, Send::Mode::Synchronous), {},
                waits);
            break;
        }
        if (sent) requests_.push_back(sent);
    }

    void receive() {
        Messages& messages = pair_.messages(0);
        const int tag = int(input_.below(3)) - 1, from = input_.below(2) ? 1 : kAny;
        const DType dtype = DType(input_.below(kDTypes));
        const size_t count = input_.one_of<size_t>({0, 1, 100, 20'000, kLong}) / itemsize(dtype);
        memory_.emplace_back(count * itemsize(dtype));
        uint8_t* const memory = memory_.back().data();
        std::shared_ptr<Request> request;
        switch (input_.below(5)) {
        case 0: request = messages.recv({memory, count, dtype, from, tag}, {}, waits); break;
        case 1: request = messages.recv({memory, count, dtype, from, tag, Wanted::UpTo}, {}, waits); break;
        case 2: request = messages.recv({memory, count, dtype, from, tag, Wanted::Any}, {}, waits); break;
        case 3: request = messages.recv(Receive::of_any_length(Wanted::Any, from, tag), {}, waits); break;
        case 4: request = messages.recv(Receive::of_any_length(Wanted::Object, from, tag), {}, waits); break;
        }
        requests_.push_back(request);
    }

    void look() {
        Messages& messages = pair_.messages(0);
        const auto found = messages.probe(1, kAny);
        if (!found || found->count > kLong) return;
        memory_.emplace_back(found->count * itemsize(found->dtype));
        const auto request = input_.below(2) ? messages.recv_probed(memory_.back().data(), *found)
                                             : messages.recv_arrived(found->source, found->tag);
        if (request) requests_.push_back(request);
    }

    // A header that a rank could have written, or nearly, where the next one is expected.
    void write_header(Channel& c) {
        const uint64_t at = c.written.load();
        MessageHeader h =
            MessageHeader::of(input_.one_of<uint64_t>({0, 1, 100, 20'000, kLong, 1ull << 40}),
                              DType(input_.below(18) % kDTypes), int(input_.below(4)) - 2, input_.below(2));
        h.form = Form(input_.below(7));
        h.stretches = uint8_t(input_.below(4));
        if (input_.below(4) == 0) h.bytes = input_.take<uint64_t>();
        c.put_header(at, h);
        uint64_t whole = Channel::whole_of(at, h.form == Form::Message ? std::min<uint64_t>(h.bytes, 20'000) : 0);
        if (h.form == Form::Offered || h.form == Form::OfferedSynchronously) {
            struct {
                OfferBody about;
                OfferBody::Stretch stretches[3];
            } body{{int(input_.below(3)), int(input_.below(4)) - 1}, {}};
            uint64_t left = h.bytes;
            for (int i = 0; i < h.stretches; ++i) {
                const uint64_t bytes = i + 1 < h.stretches ? left / 2
                                       : input_.below(4)   ? left
                                                           : input_.take<uint64_t>();
                body.stretches[i] = {reinterpret_cast<uint64_t>(data_), bytes};
                left -= bytes;
            }
            c.put(at + sizeof h, &body, sizeof body);
            whole = Channel::whole_of(at, sizeof(OfferBody) + h.stretches * sizeof(OfferBody::Stretch));
        }
        if (input_.below(2)) c.stamp_at(at).store(c.stamp(at));
        c.written.store(at + whole);
    }

    void overwrite_ring(Channel& c) {
        const uint64_t at = c.place(c.read.load() + input_.below(4) * kCacheLine) & (ring_bytes(2) - kCacheLine);
        input_.overwrite({c.ring + at, kCacheLine});
    }

    void overwrite_counts(Channel& c) {
        const auto number = [&](uint64_t now) {
            return input_.below(2) ? now + input_.take<int8_t>() : input_.take<uint64_t>();
        };
        switch (input_.below(4)) {
        case 0: c.written = number(c.written); break;
        case 1: c.read = number(c.read); break;
        case 2: c.first_stamp = number(c.first_stamp); break;
        case 3: c.capacity = number(c.capacity); break;
        }
    }

    Pair& pair_;
    Input& input_;
    alignas(64) static inline uint8_t data_[kLong];
    std::vector<Memory>& memory_;
    std::vector<std::shared_ptr<Request>> requests_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static TwoRanks ranks;
    // As if rank 1 were another process: to copy from an address that is none fails.
    ranks.segment->record(1).pid = QualifiedPid{QualifiedPid::own().number, 1};
    Input input(data, size);
    std::vector<Memory> memory;
    Pair pair(ranks);
    Program program(pair, input, memory);
    try {
        while (!input.ended()) program.step();
    } catch (const Error&) {
    } catch (const std::bad_alloc&) {
    }
    return 0;
}
