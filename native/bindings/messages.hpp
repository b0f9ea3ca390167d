#pragma once
#include "kept.hpp"

// The methods of Comm for messages between two ranks, and the class of their Requests.
void bind_messages(nb::module_& m, nb::class_<rankwise::Comm>& comm);
// The methods for Python objects.
void bind_objects(nb::module_& m, nb::class_<rankwise::Comm>& comm);
// The memory of objects with the buffer protocol. Whoever keeps the objects keeps the memory.
std::vector<rankwise::Part> parts_of(const nb::list& objects);
// Sends an encoded object, whose parts are such objects.
void send_object_now(rankwise::Comm& c, const nb::list& parts, int dest, int tag);
// The message of a complete receive of any length, which is taken from it.
nb::object received_bytes(rankwise::Request& request);
