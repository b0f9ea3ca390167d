// How requests are cancelled, and what becomes of their messages.
//
//     cancel                       a request, by its caller
//     cancel_all                   requests of which the caller cannot know which are complete
//     return_message               one that was received, and that its caller never gets
// and with mutex_ locked:
//     cancel_send, cancel_receive  throw, with nothing done, if there is no memory for data that must be kept
//     cancel_or_forget             then the group fails, and the request ends all the same
//     cancel_and_keep_message      the same; a message that was received is for a later receive
//     drop, forget                 a send that is not in the ring; a message of a failed group
//     put_back                     a message of a cancelled receive, or a returned one, is for the next receive
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

void Messages::cancel(const std::shared_ptr<Request>& r) {
    if (fork_.is_child()) return;
    std::lock_guard lock(mutex_);
    if (closing_) return;
    cancel_or_forget(r);
    notify(rank_);  // another thread may wait for it
}

void Messages::cancel_send(const std::shared_ptr<Request>& r) {
    auto result = Request::State::Cancelled;
    if (r->slot_ >= 0) {
        if (!cancel_offer(*r)) return complete(*r);
    } else if (r->state() != Request::State::Waiting) {
        go_on_from_copy(r);
        if (r->synchronous_) result = Request::State::Complete;  // for its caller: it cannot be taken back
    } else if (r->peer_ == rank_) {
        if (Message* const m = arrived_.awaited_by(*r)) arrived_.remove(*m)->awaiting = nullptr;
        publish_room();
    } else {
        drop(r);
    }
    end_trace(*r, result);
    r->become(result);
}

// A send that is not in the ring, or whose group has failed: nothing is read any more from its caller's memory.
void Messages::drop(const std::shared_ptr<Request>& r) {
    Outgoing& out = outgoing_[r->peer_];
    for (Sends* const queue : {&out.sends, &out.requested}) {
        if (out.writing == queue && queue->front() == r) out.writing = nullptr;
        std::erase(*queue, r);
    }
    if (r->offer_ >= 0) out.end_offer(*r);
}

// A send whose data the receiver expects goes on from a copy, as a request that nobody else knows.
void Messages::go_on_from_copy(const std::shared_ptr<Request>& r) {
    go_on_in_background();  // first, as the following: it may throw
    Memory copy(r->bytes());
    const auto rest = request(Op::Send, copy.data(), r->count_, r->dtype_, r->peer_, r->tag_);
    r->for_stretches(0, r->bytes(), [to = copy.data()](const uint8_t* data, uint64_t bytes) mutable {
        copy_bytes(to, data, bytes);
        to += bytes;
    });
    rest->memory_ = std::move(copy);
    rest->object_ = r->object_;
    rest->sent_ = r->sent_;
    rest->offer_ = r->offer_;
    rest->become(r->state());
    Outgoing& out = outgoing_[r->peer_];
    for (Sends* const queue : {&out.sends, &out.requested}) std::ranges::replace(*queue, r, rest);
    if (r->offer_ >= 0) out.offered[r->offer_] = rest;
}

void Messages::cancel_receive(Request& r) {
    if (r.message_ && r.message_->offer && !r.message_->offer->stretches.empty()) finish_claimed(r.peer_);
    if (r.ended()) return;
    Memory copy = r.message_ && !r.in_own_memory() ? Memory(r.bytes()) : Memory();
    end_trace(r, Request::State::Cancelled);
    if (r.held_) receives_.remove(r);
    r.become(Request::State::Cancelled);
    if (const auto message = std::move(r.message_)) put_back(message, std::move(copy));
}

// `copy`: if the receive had memory of its own.
void Messages::put_back(const std::shared_ptr<Message>& m, Memory copy) {
    Request& r = *m->receive;
    const uint64_t here = m->header.bytes - m->left;
    if (r.in_own_memory()) {
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

void Messages::return_message(Request& r) {
    const auto lock = lock_requests();
    if (!closing_) return_message_locked(r);
}

void Messages::return_message_locked(Request& r) noexcept {
    end_or_fail_group(
        [&] { put_back(r.arrival(), r.in_own_memory() ? std::move(r.memory_) : copy_of(r.data_, r.bytes())); });
}

void Messages::return_message(const Arrival& received, const void* data) {
    const auto lock = lock_requests();
    if (closing_) return;
    end_or_fail_group([&] { put_back(received, copy_of(data, received.count * itemsize(received.dtype))); });
}

void Messages::put_back(const Arrival& received, Memory data) {
    const MessageHeader header = MessageHeader::of(received.count, received.dtype, received.tag, received.object);
    put_back(
        std::make_shared<Message>(Message{header, received.source, 0, nullptr, received.number, {}, std::move(data)}));
}

void Messages::cancel_all(std::span<const std::shared_ptr<Request>> requests) {
    if (fork_.is_child()) return;
    std::lock_guard lock(mutex_);
    if (closing_) return;
    for (const auto& request : requests) cancel_and_keep_message(request);
    notify(rank_);  // another thread may wait for one of them
}

void Messages::cancel_and_keep_message(const std::shared_ptr<Request>& r) noexcept {
    cancel_or_forget(r);
    if (r->sends_ || r->state() != Request::State::Complete) return;
    return_message_locked(*r);
}

void Messages::cancel_or_forget(const std::shared_ptr<Request>& r) noexcept {
    if (r->ended()) return;
    end_or_fail_group([&] { r->sends_ ? cancel_send(r) : cancel_receive(*r); });
    if (r->ended()) return;
    // The group has failed: the message, for which there was no memory, is never complete.
    end_trace(*r, Request::State::Cancelled);
    if (r->sends_) drop(r);
    else if (r->held_) receives_.remove(*r);
    if (const auto message = std::move(r->message_)) forget(*message);
    r->become(Request::State::Cancelled);
}

// The message of a cancelled request must be kept for another receive, or go out all the same. Without memory for that,
// it is lost, and with it the group.
template <class Step> void Messages::end_or_fail_group(const Step& step) noexcept {
    try {
        step();
    } catch (const std::exception&) {
        fail_group(group_, Cause::PeerLost, rank_, 0, "had no memory for a message that it gave up");
    }
}

// In a failed group: nothing is written any more to the memory of a message that was being received.
void Messages::forget(Message& m) {
    m.receive = nullptr;
    if (m.offer) end_or_fail_group([&] { finish_claimed(m.from); });  // its sender waits for that
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
        if (match_or_fail(*r, m.from, m.header)) return receive_arrived(r, m);
        receives_.remove(*r);
    }
}

}  // namespace rankwise
