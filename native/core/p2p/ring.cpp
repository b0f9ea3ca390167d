// How messages pass through the ring of a channel: headers, and the data that follows them.
#include "p2p/messages.hpp"

namespace rankwise {

bool Messages::push(int to) {
    Outgoing& out = outgoing_[to];
    if (out.idle()) return false;
    Channel& c = channel_to(to);
    if (c.room() > c.capacity) throw_overwritten("a count of bytes", rank_, to);
    bool moved = false;
    for (;;) {
        if (!out.writing && !begin_next(c, to, moved)) return moved;
        if (!out.writing) continue;  // that was a whole message
        Request& r = *out.writing->front();
        const MessageHeader header =
            r.offer_ < 0 ? header_of(r) : MessageHeader::about_offer(Form::Fetched, r.offer_, r.bytes());
        if (!write_piece(c, r, to, header)) return moved;
        moved = true;
    }
}

// Chooses what to write next, between two messages. Returns false if that must wait.
bool Messages::begin_next(Channel& c, int to, bool& moved) {
    Outgoing& out = outgoing_[to];
    if (!out.answers.empty()) {
        if (!write_header(c, to, out.answers.front())) return false;
        out.answers.erase(out.answers.begin());
        return moved = true;
    }
    if (!out.requested.empty()) {
        out.writing = &out.requested;
        return true;
    }
    if (out.sends.empty()) return false;
    const std::shared_ptr<Request> r = out.sends.front();
    if (must_offer(*r, to)) {
        if (!write_offer(c, r, to)) return false;
        out.sends.pop_front();
        return moved = true;
    }
    out.writing = &out.sends;
    return true;
}

// A header that no data follows but `body`. Returns false if there is no room.
bool Messages::write_header(Channel& c, int to, const MessageHeader& header, const void* body, uint64_t bytes) {
    const uint64_t at = c.written.load(std::memory_order_relaxed), whole = Channel::whole_of(at, bytes);
    if (c.room() < whole) return false;
    c.put_header(at, header);
    if (bytes) c.put(at + sizeof header, body, bytes);
    c.written.exchange(at + whole);
    notify(to);
    return true;
}

// Writes the next piece of the message that is being written. Returns false if there is no room.
bool Messages::write_piece(Channel& c, Request& r, int to, const MessageHeader& header) {
    const uint64_t total = r.bytes(), before = c.written.load(std::memory_order_relaxed);
    uint64_t at = before, room = c.room();
    if (r.state() != Request::State::Writing && room >= sizeof(MessageHeader)) {
        c.put_header(at, header);
        at += sizeof(MessageHeader);
        room -= sizeof(MessageHeader);
        r.become(Request::State::Writing);
    }
    const bool begun = r.state() == Request::State::Writing;
    if (begun) {
        const uint64_t bytes = std::min({total - r.sent_, room, kRingPiece});
        r.for_stretches(r.sent_, bytes, [&](const uint8_t* data, uint64_t length) {
            c.put(at, data, length);
            at += length;
        });
        room -= bytes;
        r.sent_ += bytes;
    }
    const bool finished = begun && r.sent_ == total && room >= Channel::pad_of(at);
    // Marked only together with its padding, which a receiver that finds the mark counts as read.
    if (finished && header.form == Form::Message && at - before == sizeof(MessageHeader) + total)
        c.stamp_at(before).store(c.stamp(before), std::memory_order_release);
    if (finished) at += Channel::pad_of(at);
    if (at == before) return false;
    c.written.exchange(at);
    notify(to);
    if (finished) {
        Outgoing& out = outgoing_[to];
        const std::shared_ptr<Request> sent = out.writing->front();
        out.writing->pop_front();
        out.writing = nullptr;
        if (sent->offer_ >= 0) out.end_offer(*sent);
        complete(*sent);
    }
    return true;
}

bool Messages::pull(int from, Reads reads) {
    const bool moved = read_messages(from, reads);
    send_answers(from);
    return moved;
}

bool Messages::read_messages(int from, Reads reads) {
    Channel* c = channel_from(from);
    if (!c) return false;
    Incoming& in = incoming_[from];
    bool moved = false;
    for (;;) {
        const uint64_t before = c->read.load(std::memory_order_relaxed);
        uint64_t at = before, waiting = c->unread();
        if (waiting > c->capacity) throw_overwritten("a count of bytes", from, rank_);
        bool received = false;
        if (!in.message && !in.pad && waiting >= sizeof(MessageHeader) && !read_header(*c, from, at, waiting))
            return moved;
        if (in.message) {
            Message& m = *in.message;
            const uint64_t bytes = std::min({m.left, waiting, kRingPiece});
            if (bytes) c->get(at, m.at, bytes);
            at += bytes;
            waiting -= bytes;
            m.at += bytes;
            m.left -= bytes;
            if (!m.left) {
                const std::shared_ptr<Message> arrived = std::move(in.message);
                in.message.reset();
                received = bool(arrived->receive);
                complete_receive(*arrived);
            }
        }
        if (!in.message && waiting >= in.pad) {
            at += in.pad;
            in.pad = 0;
        }
        if (at == before) return moved;
        c->read.exchange(at);
        notify(from);
        moved = true;
        // What follows stays in the ring until somebody waits again: most likely for its receive, which saves a copy.
        if (reads == Reads::UntilReceived && received && receives_.empty() && outgoing_[from].idle()) return true;
    }
}

// Reads the header at `at`, and what follows it but data. Returns false, with nothing read, if some of that is missing.
bool Messages::read_header(Channel& c, int from, uint64_t& at, uint64_t& waiting) {
    const MessageHeader h = c.header(at);
    if (!h.valid() || at % kCacheLine) throw_overwritten("a header", from, rank_);
    Incoming& in = incoming_[from];
    uint64_t body = 0, data = 0;
    switch (h.form) {
    case Form::Message:
        in.message = arrive(from, h);
        data = h.bytes;
        break;
    case Form::Fetched: {
        const auto requested = in.requested.find(h.tag);
        if (requested == in.requested.end() || requested->second->left != h.bytes)
            throw_overwritten("a header", from, rank_);
        in.message = std::move(requested->second);
        in.requested.erase(requested);
        data = h.bytes;
        break;
    }
    case Form::Offered:
    case Form::OfferedSynchronously: {
        body = sizeof(OfferBody) + h.stretches * sizeof(OfferBody::Stretch);
        if (waiting < sizeof h + body) return false;
        OfferBody offered;
        c.get(at + sizeof h, &offered, sizeof offered);
        Offer offer{offered.number, offered.slot, {}};
        for (int i = 0; i < h.stretches; ++i) {
            OfferBody::Stretch stretch;
            c.get(at + sizeof h + sizeof offered + uint64_t(i) * sizeof stretch, &stretch, sizeof stretch);
            offer.stretches.push_back({reinterpret_cast<const uint8_t*>(stretch.address), stretch.bytes});
        }
        uint64_t total = 0;
        for (const Stretch& stretch : offer.stretches)
            total += std::min(stretch.bytes, h.bytes + 1);  // without overflow
        const bool copied = !offer.stretches.empty();
        if (copied && (offer.slot < 0 || offer.slot >= Channel::kOffers || total != h.bytes))
            throw_overwritten("an offer", from, rank_);
        make_room_in(in.claimed);
        const std::shared_ptr<Message> m = arrive(from, h, std::move(offer));
        if (m && m->receive) in.claimed.push_back(m);
        break;
    }
    case Form::Fetch:
    case Form::Copied: apply_answer(from, h); break;
    }
    at += sizeof h + body;
    waiting -= sizeof h + body;
    in.pad = Channel::pad_of(at + data);
    return true;
}

}  // namespace rankwise
