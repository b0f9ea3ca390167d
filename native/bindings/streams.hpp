// Python functions as tasks of a stream.
#pragma once
#include <functional>

#include "kept.hpp"

// The function must not raise, because the exception could only be logged.
std::function<void()> python_task(nb::callable function);
