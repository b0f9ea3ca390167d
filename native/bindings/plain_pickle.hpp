// Which Python objects pickle alone can make, and which pickles make only such objects.
#pragma once
#include "bindings.hpp"

// Whether an object consists of at most 65,536 None, bool, int, float, str and bytes, in lists, tuples and dicts.
bool is_basic(nb::handle object);
// Whether a pickle makes only basic types, with no call of the constructor (see check_plain). False also if it is
// invalid.
bool makes_basic(const nb::bytes& stream, const nb::tuple& constructor) noexcept;
