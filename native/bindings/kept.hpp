// Python objects that own the memory of pending operations, and the operations as Python sees them.
#pragma once
#include "bindings.hpp"

// A reference to a Python object. Any thread may destroy it: without the GIL, and with the engine's locks held.
class Kept {
public:
    explicit Kept(nb::object object) : object_(object.release().ptr()) {}
    Kept(const Kept&) = delete;
    ~Kept();
    // Releases the reference now. The caller holds the GIL, and no lock.
    void release() { Py_CLEAR(object_); }

private:
    PyObject* object_;
};

inline std::shared_ptr<Kept> kept(nb::object object) {
    return object.is_none() ? nullptr : std::make_shared<Kept>(std::move(object));
}

// A Request or Task as Python holds it. If a signal handler raises before the caller has it, Python loses it while
// it is pending. A Request is then cancelled, unless nothing owns its memory: then it goes on, and the caller answers
// for the memory.
template <class T> class Handle {
public:
    Handle(std::shared_ptr<T> operation, std::shared_ptr<Kept> kept)
        : operation_(std::move(operation)), kept_(std::move(kept)) {}
    Handle(Handle&&) = default;
    ~Handle() {
        if (kept_ && cancel(*operation_)) kept_->release();
    }
    T* operator->() const { return operation_.get(); }
    // Called once the operation is complete: its memory need not be kept any longer.
    void release() {
        if (kept_) kept_->release();
    }

private:
    // Cancels a message; a task goes on. Returns whether the engine no longer uses the memory.
    static bool cancel(rankwise::Task& task) { return task.done(); }
    static bool cancel(rankwise::Request& request) {
        if (request.complete()) return true;
        const ReleaseGil released;
        try {
            request.abandon();
            return true;
        } catch (const std::bad_alloc&) {  // it goes on
            return false;
        }
    }
    std::shared_ptr<T> operation_;
    std::shared_ptr<Kept> kept_;
};

using RequestHandle = Handle<rankwise::Request>;
using TaskHandle = Handle<rankwise::Task>;
