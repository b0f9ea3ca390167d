#include "base/version.hpp"
#include "bindings.hpp"

NB_MODULE(_native, m) {
    m.doc() = "The native engine of rankwise: shared-memory segments and the communicators in them.";
    nb::set_leak_warnings(false);  // a program that ends while its threads wait leaks on purpose
    m.attr("version") = rankwise::version();
    bind_errors(m);
    bind_embedding(m);
    bind_segment(m);
    bind_streams(m);
    bind_comm(m);
    bind_arrays(m);
    bind_plain_pickle(m);
    bind_trace(m);
    bind_totals(m);
    bind_registered(m);
    bind_words(m);
    bind_jax(m);
}
