#include "works.hpp"

using namespace rankwise;

thread_local constinit Starting* Starting::here = nullptr;

WorkHandle::~WorkHandle() {
    if (task_ && memory_.is_valid() && !task_->ended()) task_->keep(kept(std::move(memory_)));
}

nb::object WorkHandle::wait(nb::handle timeout) {
    {
        ReleaseGilToWait released;
        if (timeout.is_none()) task_->wait(released.options());
        else task_->wait(checked_timeout(timeout), released.options());
    }
    memory_.reset();
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
    if (task_->succeeded()) memory_.reset();
    return task_->ended() || task_->of_parent();  // of which `wait` raises the error
}

std::string WorkHandle::repr() const {
    if (!task_->ended()) return "<Work, not yet waited for>";
    return task_->succeeded() ? "<Work, complete>" : "<Work, failed>";
}
