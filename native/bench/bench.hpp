// Declarations that the files of the benchmark's extension share.
#pragma once
#include "bindings.hpp"

void bind_batches(nb::module_& m);
void bind_bound(nb::module_& m);
void bind_machine(nb::module_& m);
