// Totals of what the operations of this process do while rankwise.trace.measure measures it. Unlike the trace, whose
// entries are reused, they include every operation, of every rank and group of the process. If an operation consists of
// others, only it is counted, not its parts.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

#include "base/operations.hpp"

namespace rankwise {

struct Total {
    uint64_t operations = 0, bytes = 0;
    uint64_t ticks = 0, waited = 0;  // ticks: of the whole operations; waited: those spent waiting for other ranks
};

class Totals {
public:
    // How many measurements are in progress. While there are none, operations need not call `add`.
    static bool measuring() { return measurements_.load(std::memory_order_relaxed) > 0; }
    static void begin() { measurements_.fetch_add(1); }
    static void end() { measurements_.fetch_sub(1); }
    // Adds what an operation has done, unless this thread is in a Whole.
    static void add(Op op, const Total& done);
    // The totals by the operation's number. Only the difference between two results has a meaning.
    static std::array<Total, kOps> now();

    // While one exists, the operations of this thread are parts of a larger one, and `add` ignores them.
    class Whole {
    public:
        Whole() { ++depth_; }
        ~Whole() { --depth_; }
        Whole(const Whole&) = delete;
    };

private:
    static std::atomic<int> measurements_;
    static thread_local int depth_;  // in how many Wholes this thread is
};

}  // namespace rankwise
