// Tests that a locked communicator runs no other thread's calls in between.
#include "ranks.hpp"

using namespace rankwise;

int main() {
    constexpr int kThreads = 3, kRounds = 300;
    ranks::run(2, [](Comm& c) {
        std::vector<std::thread> threads;
        for (int t = 0; t < kThreads; ++t)
            threads.emplace_back([&] {
                for (int round = 0; round < kRounds; ++round) {
                    c.lock();
                    uint64_t length = 3, lengths[2] = {};
                    c.all_gather(&length, lengths, 1, DType::U64);
                    c.lock();  // nested
                    float x[3] = {1, 1, 1};
                    c.all_reduce(x, lengths[1], DType::F32, ReduceOp::SUM);
                    c.unlock();
                    c.broadcast(x, 3, DType::F32, 1);
                    c.unlock();
                    CHECK_EQ(x[2], 2.0f);
                }
            });
        for (auto& t : threads) t.join();

        // A started operation waits until the communicator is unlocked, and does not block the owner of the lock.
        c.lock();
        float y = 1;
        auto task = c.start([&] { c.all_reduce(&y, 1, DType::F32, ReduceOp::SUM); });
        c.barrier();
        CHECK(!task->done());
        c.unlock();
        task->wait(60);
        CHECK_EQ(y, 2.0f);
    });
    return check::result();
}
