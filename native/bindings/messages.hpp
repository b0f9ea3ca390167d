#pragma once
#include "requests.hpp"

// The methods of Comm for messages between two ranks, and the class of their Requests.
void bind_messages(nb::module_& m, nb::class_<rankwise::Comm>& comm);
// The methods for blocking messages between arrays.
void bind_exchange(nb::class_<rankwise::Comm>& comm);
// The methods for Python objects.
void bind_objects(nb::module_& m, nb::class_<rankwise::Comm>& comm);
// The memory of objects with the buffer protocol. Whoever keeps the objects keeps the memory.
std::vector<rankwise::Stretch> parts_of(const nb::list& objects);
// A message that was begun, or not; one that is complete has no Request.
struct StartedMessage {
    bool begun = false;
    std::optional<RequestHandle> pending;
};
// Starts a message with a plain tensor, as torch.distributed does: autograd is not notified. Nothing is begun with any
// other array, rank or tag. group: kept until it is complete.
StartedMessage send_tensor(rankwise::Comm& c, nb::object x, nb::handle dst, nb::handle tag, nb::object group);
// Its result is src.
StartedMessage receive_tensor(rankwise::Comm& c, nb::object x, nb::handle src, nb::handle tag, nb::object group);
// Sends an encoded object, whose parts are such objects.
void send_object_now(rankwise::Comm& c, const nb::list& parts, int dest, int tag);
// The message of a complete receive of any length, which is taken from it.
nb::object received_bytes(rankwise::Request& request);
