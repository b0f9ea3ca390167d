// Messages whose callers wait. Short ones are written to the ring, or read from it, at once and without a Request,
// unless another message comes first.
#include <sched.h>

#include "p2p/messages.hpp"

namespace rankwise {

bool Messages::write_now(const Send& message, const CallOptions& options, uint64_t most) {
    const int to = message.to;
    check_peer(Op::Send, to);
    const uint64_t bytes = message.bytes(), began = tracer_.measured() ? ticks() : 0;
    if (bytes > most || to == rank_ || !message.stretches.empty()) return false;
    const auto lock = lock_requests(options);
    Outgoing& out = outgoing_[to];
    if (closing_ || !out.idle() || group_.failed()) return false;
    Channel& c = channel_to(to);
    const uint64_t at = c.written.load(std::memory_order_relaxed), whole = Channel::whole_of(at, bytes);
    // The receiver writes `read` with each message, so to look there costs a transfer between the cores' caches.
    const auto has_room = [&] { return at - out.read + whole <= c.capacity; };
    if (!has_room()) out.read = c.read.load();
    if (!has_room() || bytes > group_.peers[to].unexpected_room()) return false;
    c.put_header(at, MessageHeader::of(message.count, message.dtype, message.tag, message.object));
    if (bytes) c.put(at + sizeof(MessageHeader), message.data, bytes);
    c.stamp_at(at).store(c.stamp(at), std::memory_order_release);
    c.written.exchange(at + whole);
    notify(to);
    trace_short(Op::Send, message.dtype, to, message.tag, bytes, began);
    return true;
}

// A sender that does not wait is soon ahead of its receiver by a full ring.
bool Messages::await_room(const Send& message, const CallOptions& options, uint64_t most) {
    if (message.bytes() > most || message.to == rank_) return false;
    const auto lock = lock_requests(options);
    if (closing_ || !outgoing_[message.to].idle() || group_.failed()) return false;
    const Channel& c = channel_to(message.to);
    const uint64_t at = c.written.load(std::memory_order_relaxed), whole = Channel::whole_of(at, message.bytes());
    const auto has_room = [&] { return at - c.read.load() + whole <= c.capacity; };
    for (int i = policy_.first_polls; i > 0 && !has_room(); --i) cpu_relax();
    for (int i = transport_.conditions().yields ? kYieldsForRoom : 0; i > 0 && !has_room(); --i) sched_yield();
    return has_room();
}

// The channel from a rank whose next message begins a header there, or null.
Channel* Messages::readable(int from) {
    const Incoming& in = incoming_[from];
    return from == rank_ || in.message || in.pad ? nullptr : channel_from(from);
}

template <class Take>
std::optional<Arrival> Messages::take_short(int from, int tag, const Take& accept, const CallOptions& options) {
    check_peer(Op::Recv, from);
    const uint64_t began = tracer_.measured() ? ticks() : 0;
    if (from == rank_) return std::nullopt;
    const auto lock = lock_requests(options);
    if (closing_ || group_.failed() || arrived_.first_for(from, tag)) return std::nullopt;
    const int first = from == kAny ? 0 : from, last = from == kAny ? n_ - 1 : from;
    Channel* const only = from == kAny ? nullptr : readable(from);
    if (from != kAny && !only) return std::nullopt;
    const Waiting waiting(*this);
    for (int i = policy_.first_polls; i >= 0; --i) {
        for (int p = first; p <= last; ++p) {
            Channel* const c = only ? only : readable(p);
            if (!c) continue;
            const uint64_t at = c->read.load(std::memory_order_relaxed);
            if (c->stamp_at(at).load(std::memory_order_acquire) != c->stamp(at)) continue;
            const MessageHeader h = c->header(at);
            if (!h.valid() || h.form != Form::Message || h.bytes > c->capacity || !tag_matches(tag, h.tag) ||
                receives_.first_for(p, h.tag))
                return std::nullopt;
            uint8_t* const data = accept(h);
            if (!data) return std::nullopt;
            if (h.bytes) c->get(at + sizeof h, data, h.bytes);
            c->read.exchange(at + Channel::whole_of(at, h.bytes));
            notify(p);
            trace_short(Op::Recv, DType(h.dtype), p, h.tag, h.bytes, began);
            return arrival_of(p, h, arrivals_++);
        }
        cpu_relax();
    }
    return std::nullopt;
}

// Waits for the request, and cancels it if that fails.
Arrival Messages::complete_now(const std::shared_ptr<Request>& request, const CallOptions& options,
                               std::optional<double> timeout) {
    try {
        request->wait(timeout, options);
    } catch (const TimedOut&) {
        cancel(request);
        if (!request->has_result()) throw;
        request->wait(0);  // it was completed meanwhile
    } catch (...) {
        cancel_all({&request, 1});
        throw;
    }
    return request->arrival();
}

void Messages::send_now(const Send& message, const CallOptions& options) {
    if (!send_at_once(message, options)) complete_now(send(message, options, Caller::WaitsAtOnce), options);
}

Arrival Messages::receive_now(const Receive& r, const CallOptions& options, uint64_t most) {
    const auto accept = [&](const MessageHeader& h) {
        return rankwise::accepts(r.wanted, r.count, r.dtype, h) ? static_cast<uint8_t*>(r.data) : nullptr;
    };
    if (r.bytes() <= most)  // a large message comes sooner if the receive is posted first
        if (const auto received = take_short(r.from, r.tag, accept, options)) return *received;
    return complete_now(recv(r, options, Caller::WaitsAtOnce), options);
}

std::shared_ptr<Request> Messages::recv_any_now(Wanted wanted, int from, int tag, const Accept& accept,
                                                Arrival& arrival, std::optional<double> timeout,
                                                const CallOptions& options) {
    const auto short_one = [&](const MessageHeader& h) { return h.bytes <= kShortMessage ? accept(h) : nullptr; };
    if (const auto received = take_short(from, tag, short_one, options)) {
        arrival = *received;
        return nullptr;
    }
    const auto request = recv(Receive::of_any_length(wanted, from, tag), options, Caller::WaitsAtOnce);
    arrival = complete_now(request, options, timeout);
    return request;
}

void Messages::trace_short(Op op, DType dtype, int peer, int tag, uint64_t bytes, uint64_t began) {
    const uint64_t now = ticks();
    tracer_.end(tracer_.begin(make_call(op, dtype, {}, peer).what, group_.number, tag, 0, bytes, now), now, 0);
    tracer_.moved(bytes);
    if (began) tracer_.count(op, now - began, 0, bytes);
}

}  // namespace rankwise
