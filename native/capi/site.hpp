// Where in the program the calling thread makes its current call of the C API.
#pragma once
#include <string>

namespace rankwise::capi {

struct Site {
    const char* file = nullptr;
    int line = 0;
    const char* function = nullptr;
    std::string text() const;  // "ring.c:31 (exchange)", or ""
};
// Set by rankwise_at, and unset when the call that follows ends.
[[gnu::tls_model("initial-exec")]] extern thread_local constinit Site site;

// The text of `site`, for an embedding whose own language has called C.
std::string call_site();

// The call ends when this does.
struct EndOfCall {
    EndOfCall() = default;
    EndOfCall(const EndOfCall&) = delete;
    ~EndOfCall() { site.file = nullptr; }
};

}  // namespace rankwise::capi
