// rankwise._bench: what only the benchmark needs. It holds a second copy of the engine's code, which
// works on the communicators that rankwise._native made; of the process-wide settings of that copy only
// the check for Python's signals matters here.
#include "bench.hpp"

NB_MODULE(_bench, m) {
    m.doc() = "Timing without Python in between, for `rankwise bench`.";
    nb::set_leak_warnings(false);
    nb::module_::import_("rankwise._native");  // makes its types known
    check_signals_while_waiting();
    bind_batches(m);
    bind_bound(m);
    bind_machine(m);
}
