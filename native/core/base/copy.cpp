#include "base/copy.hpp"

#include <algorithm>

namespace rankwise {

// glibc before 2.39 copies 2 KiB to 1 MiB with `rep movsb`, which takes AMD's processors from Zen 3 on 15 to 25 times
// as long if `to` is a little ahead of `from` in its page (bug 30994 of glibc). A slot begins with a page, and malloc
// lets large arrays begin 16 bytes behind one, so such copies are common; they are made in short parts.
void copy_within_pages(void* to, const void* from, size_t n) {
    constexpr size_t kPart = 2048;
#if defined(__x86_64__)
    static const bool slow = __builtin_cpu_is("amd");
#else
    constexpr bool slow = false;
#endif
    const size_t part = slow ? kPart : n;
    for (size_t at = 0; at < n; at += part)
        std::memcpy(static_cast<uint8_t*>(to) + at, static_cast<const uint8_t*>(from) + at, std::min(part, n - at));
}

}  // namespace rankwise
