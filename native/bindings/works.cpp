#include "works.hpp"

using namespace rankwise;

thread_local constinit Starting* Starting::here = nullptr;

void PythonCall::run() {
    const HoldGil gil;
    PyObject* result = acquiring_gil(
        [&] { return PyObject_CallNoArgs(function_.get()); });  // it may still run when the interpreter shuts down
    function_.release();
    if (result) set(nb::steal(result));
    else throw Raised(nb::python_error());
}

WorkHandle::~WorkHandle() {
    if (task_ && memory_.is_valid() && !task_->ended()) task_->keep(kept(std::move(memory_)));
}

void WorkHandle::release() {
    memory_.reset();
    group.reset();
}

nb::object WorkHandle::wait(nb::handle timeout) {
    {
        ReleaseGilToWait released;
        if (timeout.is_none()) task_->wait(released.options());
        else task_->wait(checked_timeout(timeout), released.options());
    }
    release();
    if (const auto late = std::exchange(late_, nullptr)) result_ = late->take();
    return result_;
}

void WorkHandle::settle(double timeout) {
    ReleaseGilToWait released;
    task_->settle(timeout, released.options());
}

bool WorkHandle::done() {
    {
        ReleaseGilToWait released;
        task_->done(released.options());
    }
    if (task_->succeeded()) release();
    return task_->ended() || task_->of_parent();  // of which `wait` raises the error
}

std::string WorkHandle::repr() const {
    if (!task_->ended()) return "<Work, not yet waited for>";
    return task_->succeeded() ? "<Work, complete>" : "<Work, failed>";
}

std::vector<WorkHandle> works_of(std::vector<std::shared_ptr<Task>> tasks) {
    std::vector<WorkHandle> works;
    for (auto& task : tasks) works.emplace_back(std::move(task), nb::none());
    return works;
}
