// Which Python objects pickle alone can make, and which pickles make only such objects.
#pragma once
#include "bindings.hpp"

// Whether an object consists of at most 65,536 None, bool, int, float, str and bytes, in lists, tuples and dicts.
bool is_basic(nb::handle object);

// The first byte of a pickle, and so of an object without buffers of its own (group/object_block.py).
inline constexpr char kPickle = '\x80';

// NOT_TAKEN of contract/shortcuts.py.
nb::object not_taken();

// pickle.dumps and pickle.loads. If that fails, load returns NOT_TAKEN.
nb::bytes dump(nb::handle object);
nb::object load(nb::handle stream);
// The object of a pickle that makes only basic types; NOT_TAKEN if it makes others, or is invalid. With None in
// place of the constructor, the object of any pickle, or the error that it raises; NOT_TAKEN for what does not
// begin as a pickle.
nb::object load_allowed(nb::handle stream, nb::handle constructor);
