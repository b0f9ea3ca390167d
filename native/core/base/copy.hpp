// Copying bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rankwise {

inline constexpr size_t kPage = 4096;

// Whether `to` is so little ahead of `from` in its page that `rep movsb` is slow on processors of AMD (copy.cpp).
inline bool meet_in_page(const void* to, const void* from) {
    constexpr size_t kNear = 32;
    return (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPage - 1 < kNear;
}
// Whether that matters on this processor.
bool copies_slowly_within_pages();

// memcpy, if `from` and `to` meet in their pages.
void copy_within_pages(void* to, const void* from, size_t n);

// memcpy, for which a null pointer is undefined even if there is nothing to copy: an empty array may have none.
inline void copy_bytes(void* to, const void* from, size_t n) {
    constexpr size_t kShort = 2048, kLong = 1 << 20;
    if (n > kShort && n < kLong && meet_in_page(to, from)) return copy_within_pages(to, from, n);
    if (n) std::memcpy(to, from, n);
}

// The same if `from` may overlap `to`, or be `to`.
inline void move_bytes(void* to, const void* from, size_t n) {
    const auto a = reinterpret_cast<uintptr_t>(to), b = reinterpret_cast<uintptr_t>(from);
    if (a - b >= n && b - a >= n) return copy_bytes(to, from, n);
    if (to != from) std::memmove(to, from, n);
}

}  // namespace rankwise
