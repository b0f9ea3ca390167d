// rankwise._bench: functions that only the benchmark needs. It contains a second copy of the engine's code, which works
// on the communicators that rankwise._native created.
#include "bench.hpp"

NB_MODULE(_bench, m) {
    m.doc() = "Timing without Python in the loop, for `rankwise bench`.";
    nb::set_leak_warnings(false);
    nb::module_::import_("rankwise._native");  // makes its types known
    bind_batches(m);
    bind_bound(m);
    bind_machine(m);
}
