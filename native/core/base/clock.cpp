#include "base/clock.hpp"

namespace rankwise {

ClockReading ClockReading::now() {
    ClockReading best{};
    uint64_t narrowest = UINT64_MAX;
    for (int i = 0; i < 5; ++i) {  // keeps the attempt that was interrupted least between the readings
        const uint64_t before = rankwise::ticks();
        const int64_t monotonic = clock_ns(CLOCK_MONOTONIC), realtime = clock_ns(CLOCK_REALTIME);
        const uint64_t took = rankwise::ticks() - before;
        if (took >= narrowest) continue;
        narrowest = took;
        best = {before, monotonic, realtime};
    }
    return best;
}

}  // namespace rankwise
