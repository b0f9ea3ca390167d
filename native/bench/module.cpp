// rankwise._bench: functions that only the benchmark needs. It contains a second copy of the engine's code, which works
// on the communicators that rankwise._native created. Of that copy's process-wide settings only the check for Python's
// signals matters here.
#include "bench.hpp"

NB_MODULE(_bench, m) {
    m.doc() = "Timing without Python in the loop, for `rankwise bench`.";
    nb::set_leak_warnings(false);
    nb::module_::import_("rankwise._native");  // makes its types known
    check_signals_while_waiting();
    bind_batches(m);
    bind_bound(m);
    bind_machine(m);
}
