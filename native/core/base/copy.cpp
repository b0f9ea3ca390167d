#include "base/copy.hpp"

#include <algorithm>

namespace rankwise {

// `rep movsb` takes AMD's processors from Zen 3 on 15 to 25 times as long if `to` is a little ahead of `from` in its
// page. glibc before 2.39 uses it for 2 KiB to 1 MiB (its bug 30994), and the kernel for what a process reads or writes
// in another one. A slot begins with a page, malloc lets large arrays begin 16 bytes behind one, and so does the second
// of two arrays of 32 KiB: such copies are common.
bool copies_slowly_within_pages() {
#if defined(__x86_64__)
    static const bool slow = __builtin_cpu_is("amd");
    return slow;
#else
    return false;
#endif
}

void copy_within_pages(void* to, const void* from, size_t n) {
    constexpr size_t kPart = 2048;  // shorter than what glibc copies so
    const size_t part = copies_slowly_within_pages() ? kPart : n;
    for (size_t at = 0; at < n; at += part)
        std::memcpy(static_cast<uint8_t*>(to) + at, static_cast<const uint8_t*>(from) + at, std::min(part, n - at));
}

}  // namespace rankwise
