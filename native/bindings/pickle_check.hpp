// The pickles of plain data: which streams Python's Unpickler may be given without trust in their sender. Like the
// core, this knows nothing of Python.
#pragma once
#include <cstddef>
#include <stdexcept>
#include <string_view>

struct NotPlain : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Checks that a pickle with this many buffers is plain data: that it can only make Python's basic types, and call one
// constructor. Returns whether it calls that. Throws NotPlain, and BadArgument if the stream is invalid.
bool check_plain(std::string_view stream, size_t buffers, std::string_view module, std::string_view name);
