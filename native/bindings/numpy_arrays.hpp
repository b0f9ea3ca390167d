// The fields of a NumPy array, read through NumPy's own header. NumPy itself is never imported here,
// so what runs without it (the launcher) stays without it.
#pragma once
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/ndarraytypes.h>

#include "bindings.hpp"

// The array, or nullptr for anything else, subclasses included: they may mean more than their memory.
PyArrayObject* as_ndarray(nb::handle object);
// The DType of an array's elements as an int, or -1 for types and byte orders that ranks do not exchange.
int dtype_of(PyArray_Descr* descr);
