// Calls that belong together, from several threads of each rank.
#include "ranks.hpp"

using namespace rankwise;

int main() {
    constexpr int kThreads = 3, kRounds = 300;
    ranks::run(2, [](Comm& c) {
        std::vector<std::thread> threads;
        for (int t = 0; t < kThreads; ++t)
            threads.emplace_back([&] {
                for (int round = 0; round < kRounds; ++round) {
                    c.hold();
                    uint64_t length = 3, lengths[2] = {};
                    c.all_gather(&length, lengths, 1, DType::U64);
                    c.hold();  // nested
                    float x[3] = {1, 1, 1};
                    c.all_reduce(x, lengths[1], DType::F32, ReduceOp::SUM);
                    c.release();
                    c.broadcast(x, 3, DType::F32, 1);
                    c.release();
                    CHECK_EQ(x[2], 2.0f);
                }
            });
        for (auto& t : threads) t.join();

        // What was started waits for its turn, and does not stand in the way of who has it.
        c.hold();
        float y = 1;
        auto task = c.start([&] { c.all_reduce(&y, 1, DType::F32, ReduceOp::SUM); });
        c.barrier();
        CHECK(!task->done());
        c.release();
        task->wait(60);
        CHECK_EQ(y, 2.0f);
    });
    return check::result();
}
