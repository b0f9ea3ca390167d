// Copies with non-temporal stores, which bypass the caches.
#pragma once
#include <cstddef>

namespace rankwise {

// memcpy with non-temporal stores, for results too large to stay in the cache: their lines need not be read before they
// are overwritten. Ordered before any later release.
void non_temporal_copy(void* dst, const void* src, size_t bytes);

// When all ranks' results of an operation together have at least this many bytes, they would not stay in the cache that
// the ranks share, and are written with non_temporal_copy.
size_t non_temporal_from();

// Writes what another core reads next. If the peers are far, from kThroughMemory bytes on with non-temporal
// stores, so that the other core finds it in memory and need not fetch each line out of this core's cache.
void copy_for_peers(void* dst, const void* src, size_t bytes);
// Whether they are: of all groups of this process.
bool peers_are_far();
void set_peers_far(bool far);

using Copy = void (*)(void* dst, const void* src, size_t bytes);
Copy copy_for(bool non_temporal);

}  // namespace rankwise
