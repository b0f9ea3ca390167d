#include "works.hpp"

using namespace rankwise;

thread_local constinit Starting* Starting::here = nullptr;

void PythonCall::run() {
    const HoldGil gil;
    PyObject* result = acquiring_gil(
        [&] { return PyObject_CallNoArgs(function_.get()); });  // it may still run when the interpreter shuts down
    function_.release();
    if (result) return set(nb::steal(result));
    const nb::python_error error;
    // It was raised within this package, whose frames refer to the group: if nobody takes the error from the engine,
    // they would keep the group from being closed, as Python's garbage collector does not see that.
    if (error.matches(nb::module_::import_("rankwise.contract.errors").attr("RankwiseError")))
        PyException_SetTraceback(error.value().ptr(), Py_None);
    throw Raised(error);
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

void WorkHandle::await_end(double timeout) {
    ReleaseGilToWait released;
    task_->await_end(timeout, released.options());
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
