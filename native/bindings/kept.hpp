// Python objects that own the memory of pending operations, and the operations as Python sees them.
#pragma once
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

private:
    PyObject* object_;
};

inline std::shared_ptr<Kept> kept(nb::object object) {
    return object.is_none() ? nullptr : std::make_shared<Kept>(std::move(object));
}

// A task of a stream as Python holds it. If Python loses it while it is pending, it goes on.
class TaskHandle {
public:
    TaskHandle(std::shared_ptr<rankwise::Task> task, std::shared_ptr<Kept> kept)
        : task_(std::move(task)), kept_(std::move(kept)) {}
    TaskHandle(TaskHandle&&) = default;
    ~TaskHandle() {
        if (kept_ && task_->done()) kept_->release();
    }
    rankwise::Task* operator->() const { return task_.get(); }
    // Called once the task is complete: its memory need not be kept any longer.
    void release() {
        if (kept_) kept_->release();
    }

private:
    std::shared_ptr<rankwise::Task> task_;
    std::shared_ptr<Kept> kept_;
};
