// What the ranks agree on before they work in their own memory (exposed_buffers.hpp).
#pragma once
#include <cstdint>

namespace rankwise {

// What memory the ranks expose: some rank's cannot be accessed; all can, but not all is registered; all is registered.
enum class Exposure : uint8_t { None, Private, Registered };

}  // namespace rankwise
