// Tests that a locked communicator runs no other thread's calls in between.
#include <optional>

#include "ranks.hpp"

using namespace rankwise;

int main() {
    constexpr int kThreads = 3, kRounds = 300;
    ranks::run(2, [](Comm& c) {
        std::vector<std::thread> threads;
        for (int t = 0; t < kThreads; ++t)
            threads.emplace_back([&] {
                for (int round = 0; round < kRounds; ++round) {
                    const Comm::Lock outer = c.lock();
                    uint64_t length = 3, lengths[2] = {};
                    c.all_gather(&length, lengths, 1, DType::U64);
                    float x[3] = {1, 1, 1};
                    {
                        const Comm::Lock nested = c.lock();
                        c.all_reduce(x, lengths[1], DType::F32, ReduceOp::SUM);
                    }
                    c.broadcast(x, 3, DType::F32, 1);
                    CHECK_EQ(x[2], 2.0f);
                }
            });
        for (auto& t : threads) t.join();

        // A started operation waits until the communicator is unlocked, and does not block the owner of the lock.
        std::optional<Comm::Lock> lock(c.lock());
        float y = 1;
        auto task = c.submit([&] { c.all_reduce(&y, 1, DType::F32, ReduceOp::SUM); });
        c.barrier();
        CHECK(!task->done());
        lock.reset();
        task->wait(60);
        CHECK_EQ(y, 2.0f);
    });
    return check::result();
}
