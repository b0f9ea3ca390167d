#pragma once
#include <atomic>
#include <cstdint>

namespace rankwise {

// Raises a count that only grows to `least`, unless it is there already.
inline void raise_to(std::atomic<uint32_t>& count, uint32_t least) {
    for (uint32_t now = count.load(); now < least && !count.compare_exchange_weak(now, least);) {
    }
}

}  // namespace rankwise
