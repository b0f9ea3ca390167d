// Python functions as pieces of work on a stream.
#pragma once
#include <functional>

#include "bindings.hpp"

// It must not raise: nobody would see it.
std::function<void()> python_piece(nb::callable function);
