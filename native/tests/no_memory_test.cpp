// Tests messages of a rank that gets no private memory, or no thread.
#include <cstdlib>
#include <new>
#include <thread>

#include "ranks.hpp"
#include "refuse_memory.hpp"

using namespace rankwise;

namespace {

std::atomic<bool> refused_to_engine{false};
constinit thread_local int until_refused = 0;  // requests of this thread; 0: none is refused

}  // namespace

void* operator new(size_t bytes) {
    if (is_engine_thread && refused_to_engine) throw std::bad_alloc();
    if (until_refused && --until_refused == 0) throw std::bad_alloc();
    if (void* const memory = std::malloc(bytes ? bytes : 1)) return memory;
    throw std::bad_alloc();
}
// Not inlined, because GCC would take each for the end of another operator new's memory.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

// A message that the progress thread must keep for a later receive: it allocates nothing any more, not even for the
// error.
void no_memory_for_what_arrives() {
    ranks::run(2, [](Comm& c) {
        int64_t x = 0;
        std::vector<uint8_t> large(8 << 20);
        if (c.rank() == 1) {
            const auto never = c.messages().recv({&x, 1, DType::I64, 0, 1});
            std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the thread has started, and sleeps
            refused_to_engine = true;
            while (refused_to_engine) std::this_thread::yield();
            CHECK_EQ(ranks::thrown([&] { never->wait(30); }), "PeerLost");
        } else {
            while (!refused_to_engine) std::this_thread::yield();
            try {
                c.messages().send_now({large.data(), large.size(), DType::U8, 1, 2});
                CHECK(false, "the message was sent");
            } catch (const PeerLost& e) {
                CHECK(e.rank == 1 && e.how.find("had no memory") != std::string::npos, e.what());
            }
            refused_to_engine = false;
        }
    });
}

// A receive that is refused because no thread can be started is not left behind.
void no_thread() {
    if (!can_refuse("a receive without a thread")) return;
    ranks::run(2, [](Comm& c) {
        int64_t refused = 0, x = 0;
        const int64_t sent = 42;
        if (c.rank() == 1) {
            std::thread([&] {
                refuse_threads();
                bool threw = false;
                try {
                    c.messages().recv({&refused, 1, DType::I64, 0, 0});
                } catch (const std::exception&) {
                    threw = true;
                }
                CHECK(threw);
            }).join();
            c.barrier();
            c.messages().recv_now({&x, 1, DType::I64, 0, 0});
            CHECK(x == 42 && refused == 0, x << " and " << refused);
        } else {
            c.barrier();
            c.messages().send_now({&sent, 1, DType::I64, 1, 0});
        }
        c.barrier();
    });
}

// A receive that gets no memory, at any of its requests, is not left behind: not even half of it in the queues.
void no_memory_for_a_receive() {
    ranks::run_in_threads(2, [](Comm& c) {
        const int64_t sent = 42;
        int64_t x = 0;
        if (c.rank() == 0) {
            for (int refused = 1;; ++refused) {
                bool threw = false;
                std::shared_ptr<Request> receive;
                until_refused = refused;
                try {
                    receive = c.messages().recv({&x, 1, DType::I64, 1, refused});
                } catch (const std::bad_alloc&) {
                    threw = true;
                }
                const bool enough = std::exchange(until_refused, 0) > 0;
                CHECK_EQ(threw, !enough);
                if (!enough) continue;
                CHECK(refused > 2, refused);
                c.messages().send_now({&refused, 1, DType::I32, 1, 0});
                receive->wait(30);
                CHECK_EQ(x, sent);
                break;
            }
        } else {
            int tag = 0;
            c.messages().recv_now({&tag, 1, DType::I32, 0, 0});
            c.messages().send_now({&sent, 1, DType::I64, 0, tag});
        }
        c.barrier();
    });
}

// Nor is a synchronous send to oneself, whose message may not have come to be.
void no_memory_for_a_send_to_oneself() {
    ranks::run_in_threads(2, [](Comm& c) {
        const int64_t sent = 42;
        int64_t x = 0;
        bool threw = true;
        for (int refused = 1; threw; ++refused) {
            std::shared_ptr<Request> send;
            until_refused = refused;
            try {
                send = c.messages().send({&sent, 1, DType::I64, c.rank(), 0, Send::Mode::Synchronous});
            } catch (const std::bad_alloc&) {
            }
            threw = until_refused == 0;
            until_refused = 0;
            CHECK_EQ(send == nullptr, threw);
            CHECK_EQ(c.messages().probe(c.rank(), 0).has_value(), !threw);
            CHECK(threw || refused > 2, refused);
        }
        c.messages().recv_now({&x, 1, DType::I64, c.rank(), 0});
        CHECK_EQ(x, sent);
        c.barrier();
    });
}

}  // namespace

int main() {
    no_memory_for_a_receive();
    no_memory_for_a_send_to_oneself();
    no_thread();
    no_memory_for_what_arrives();
    return check::result();
}
