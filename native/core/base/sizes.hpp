// Sizes of memory.
#pragma once
#include <cstddef>

namespace rankwise {

inline constexpr size_t KiB = 1 << 10, MiB = 1 << 20;
inline constexpr size_t kPage = 4096;
inline constexpr size_t kCacheLine = 128;  // two lines: the hardware prefetches a line together with its neighbour
constexpr size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace rankwise
