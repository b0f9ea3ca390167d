#include "kernels/non_temporal.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/copy.hpp"
#include "base/policy.hpp"

namespace rankwise {

namespace {

constexpr size_t kUnit = 256;  // copied at once: four cache lines

std::atomic<bool> peers_far{false};

#if defined(__x86_64__)

__attribute__((target("avx512f"))) void store_unit_avx512(uint8_t* dst, const uint8_t* src) {
    __m512i x[4];
    for (int k = 0; k < 4; ++k) x[k] = _mm512_loadu_si512(src + 64 * k);
    for (int k = 0; k < 4; ++k) _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + 64 * k), x[k]);
}

void store_unit_sse2(uint8_t* dst, const uint8_t* src) {
    for (size_t i = 0; i < kUnit; i += 16)
        _mm_stream_si128(reinterpret_cast<__m128i*>(dst + i),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i)));
}

// Interleaves four streams: the hardware prefetcher works within 4 KiB, whatever the size of a page, so four times as
// much data is in flight from memory. glibc's memcpy does the same for copies larger than most of the last-level cache.
template <auto unit>
__attribute__((always_inline)) inline void copy_units(uint8_t* dst, const uint8_t* src, size_t bytes) {
    constexpr size_t kReach = 4096, kStreams = 4;
    size_t done = 0;
    for (; done + kStreams * kReach <= bytes; done += kStreams * kReach)
        for (size_t i = done; i < done + kReach; i += kUnit)
            for (size_t at = i; at < i + kStreams * kReach; at += kReach) unit(dst + at, src + at);
    for (; done < bytes; done += kUnit) unit(dst + done, src + done);
}

__attribute__((target("avx512f"))) void copy_avx512(uint8_t* dst, const uint8_t* src, size_t bytes) {
    copy_units<store_unit_avx512>(dst, src, bytes);
}
void copy_sse2(uint8_t* dst, const uint8_t* src, size_t bytes) { copy_units<store_unit_sse2>(dst, src, bytes); }

#endif

}  // namespace

void non_temporal_copy(void* dst, const void* src, size_t bytes) {
#if defined(__x86_64__)
    static const bool avx512 = __builtin_cpu_supports("avx512f");
    auto* to = static_cast<uint8_t*>(dst);
    auto* from = static_cast<const uint8_t*>(src);
    const size_t head = std::min<size_t>(-reinterpret_cast<uintptr_t>(to) & 63, bytes);
    const size_t body = (bytes - head) / kUnit * kUnit;
    copy_bytes(to, from, head);
    if (avx512) copy_avx512(to + head, from + head, body);
    else copy_sse2(to + head, from + head, body);
    copy_bytes(to + head + body, from + head + body, bytes - head - body);
    _mm_sfence();
#else
    copy_bytes(dst, src, bytes);
#endif
}

bool peers_are_far() { return peers_far.load(std::memory_order_relaxed); }
void set_peers_far(bool far) { peers_far = far; }

void copy_for_peers(void* dst, const void* src, size_t bytes) {
    if (bytes < kThroughMemory || !peers_are_far()) copy_bytes(dst, src, bytes);
    else non_temporal_copy(dst, src, bytes);
}

size_t non_temporal_from() {
    // An eighth of the last-level cache, within limits: on a virtual machine other tenants share it.
    static const size_t cache = [] {
        long bytes = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
        bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
        return std::clamp<size_t>(size_t(std::max(bytes, 0L)) / 8, 8 << 20, 64 << 20);
    }();
    return cache;
}

Copy copy_for(bool non_temporal) { return non_temporal ? non_temporal_copy : copy_bytes; }

}  // namespace rankwise
