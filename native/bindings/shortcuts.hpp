#pragma once
#include "bindings.hpp"

void bind_shortcuts(nb::class_<rankwise::Comm>& comm);
void bind_vector_arrays(nb::class_<rankwise::Comm>& comm);
void bind_torch_calls(nb::class_<rankwise::Comm>& comm);
