// How a call ends if a peer does not take part in it. failure/failure_reporter.hpp implements this.
#pragma once
#include <cstdint>

namespace rankwise {

// Each function fails the group, unless it has failed already, and throws the error that says why.
class ErrorSource {
public:
    [[noreturn]] virtual void throw_failure() = 0;       // the group has failed
    [[noreturn]] virtual void throw_lost(int peer) = 0;  // the peer's process has ended, or the peer has left
    [[noreturn]] virtual void throw_mismatch() = 0;      // a peer made another call
    [[noreturn]] virtual void throw_timed_out(uint64_t steps) = 0;  // some peer has not posted so many steps
    [[noreturn]] virtual void throw_overwritten(const char* what, int peer) = 0;  // in the segment, by a stray write

protected:
    ~ErrorSource() = default;
};

}  // namespace rankwise
