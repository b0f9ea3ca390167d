// Copies that leave the cache alone.
#pragma once
#include <cstddef>

namespace rankwise {

// As memcpy, but with stores that go with non-temporal stores: for results too large to stay in it, whose
// lines need then not be read before they are overwritten. Ordered before any later release.
void stream_copy(void* dst, const void* src, size_t bytes);

// From so many bytes on, of all ranks' results in an operation, they would not stay in the cache that the ranks share
// and are written with stream_copy.
size_t stream_from();

using Copy = void (*)(void* dst, const void* src, size_t bytes);
Copy copy_for(bool past_cache);

}  // namespace rankwise
