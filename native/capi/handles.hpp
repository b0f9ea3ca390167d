// What the handles of rankwise.h point to, and how each of its functions runs.
#pragma once
#include <memory>
#include <string>

#include "comm.hpp"
#include "rankwise.h"
#include "site.hpp"

struct rankwise_comm_s {
    std::shared_ptr<rankwise::Comm> comm;
    bool exposed = false;  // it belongs to the program that embeds the engine, which closes it
};

struct rankwise_request_s {
    std::shared_ptr<rankwise::Request> request;
};

namespace rankwise::capi {

// The status of the exception that is being handled; its text is the thread's latest error from now on.
int status_of_error() noexcept;

// Runs `body`, the whole of a function of the API.
template <class Body> int guarded(Body&& body) noexcept {
    const EndOfCall end;
    try {
        body();
        return RANKWISE_OK;
    } catch (...) {
        return status_of_error();
    }
}

inline Comm& checked(rankwise_comm comm) {
    if (!comm) throw BadArgument("comm: NULL given, expected a communicator, as from rankwise_init");
    return *comm->comm;
}
// Runs `body(c)`, the whole of a function of the API on this communicator.
template <class Body> int on(rankwise_comm comm, const Body& body) noexcept {
    return guarded([&] { body(checked(comm)); });
}
template <class T> T& result(T* where, const char* argument) {
    if (!where) throw BadArgument(std::string(argument) + ": NULL given, expected where to store the result");
    return *where;
}
inline DType checked(rankwise_dtype dtype) {
    return DType(checked_number("dtype", int(dtype), kDTypes, "a rankwise_dtype"));
}
inline ReduceOp checked(rankwise_op op) { return ReduceOp(checked_number("op", int(op), kReduceOps, "a rankwise_op")); }
// Who computes a length below 0 gets here a very large one.
inline uint64_t checked(uint64_t count) {
    if (count > uint64_t(INT64_MAX))
        throw BadArgument("count: " + std::to_string(int64_t(count)) + " given, expected a number of at least 0");
    return count;
}
// Memory for this many elements.
template <class T> T* memory(T* address, uint64_t count, const char* argument) {
    if (checked(count) && !address)
        throw BadArgument(std::string(argument) + ": NULL given, expected " + std::to_string(count) + " elements");
    return address;
}

// A handle of the program's own communicator, which is closed when the program exits.
rankwise_comm opened(std::shared_ptr<Comm> comm);
// A handle of a communicator that somebody else closes.
inline rankwise_comm_s exposed(std::shared_ptr<Comm> comm) { return {std::move(comm), true}; }

}  // namespace rankwise::capi
