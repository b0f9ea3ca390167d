#include "bindings.hpp"
#include "sites.hpp"

NB_MODULE(_native, m) {
    m.doc() = "The native engine of rankwise: shared-memory segments and the communicators in them.";
    nb::set_leak_warnings(false);  // a program may end while threads wait; its user need not read about it
    bind_errors(m);
    bind_sites();
    bind_segment(m);
    bind_streams(m);
    bind_comm(m);
    bind_arrays(m);
    bind_turns(m);
    bind_trace(m);
    bind_registered(m);
}
