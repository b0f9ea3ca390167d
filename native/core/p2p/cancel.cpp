// Messages whose receive has ended without its caller: they are for a later receive.
#include <cstring>

#include "p2p/messages.hpp"

namespace rankwise {

namespace {

Memory copy_of(const void* data, uint64_t bytes) {
    Memory copy(bytes);
    if (bytes) std::memcpy(copy.data(), data, bytes);
    return copy;
}

}  // namespace

// A message whose receive is given up is kept for another one, in `copy` if the receive had memory of its own.
void Messages::put_back(const std::shared_ptr<Message>& m, Memory copy) {
    Request& r = *m->receive;
    const uint64_t here = m->header.bytes - m->left;
    if (r.unsized()) {
        m->kept = std::move(r.memory_);
    } else {
        m->kept = std::move(copy);
        if (here) std::memcpy(m->kept.data(), r.data_, here);
    }
    m->at = m->kept.data() + here;
    m->receive = nullptr;
    if (m->offer) m->offer->fetched = true;  // or never will be, if the group has failed
    put_back(m);
}

void Messages::give_back(Request& r) {
    const auto lock = lock_requests();
    if (!closing_) give_back_locked(r);
}

void Messages::give_back_locked(Request& r) noexcept {
    or_fail_group([&] { put_back(r.arrival(), r.unsized() ? std::move(r.memory_) : copy_of(r.data_, r.bytes())); });
}

void Messages::give_back(const Arrival& received, const void* data) {
    const auto lock = lock_requests();
    if (closing_) return;
    or_fail_group([&] { put_back(received, copy_of(data, received.count * itemsize(received.dtype))); });
}

void Messages::put_back(const Arrival& received, Memory data) {
    const Header header = Header::of(received.count, received.dtype, received.tag, received.object);
    put_back(
        std::make_shared<Message>(Message{header, received.source, 0, nullptr, received.number, {}, std::move(data)}));
}

void Messages::undo(std::span<const std::shared_ptr<Request>> requests) {
    if (fork_.is_child()) return;
    std::lock_guard lock(mutex_);
    if (closing_) return;
    for (const auto& request : requests) take_back(request);
    notify(rank_);  // another thread may wait for one of them
}

// The caller gets an error, and never the message, even if it is complete.
void Messages::take_back(const std::shared_ptr<Request>& r) noexcept {
    give_up(r);
    if (r->sends_ || r->state() != Request::State::Complete) return;
    give_back_locked(*r);
}

// The caller frees its memory.
void Messages::give_up(const std::shared_ptr<Request>& r) noexcept {
    or_fail_group([&] { cancel_locked(r); });
    if (r->ended()) return;
    // The group has failed: the message, for which there was no memory, is never complete.
    end_trace(*r, true);
    if (r->sends_) drop(r);
    else if (r->held_) receives_.remove(*r);
    if (const auto message = std::move(r->message_)) forget(*message);
    r->become(Request::State::Cancelled);
}

// A message that this rank gives up must be kept for another receive, or go out all the same. Without memory for that,
// it is lost, and with it the group.
template <class Step> void Messages::or_fail_group(const Step& step) noexcept {
    try {
        step();
    } catch (const std::exception&) {
        fail_group(group_, Cause::PeerLost, rank_, 0, "had no memory for a message that it gave up");
    }
}

// In a failed group: nothing is written any more to the memory of a message that was being received.
void Messages::forget(Message& m) {
    m.receive = nullptr;
    if (m.offer) or_fail_group([&] { finish_claimed(m.from); });  // its sender waits for that
    Incoming& in = incoming_[m.from];
    if (in.message.get() == &m) in.message = nullptr;
    std::erase_if(in.claimed, [&](const auto& each) { return each.get() == &m; });
    std::erase_if(in.requested, [&](const auto& each) { return each.second.get() == &m; });
}

void Messages::put_back(const std::shared_ptr<Message>& m) {
    arrived_.put_back(m);
    publish_room();
    match_posted(*m);
}

// A message that has been put back goes to the first receive that was posted meanwhile and accepts it.
void Messages::match_posted(Message& m) {
    while (Request* const posted = receives_.first_for(m.from, m.header.tag)) {
        const std::shared_ptr<Request> r = posted->held_;
        receives_.leave_queue(*r);
        if (fits(*r, m.from, m.header)) return receive_arrived(r, m);
        receives_.remove(*r);
    }
}

}  // namespace rankwise
