// The communicator's messages between two ranks.
#include "comm.hpp"

namespace rankwise {

std::shared_ptr<Request> Comm::send(const void* data, uint64_t count, DType dtype, int to, int tag,
                                    const CallOptions& options) {
    check_root(to, "dest");
    check_open();
    return messages_->send(data, count, dtype, to, tag, options);
}

bool Comm::send_at_once(const void* data, uint64_t count, DType dtype, int to, int tag, const CallOptions& options,
                        bool object) {
    check_root(to, "dest");
    check_open();
    return messages_->send_short(data, count, dtype, to, tag, options, object);
}

std::shared_ptr<Request> Comm::recv(void* data, uint64_t count, DType dtype, int from, int tag,
                                    const CallOptions& options) {
    if (from != kAny) check_root(from, "src");
    check_open();
    return messages_->recv(data, count, dtype, from, tag, options);
}

std::shared_ptr<Request> Comm::recv_up_to(void* data, uint64_t count, DType dtype, int from, int tag,
                                          const CallOptions& options) {
    if (from != kAny) check_root(from, "src");
    check_open();
    return messages_->recv_up_to(data, count, dtype, from, tag, options);
}

std::shared_ptr<Request> Comm::send_object(std::vector<Part> parts, int to, int tag) {
    check_root(to, "dest");
    check_open();
    return messages_->send_object(std::move(parts), to, tag);
}

std::shared_ptr<Request> Comm::recv_any(const Wanted& wanted, int from, int tag) {
    if (from != kAny) check_root(from, "src");
    check_open();
    return messages_->recv_any(wanted, from, tag);
}

void Comm::complete(const std::shared_ptr<Request>& request, const CallOptions& options,
                    std::optional<double> timeout) {
    try {
        request->wait(timeout, options);
    } catch (const TimedOut&) {
        messages_->cancel(request);
        if (!request->complete() || request->cancelled()) throw;
        request->wait(0);  // it was completed meanwhile
    } catch (...) {
        messages_->cancel(request);
        throw;
    }
}

void Comm::send_now(const void* data, uint64_t count, DType dtype, int to, int tag, const CallOptions& options) {
    check_root(to, "dest");
    check_open();
    if (!messages_->send_short(data, count, dtype, to, tag, options))
        complete(messages_->send(data, count, dtype, to, tag, options, true), options);
}

void Comm::recv_now(void* data, uint64_t count, DType dtype, int from, int tag, const CallOptions& options) {
    check_root(from, "src");
    check_open();
    if (!messages_->recv_short(data, count, dtype, from, tag, options))
        complete(messages_->recv(data, count, dtype, from, tag, options, true), options);
}

Arrival Comm::recv_up_to_now(void* data, uint64_t count, DType dtype, int from, int tag, const CallOptions& options) {
    if (from != kAny) check_root(from, "src");
    check_open();
    const uint64_t bytes = count * itemsize(dtype);
    const auto accept = [&](const Header& h) {
        return !h.object && h.bytes <= bytes ? static_cast<uint8_t*>(data) : nullptr;
    };
    // A large message comes sooner if the receive is posted first.
    if (bytes < tuning::kRendezvous)
        if (const auto received = messages_->recv_short(from, tag, std::ref(accept), options)) return *received;
    const auto request = messages_->recv_up_to(data, count, dtype, from, tag, options, true);
    complete(request, options);
    return {request->source(), request->tag(), request->count(), request->dtype(), false};
}

void Comm::send_object_now(std::vector<Part> parts, int to, int tag, const CallOptions& options) {
    check_root(to, "dest");
    check_open();
    if (parts.size() == 1 && messages_->send_short(parts[0].data, parts[0].bytes, DType::U8, to, tag, options, true))
        return;
    complete(messages_->send_object(std::move(parts), to, tag, options, true), options);
}

std::shared_ptr<Request> Comm::recv_any_now(const Wanted& wanted, int from, int tag, const Messages::Accept& accept,
                                            Arrival& arrival, std::optional<double> timeout,
                                            const CallOptions& options) {
    if (from != kAny) check_root(from, "src");
    check_open();
    if (const auto received = messages_->recv_short(from, tag, accept, options)) {
        arrival = *received;
        return nullptr;
    }
    const auto request = messages_->recv_any(wanted, from, tag, options, true);
    complete(request, options, timeout);
    arrival = {request->source(), request->tag(), request->count(), request->dtype(), wanted.kind == Wanted::Object};
    return request;
}

std::optional<Arrival> Comm::probe(int from, int tag) {
    if (from != kAny) check_root(from, "src");
    check_open();
    return messages_->probe(from, tag);
}

std::optional<Arrival> Comm::await_arrival(int from, int tag, double timeout) {
    if (from != kAny) check_root(from, "src");
    check_open();
    return messages_->await_arrival(from, tag, timeout);
}

std::shared_ptr<Request> Comm::recv_probed(void* data, const Arrival& found) {
    check_root(found.source, "src");
    check_open();
    return messages_->recv_probed(data, found);
}

}  // namespace rankwise
