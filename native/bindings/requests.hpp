// Sends and receives as Python sees them.
#pragma once
#include "kept.hpp"

// A send or receive: a Work of a communicator, and of a group too for plain arrays.
//
// If Python loses it while it is pending, perhaps because a signal handler raises before the caller has it, the message
// is cancelled. If `goes_on_when_dropped`, it goes on instead, and its memory stays alive.
//
// One thread at a time is in its methods (nb::lock_self), but for those that wait, as with the GIL.
class RequestHandle {
public:
    // memory: owns the memory that the engine uses. If it is None, the caller keeps the memory alive, and the request
    // goes on when dropped.
    RequestHandle(std::shared_ptr<rankwise::Request> request, nb::object memory);
    // result: what `wait` returns. group: kept until the message is complete, so that a dropped group is not closed.
    RequestHandle(std::shared_ptr<rankwise::Request> request, nb::object memory, nb::object result, nb::object group);
    RequestHandle(RequestHandle&&) = default;
    ~RequestHandle();
    rankwise::Request* operator->() const { return request_.get(); }
    const std::shared_ptr<rankwise::Request>& shared() const { return request_; }
    bool goes_on_when_dropped = false;

    nb::object wait(nb::handle timeout);
    // Waits at most so long, without raising the message's error.
    void await_end(double timeout);
    bool done();
    bool cancel();
    std::string repr() const;
    // Of a complete receive whose message is not in its array, but in memory of its own: the array. None for any other
    // request.
    nb::object given() const { return request_->has_result() && request_->overflows() ? memory_ : nb::none(); }

private:
    // The engine has released the memory.
    void release() {
        if (!request_->overflows()) memory_.reset();
        group_.reset();
    }
    std::shared_ptr<rankwise::Request> request_;
    nb::object memory_, result_, group_;
};
