// Short messages whose callers wait are written to the ring, or read from it, at once and without a Request, unless
// another message comes first.
#include "collectives/tuning.hpp"
#include "p2p/messages.hpp"

namespace rankwise {

bool Messages::send_short(const void* data, uint64_t count, DType dtype, int to, int tag) {
    const uint64_t bytes = count * itemsize(dtype), began = tracer_.measured() ? ticks() : 0;
    if (bytes > tuning::kShortMessage || to == rank_) return false;
    const auto lock = lock_requests();
    if (closing_ || !sends_[to].empty() || group_.failed()) return false;
    Channel& c = *channel(rank_, to, true);
    uint64_t at = c.written.load(std::memory_order_relaxed);
    const uint64_t whole = Channel::whole_of(at, bytes);
    if (c.room() < whole) return false;
    c.put_header(at, Header::of(count, dtype, tag));
    if (bytes) c.put(at + sizeof(Header), data, bytes);
    c.stamp_at(at).store(c.stamp(at), std::memory_order_release);
    c.written.exchange(at + whole);
    notify(to);
    trace_short(Op::Send, dtype, to, tag, bytes, began);
    return true;
}

bool Messages::recv_short(void* data, uint64_t count, DType dtype, int from, int tag) {
    const uint64_t bytes = count * itemsize(dtype), began = tracer_.measured() ? ticks() : 0;
    if (bytes > tuning::kShortMessage || from == rank_ || tag == kAny) return false;
    const auto lock = lock_requests();
    if (closing_ || group_.failed()) return false;
    Channel* c = channel(from, rank_, false);
    Incoming& in = incoming_[from];
    if (!c || in.message || in.pad || !arrived_[from].empty() || !receives_.empty()) return false;
    const uint64_t at = c->read.load(std::memory_order_relaxed);
    for (int i = policy_.first_polls; c->stamp_at(at).load(std::memory_order_acquire) != c->stamp(at); --i) {
        if (i <= 0) return false;
        cpu_relax();
    }
    const Header h = c->header(at);
    if (h.tag != tag || h.count != count || h.dtype != uint32_t(dtype)) return false;
    if (bytes) c->get(at + sizeof h, data, bytes);
    c->read.exchange(at + Channel::whole_of(at, bytes));
    notify(from);
    trace_short(Op::Recv, dtype, from, tag, bytes, began);
    return true;
}

void Messages::trace_short(Op op, DType dtype, int peer, int tag, uint64_t bytes, uint64_t began) {
    const uint64_t now = ticks();
    tracer_.end(tracer_.begin(make_call(op, dtype, {}, peer).what, group_.number, tag, 0, bytes, now), now, 0);
    tracer_.moved(bytes);
    if (began) tracer_.count(op, now - began, 0, bytes);
}

}  // namespace rankwise
