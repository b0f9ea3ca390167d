#include "trace/totals.hpp"

namespace rankwise {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

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
    total.operations.fetch_add(done.operations, relaxed);
    total.bytes.fetch_add(done.bytes, relaxed);
    total.ticks.fetch_add(done.ticks, relaxed);
    total.waited.fetch_add(done.waited, relaxed);
}

std::array<Total, kOps> Totals::now() {
    std::array<Total, kOps> result;
    for (size_t i = 0; i < kOps; ++i)
        result[i] = {totals[i].operations.load(relaxed), totals[i].bytes.load(relaxed), totals[i].ticks.load(relaxed),
                     totals[i].waited.load(relaxed)};
    return result;
}

}  // namespace rankwise
