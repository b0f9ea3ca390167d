// Copying bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rankwise {

// memcpy from memory that begins at most 32 bytes before `to` in its page.
void copy_within_pages(void* to, const void* from, size_t n);

// memcpy, for which a null pointer is undefined even if there is nothing to copy: an empty array may have none.
inline void copy_bytes(void* to, const void* from, size_t n) {
    constexpr size_t kPage = 4096, kNear = 32, kShort = 2048, kLong = 1 << 20;
    const size_t ahead = (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPage;
    if (n > kShort && n < kLong && ahead - 1 < kNear) return copy_within_pages(to, from, n);
    if (n) std::memcpy(to, from, n);
}

}  // namespace rankwise
