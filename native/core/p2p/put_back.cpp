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
    give_back(r.arrival(), r.arrival_, r.unsized() ? std::move(r.memory_) : copy_of(r.data_, r.bytes()));
}

// The same of a message that a receive has taken from the ring before any other message of its source arrived.
void Messages::give_back(const Arrival& received, const void* data) {
    give_back(received, 0, copy_of(data, received.count * itemsize(received.dtype)));
}

// number: as Message::number_.
void Messages::give_back(const Arrival& received, uint64_t number, Memory data) {
    const auto lock = lock_requests();
    if (closing_) return;
    const Header header = Header::of(received.count, received.dtype, received.tag, received.object);
    put_back(std::make_shared<Message>(Message{header, received.source, 0, nullptr, number, {}, std::move(data)}));
}

void Messages::undo(std::span<const std::shared_ptr<Request>> requests) {
    if (fork_.is_child()) return;
    for (const auto& request : requests) {
        cancel(request);
        if (!request->sends_ && request->state() == Request::State::Complete) give_back(*request);
    }
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
