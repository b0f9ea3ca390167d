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
    if (closing_) return;
    const Header header = Header::of(r.count_, r.dtype_, r.tag_, r.object_);
    const auto m = std::make_shared<Message>(Message{header, r.peer_, 0, nullptr, r.arrival_});
    m->kept = r.unsized() ? std::move(r.memory_) : copy_of(r.data_, header.bytes);
    put_back(m);
}

// The same of a message that a receive has taken from the ring before any other message of its source arrived.
void Messages::give_back(const Arrival& received, const void* data) {
    const auto lock = lock_requests();
    if (closing_) return;
    const Header header = Header::of(received.count, received.dtype, received.tag, received.object);
    const auto m = std::make_shared<Message>(Message{header, received.source, 0, nullptr, 0});
    m->kept = copy_of(data, header.bytes);
    put_back(m);
}

void Messages::undo(std::span<const std::shared_ptr<Request>> requests) {
    if (fork_.is_child()) return;
    for (const auto& request : requests) {
        cancel(request);
        if (!request->sends_ && request->complete_ && request->failure_.empty()) give_back(*request);
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
        receives_.matched(*r);
        if (fits(*r, m.from, m.header)) return receive_arrived(r, m);
        receives_.remove(*r);
    }
}

}  // namespace rankwise
