// Copying bytes.
#pragma once
#include <cstddef>
#include <cstring>

namespace rankwise {

// memcpy, for which a null pointer is undefined even if there is nothing to copy: an empty array may have none.
inline void copy_bytes(void* to, const void* from, size_t n) {
    if (n) std::memcpy(to, from, n);
}

}  // namespace rankwise
