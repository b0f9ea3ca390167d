#include "base/version.hpp"

namespace rankwise {

const char* version() { return RANKWISE_VERSION; }

}  // namespace rankwise
