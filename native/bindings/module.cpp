#include "bindings.hpp"

NB_MODULE(_native, m) {
    m.doc() = "The native engine of rankwise: shared-memory segments and the communicators in them.";
    bind_errors(m);
    bind_segment(m);
    bind_comm(m);
    bind_arrays(m);
    bind_bench(m);
}
