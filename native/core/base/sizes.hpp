// Sizes of memory.
#pragma once
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/errors.hpp"

namespace rankwise {

// Atomic words of 64 bits hold several fields, and addresses; the kernels convert between dtypes by their bytes.
static_assert(sizeof(void*) == 8 && std::endian::native == std::endian::little, "64 bits, little-endian");

inline constexpr size_t KiB = 1 << 10, MiB = 1 << 20;
inline constexpr size_t kCacheLine = 128;  // two lines: the hardware prefetches a line together with its neighbour

// The size of a page of memory: 4 KiB on x86; 4, 16 or 64 KiB on 64-bit ARM, as the system's kernel was built. Whatever
// is mapped, or takes memory or gives it back on its own, begins with a page.
inline size_t pretended_page_bytes = 0;  // by tests, on a machine whose pages are smaller
inline size_t page_bytes() {
    static const size_t bytes = size_t(sysconf(_SC_PAGESIZE));
    return std::max(bytes, pretended_page_bytes);
}

// The next multiple of the unit; if there is none, the last one, which is more than any memory has.
constexpr size_t round_up(size_t n, size_t unit) {
    return n > SIZE_MAX - unit ? SIZE_MAX / unit * unit : (n + unit - 1) / unit * unit;
}

// The bytes of this many items. Throws BadArgument if there are more than an address space can have.
inline size_t checked_bytes(uint64_t count, size_t item = 1) {
    size_t bytes;
    if (__builtin_mul_overflow(count, item, &bytes) || bytes > PTRDIFF_MAX)
        throw BadArgument("count: " + std::to_string(count) + " given, expected at most " +
                          std::to_string(PTRDIFF_MAX / item) + ", whose bytes can be addressed");
    return bytes;
}

}  // namespace rankwise
