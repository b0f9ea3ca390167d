// Copies that leave the cache alone.
#pragma once
#include <cstddef>

namespace rankwise {

// As memcpy, but with stores that go past the cache: for results too large to stay in it, whose
// lines need then not be read before they are overwritten. Ordered before any later release.
void stream_copy(void* dst, const void* src, size_t bytes);

// From this many bytes on results are written with stream_copy: they would not stay in the cache that the ranks share.
size_t stream_from();

// The copy for the results of an operation in which all ranks together write so many bytes.
using Copy = void (*)(void* dst, const void* src, size_t bytes);
Copy copy_for(size_t written);

}  // namespace rankwise
