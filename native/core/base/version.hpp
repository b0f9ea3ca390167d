// The release of rankwise.
#pragma once

namespace rankwise {

// As "0.1.0". All ranks of a job have the same one, since they share memory whose layout differs between releases.
const char* version();

}  // namespace rankwise
