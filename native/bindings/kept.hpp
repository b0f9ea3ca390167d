// Python objects that own the memory of pending operations.
#pragma once
#include <utility>

#include "bindings.hpp"

// A reference to a Python object. Any thread may destroy it: without the GIL, and with the engine's locks held.
class Kept {
public:
    explicit Kept(nb::object object) : object_(object.release().ptr()) {}
    Kept(const Kept&) = delete;
    ~Kept();
    PyObject* get() const { return object_; }
    // Releases the reference now. The caller holds the GIL, and no lock.
    void release() { Py_CLEAR(object_); }
    nb::object take() { return nb::steal(std::exchange(object_, nullptr)); }

private:
    PyObject* object_;
};

// What a Python function has raised.
struct Raised final : std::exception {
    explicit Raised(const nb::python_error& error) : error(std::make_shared<Kept>(nb::borrow(error.value()))) {}
    const char* what() const noexcept override { return "an exception of Python"; }
    std::shared_ptr<Kept> error;
};

inline std::shared_ptr<Kept> kept(nb::object object) {
    return object.is_none() ? nullptr : std::make_shared<Kept>(std::move(object));
}
