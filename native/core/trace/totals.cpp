#include "trace/totals.hpp"

namespace rankwise {

namespace {

struct alignas(64) AtomicTotal {
    std::atomic<uint64_t> operations{0}, bytes{0}, ticks{0}, waited{0};
};
std::array<AtomicTotal, kOps> totals;

}  // namespace

std::atomic<int> Totals::measurements_{0};
thread_local int Totals::depth_ = 0;

void Totals::add(Op op, const Total& done) {
    if (depth_) return;
    AtomicTotal& total = totals[size_t(op)];
    total.operations.fetch_add(done.operations, std::memory_order_relaxed);
    total.bytes.fetch_add(done.bytes, std::memory_order_relaxed);
    total.ticks.fetch_add(done.ticks, std::memory_order_relaxed);
    total.waited.fetch_add(done.waited, std::memory_order_relaxed);
}

std::array<Total, kOps> Totals::now() {
    std::array<Total, kOps> result;
    for (size_t i = 0; i < kOps; ++i)
        result[i] = {totals[i].operations.load(std::memory_order_relaxed),
                     totals[i].bytes.load(std::memory_order_relaxed), totals[i].ticks.load(std::memory_order_relaxed),
                     totals[i].waited.load(std::memory_order_relaxed)};
    return result;
}

}  // namespace rankwise
