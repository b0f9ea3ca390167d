// Which Python objects pickle alone can make, and which pickles make only such objects.
#pragma once
#include "bindings.hpp"

// Whether an object consists of at most 65,536 None, bool, int, float, str and bytes, in lists, tuples and dicts.
bool is_basic(nb::handle object);
// Whether a pickle makes only basic types, with no call of the constructor (see check_plain). False also if it is
// invalid.
bool makes_basic(const nb::bytes& stream, const nb::tuple& constructor) noexcept;

inline nb::object not_implemented() { return nb::borrow(Py_NotImplemented); }

// pickle.dumps and pickle.loads; load returns NotImplemented if that fails.
nb::bytes dump(nb::handle object);
nb::object load(nb::handle stream);
// The object of a pickle that makes only basic types; NotImplemented if it makes others, or is invalid.
nb::object load_basic(nb::handle stream, const nb::tuple& constructor);
