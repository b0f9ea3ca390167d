#include "kernels/copy.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rankwise {

namespace {

constexpr size_t kUnit = 256;  // copied a turn: four cache lines

#if defined(__x86_64__)

__attribute__((target("avx512f"))) void stream_avx512(uint8_t* dst, const uint8_t* src, size_t bytes) {
    for (size_t i = 0; i < bytes; i += kUnit) {
        const __m512i a = _mm512_loadu_si512(src + i), b = _mm512_loadu_si512(src + i + 64);
        const __m512i c = _mm512_loadu_si512(src + i + 128), d = _mm512_loadu_si512(src + i + 192);
        _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i), a);
        _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i + 64), b);
        _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i + 128), c);
        _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i + 192), d);
    }
}

void stream_sse2(uint8_t* dst, const uint8_t* src, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) {
        __m128i x[4];
        for (int k = 0; k < 4; ++k) x[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i) + k);
        for (int k = 0; k < 4; ++k) _mm_stream_si128(reinterpret_cast<__m128i*>(dst + i) + k, x[k]);
    }
}

#endif

void plain(void* dst, const void* src, size_t bytes) {
    if (bytes) std::memcpy(dst, src, bytes);
}

}  // namespace

void stream_copy(void* dst, const void* src, size_t bytes) {
#if defined(__x86_64__)
    static const bool avx512 = __builtin_cpu_supports("avx512f");
    auto* to = static_cast<uint8_t*>(dst);
    auto* from = static_cast<const uint8_t*>(src);
    const size_t head = std::min<size_t>(-reinterpret_cast<uintptr_t>(to) & 63, bytes);
    const size_t body = (bytes - head) / kUnit * kUnit;
    plain(to, from, head);
    if (avx512) stream_avx512(to + head, from + head, body);
    else stream_sse2(to + head, from + head, body);
    plain(to + head + body, from + head + body, bytes - head - body);
    _mm_sfence();
#else
    plain(dst, src, bytes);
#endif
}

size_t stream_from() {
    // The last level is shared, on a virtual machine with strangers: an eighth of it, in reason.
    static const size_t cache = [] {
        long bytes = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
        bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
        return std::clamp<size_t>(size_t(std::max(bytes, 0L)) / 8, 8 << 20, 64 << 20);
    }();
    return cache;
}

Copy copy_for(size_t written) { return written >= stream_from() ? stream_copy : plain; }

}  // namespace rankwise
