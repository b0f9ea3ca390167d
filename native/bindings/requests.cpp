#include "requests.hpp"

using namespace rankwise;

RequestHandle::RequestHandle(std::shared_ptr<Request> request, nb::object memory)
    : goes_on_when_dropped(memory.is_none()), request_(std::move(request)), memory_(std::move(memory)),
      result_(nb::none()) {}

RequestHandle::RequestHandle(std::shared_ptr<Request> request, nb::object memory, nb::object result, nb::object group)
    : request_(std::move(request)), memory_(std::move(memory)), result_(std::move(result)), group_(std::move(group)) {}

RequestHandle::~RequestHandle() {
    if (!request_ || request_->has_result() || request_->cancelled()) return;
    if (!goes_on_when_dropped) {
        const ReleaseGil released;
        try {
            request_->cancel();
            return;
        } catch (const std::exception&) {  // it goes on, or the group has failed
        }
    }
    request_->keep(kept(std::move(memory_)));
}

nb::object RequestHandle::wait(nb::handle timeout) {
    std::optional<double> limit;
    if (!timeout.is_none()) limit = checked_timeout(timeout);
    {
        ReleaseGilToWait released;
        request_->wait(limit, released.options());
    }
    release();
    return result_;
}

void RequestHandle::await_end(double timeout) {
    ReleaseGilToWait released;
    request_->await_end(timeout, released.options());
}

bool RequestHandle::done() {
    const bool done = request_->has_result() || without_gil([&] { return request_->done(); });
    if (request_->has_result() && !request_->failed()) release();
    return done;
}

// Returns whether this call has cancelled the request, which then is not complete.
bool RequestHandle::cancel() {
    const bool before = request_->cancelled();
    without_gil([&] { request_->cancel(); });
    return !before && request_->cancelled();
}

std::string RequestHandle::repr() const {
    if (request_->cancelled()) return "<Work, failed: ClosedError>";
    if (request_->failed()) return "<Work, failed: MismatchError>";
    return request_->has_result() ? "<Work, complete>" : "<Work, not yet waited for>";
}
