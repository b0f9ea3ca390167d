// Reads the fields of a NumPy array through NumPy's header. NumPy is never imported here, so that programs
// without it (the launcher) stay without it.
#pragma once
#include <numpy/ndarraytypes.h>

#include "bindings.hpp"

bool is_ndarray(nb::handle object);  // or of a subclass
// The array, or nullptr for anything else, including subclasses: they may have state besides their memory.
PyArrayObject* as_ndarray(nb::handle object);
// The DType of an array's elements as an int, or -1 for types and byte orders that ranks cannot exchange.
int dtype_of(PyArray_Descr* descr);
