// Large messages are copied directly from the sender's memory into the receiver's: see Rendezvous (channel.hpp).
#include <cstring>

#include "p2p/messages.hpp"

namespace rankwise {

namespace {

constexpr uint64_t kUnreachable = 0;  // instead of the message's address: the sender copies all of it

// The size of the pieces of a message that is left to its receiver.
uint64_t large_piece(uint64_t bytes) { return std::min<uint64_t>(bytes, kBytesPerCheck); }

}  // namespace

// Posts a receive only if no earlier receive could match its message, and no earlier message is being read.
void Messages::post_receive(const std::shared_ptr<Request>& r) {
    const int from = r->peer_;
    if (r->complete_ || r->matched_ || r->unsized() || from == kAny || from == rank_ || posted_[from] ||
        incoming_[from].message)
        return;
    if (!transport_.conditions().single_copy || r->bytes() < tuning::kRendezvous || receives_.unmatched_for(from) > 1)
        return;
    if (!transport_.memory.reachable(r->data_, r->bytes(), reachable_)) return;
    Rendezvous& m = channel(from, rank_, true)->posted;
    const auto to = reinterpret_cast<uint64_t>(r->data_);
    m.to.store(to, std::memory_order_relaxed);
    m.to_digest.store(Rendezvous::digest_of(to, r->bytes()), std::memory_order_relaxed);
    m.count.store(r->count_, std::memory_order_relaxed);
    m.dtype.store(uint32_t(r->dtype_), std::memory_order_relaxed);
    m.tag.store(r->tag_, std::memory_order_relaxed);
    posted_[from] = r;
    m.state.store((m.state.load(std::memory_order_relaxed) & ~uint64_t(3)) + 4 + Rendezvous::Posted);
}

// Makes progress on the receive posted for this source, if there is one. Returns whether to read the ring next: not
// while the receive is posted and the ring is empty, nor while its message is being copied.
bool Messages::progress_rendezvous(int from, bool& moved) {
    std::shared_ptr<Request>& r = posted_[from];
    if (!r) return true;
    Channel& c = *channel(from, rank_, true);
    Rendezvous& m = c.posted;
    uint64_t state = m.state.load();
    if (Rendezvous::stage(state) == Rendezvous::Posted) {
        if (!c.waiting()) return false;
        if (m.state.compare_exchange_strong(state,
                                            state - Rendezvous::Posted)) {  // the next message comes through the ring
            r.reset();
            return true;
        }
    }
    const uint64_t bytes = r->bytes(), there = m.from.load(std::memory_order_relaxed);
    if (m.from_digest.load(std::memory_order_relaxed) != Rendezvous::digest_of(there, bytes))
        overwritten("the address", from, rank_);
    if (there != kUnreachable)
        moved |= copy_here(m, bytes, [&](uint64_t at, uint64_t length) {
            return transport_.memory.try_copy(from, false, r->data_ + at, there + at, length);
        });
    if (!copied(m, bytes)) return false;
    const std::shared_ptr<Request> received = std::move(r);
    r.reset();
    receives_.matched(*received);
    received->tag_ = m.sent_tag.load(std::memory_order_relaxed);
    m.state.store((state & ~uint64_t(3)) | Rendezvous::Nothing);
    receives_.remove(*received);
    complete(*received);
    notify(from);
    return moved = true;
}

// Cancels a posted receive; its memory may then be freed. If a sender is already copying a message there, `copy` keeps
// the message for another receive; without `copy`, when this rank leaves, it is dropped.
void Messages::cancel_posted(int from, Memory copy) {
    const std::shared_ptr<Request> r = posted_[from];
    if (!r) return;
    Rendezvous& m = channel(from, rank_, true)->posted;
    uint64_t state = m.state.load();
    if (Rendezvous::stage(state) == Rendezvous::Posted &&
        m.state.compare_exchange_strong(state, state - Rendezvous::Posted)) {
        posted_[from].reset();
        return;
    }
    bool moved = false;
    const auto ended = [&] {
        return progress_rendezvous(from, moved) || transport_.ended(from) || (group_.failed() && !m.writing.load());
    };
    if (!Waiter(kStoppedPeer).watch({}, ended))
        fail_group(group_, Cause::PeerLost, rank_, 0,
                   "cancelled a receive while rank " + std::to_string(from) + " was sending to it");
    posted_[from].reset();
    if (!r->complete_ || !copy) return;
    const uint64_t bytes = r->bytes();
    auto kept =
        std::make_shared<Message>(Message{Header::of(r->count_, r->dtype_, r->tag_), from, 0, nullptr, arrivals_++});
    kept->kept = std::move(copy);
    std::memcpy(kept->kept.data(), r->data_, bytes);
    arrived_.add(kept);
}

// The state of the Rendezvous if the receive posted there matches this message and the ring is empty, else 0.
uint64_t Messages::receive_posted_for(Channel& c, const Request& r) const {
    const Rendezvous& m = c.posted;
    const uint64_t state = m.state.load();
    if (Rendezvous::stage(state) != Rendezvous::Posted || c.room() != c.capacity) return 0;
    const int tag = m.tag.load(std::memory_order_relaxed);
    const bool fits = !r.object_ && tag_matches(tag, r.tag_) && m.count.load(std::memory_order_relaxed) == r.count_ &&
                      m.dtype.load(std::memory_order_relaxed) == uint32_t(r.dtype_);
    return fits ? state : 0;
}

// Polls briefly for the receive of a large message, because a rendezvous saves more time than the polling takes.
void Messages::poll_for_receive(int to, const Request& r) {
    if (!transport_.conditions().single_copy || r.object_ || r.bytes() < tuning::kPollForReceive) return;
    Channel& c = *channel(rank_, to, true);
    const auto times = int(std::min(r.bytes() / tuning::kPollForReceive, tuning::kLongestPoll));
    poll_briefly(times, [&] { return receive_posted_for(c, r) != 0; });
}

// Matches the receive posted in this state, unless it has been cancelled; returns whether it did.
bool Messages::match(Channel& c, Request& r, int to, uint64_t state) {
    Rendezvous& m = c.posted;
    const uint64_t there = m.to.load(std::memory_order_relaxed);
    if (m.to_digest.load(std::memory_order_relaxed) != Rendezvous::digest_of(there, r.bytes())) {
        // The receiver may have cancelled its receive, and posted another one, meanwhile.
        if (m.state.load() == state) overwritten("the address", rank_, to);
        return false;
    }
    // For a message of one piece the check takes longer than it saves: the sender copies it.
    const uint64_t bytes = r.bytes(), piece = tuning::rendezvous_piece(bytes);
    const bool shared = bytes > piece && transport_.memory.reachable(r.data_, bytes, reachable_);
    // In an exchange each rank copies what it receives. Where ranks share cores, that goes for all that a rank sends
    // while it has receives of its own: a second core that wrote into the receiver's buffer would take it from the
    // cache of the first (4 ranks on 2 cores, each sends 1 MiB to the next: 250 to 180 us).
    const bool exchange =
        posted_[to] || !incoming_[to].claimed.empty() || (transport_.conditions().oversubscribed && !receives_.empty());
    r.receiver_copies_ = shared && exchange;
    const uint64_t from = shared ? reinterpret_cast<uint64_t>(r.data_) : kUnreachable;
    m.from.store(from, std::memory_order_relaxed);
    m.from_digest.store(Rendezvous::digest_of(from, bytes), std::memory_order_relaxed);
    m.piece.store(r.receiver_copies_ ? large_piece(bytes) : piece, std::memory_order_relaxed);
    m.begun.store(0, std::memory_order_relaxed);
    m.done.store(0, std::memory_order_relaxed);
    m.sent_tag.store(r.tag_, std::memory_order_relaxed);
    r.matched_ = r.rendezvous_ =
        m.state.compare_exchange_strong(state, state - Rendezvous::Posted + Rendezvous::Matched);
    if (!r.rendezvous_) return false;
    if (!shared) copy_there(m, r, to);
    notify(to);
    return true;
}

// The sender copies, from the beginning, the pieces that the receiver has not begun; returns whether there were any.
bool Messages::copy_there(Rendezvous& m, Request& r, int to) {
    const uint64_t bytes = r.bytes(), piece = piece_of(m, bytes), before = r.sent_;
    const auto left = [&](uint64_t begun) { return begun * piece < bytes && r.sent_ < bytes && !group_.failed(); };
    if (!left(m.begun.load(std::memory_order_relaxed))) return false;
    const Rendezvous::Writing writing(m);
    bool copied_it = true;
    while (copied_it && left(m.begun.load(std::memory_order_relaxed)) && left(m.begun.fetch_add(1))) {
        // The receiver does not change the address while a piece is being copied.
        uint64_t there = m.to.load(std::memory_order_relaxed);
        if (m.to_digest.load(std::memory_order_relaxed) != Rendezvous::digest_of(there, bytes))
            overwritten("the address", rank_, to);
        const uint64_t at = r.sent_, length = std::min(piece, bytes - at);
        there += at;
        r.sent_ += length;
        r.for_stretches(at, length, [&](const uint8_t* data, uint64_t here) {
            copied_it = copied_it && transport_.memory.try_copy(to, true, const_cast<uint8_t*>(data), there, here);
            there += here;
        });
        if (copied_it) m.done.fetch_add(1);
    }
    if (copied(m, bytes)) notify(to);
    return r.sent_ > before;
}

// A matched send is given up: this rank copies the pieces that the receiver has not begun, and waits for the others.
void Messages::finish_rendezvous(Request& r) {
    Rendezvous& m = channel(rank_, r.peer_, true)->posted;
    const auto ended = [&] {
        copy_there(m, r, r.peer_);
        return copied(m, r.bytes()) || group_.failed() || transport_.ended(r.peer_);
    };
    if (!Waiter(kStoppedPeer).watch({}, ended))
        return fail_group(group_, Cause::PeerLost, rank_, 0,
                          "gave up a send while rank " + std::to_string(r.peer_) + " was receiving it");
    if (!copied(m, r.bytes())) return;
    complete(r);
    outgoing_[r.peer_].sends.pop_front();
}

// Of a matched message.
uint64_t Messages::piece_of(const Rendezvous& m, uint64_t bytes) {
    const uint64_t piece = m.piece.load(std::memory_order_relaxed);
    if (piece != large_piece(bytes) && piece != tuning::rendezvous_piece(bytes))
        failures_.overwritten("the size of the pieces of a message", name(Op::None));
    return piece;
}

bool Messages::copied(const Rendezvous& m, uint64_t bytes) {
    const uint64_t piece = piece_of(m, bytes);
    return m.done.load() == (bytes + piece - 1) / piece && !group_.failed();
}

// The receiver copies the pieces that the sender has not begun, from the end; returns whether there were any.
// copy(at, length): returns whether it has.
template <class Copy> bool Messages::copy_here(Rendezvous& m, uint64_t bytes, Copy&& copy) {
    const uint64_t piece = piece_of(m, bytes), pieces = (bytes + piece - 1) / piece;
    uint64_t mine = 0;
    // `mine` bounds the loop even if a stray write has overwritten the count.
    while (mine < pieces && m.begun.load(std::memory_order_relaxed) < pieces && !group_.failed() &&
           m.begun.fetch_add(1) < pieces) {
        const uint64_t at = (pieces - ++mine) * piece;
        if (!copy(at, std::min(piece, bytes - at))) return true;
        m.done.fetch_add(1);
    }
    return mine > 0;
}

// ---- an offered message that both ranks copy ----

// Lets the sender of this message help, unless they exchange messages: then each rank copies what it receives. Returns
// whether it may.
bool Messages::share(const Message& message) {
    const uint64_t bytes = message.header.bytes, piece = tuning::rendezvous_piece(bytes);
    const Outgoing& out = outgoing_[message.from];
    if (!message.receive || bytes < tuning::kHelp || !out.sends.empty() || !out.offered.empty()) return false;
    Rendezvous& m = channel(message.from, rank_, false)->fetched;
    const uint64_t state = m.state.load(std::memory_order_relaxed), to = reinterpret_cast<uint64_t>(message.at);
    // A sender that is still writing may not know yet that the last message is here.
    if (Rendezvous::stage(state) != Rendezvous::Nothing || m.writing.load() ||
        !transport_.memory.reachable(message.at, bytes, reachable_))
        return false;
    m.to.store(to, std::memory_order_relaxed);
    m.to_digest.store(Rendezvous::digest_of(to, bytes), std::memory_order_relaxed);
    m.tag.store(message.offer->number, std::memory_order_relaxed);
    m.piece.store(piece, std::memory_order_relaxed);
    m.begun.store(0, std::memory_order_relaxed);
    m.done.store(0, std::memory_order_relaxed);
    m.state.store(state + 4 + Rendezvous::Matched);
    if (group_.peers[message.from].message_waits.load(std::memory_order_relaxed)) notify(message.from);
    return true;
}

// Copies some bytes of an offered message; returns whether it has.
bool Messages::copy_parts(const Message& message, uint64_t at, uint64_t bytes) {
    bool copied = true;
    uint8_t* to = message.at + at;
    for_stretches(message.offer->parts, at, bytes, [&](const uint8_t* data, uint64_t here) {
        copied = copied && transport_.memory.try_copy(message.from, false, to, reinterpret_cast<uint64_t>(data), here);
        to += here;
    });
    return copied;
}

// The receiver's part. Returns whether all is copied, or nothing more will be.
bool Messages::fetch_shared(const Message& message) {
    Rendezvous& m = channel(message.from, rank_, false)->fetched;
    copy_here(m, message.header.bytes, [&](uint64_t at, uint64_t bytes) { return copy_parts(message, at, bytes); });
    const bool over = group_.failed() && (!m.writing.load() || transport_.ended(message.from));
    if (!over && !copied(m, message.header.bytes)) return false;
    m.state.store(m.state.load(std::memory_order_relaxed) & ~uint64_t(3));
    return true;
}

// The sender's part, unless it receives messages itself; returns whether it has copied something.
bool Messages::help_to_fetch(Channel& c, int to) {
    Rendezvous& m = c.fetched;
    const uint64_t state = m.state.load();
    if (Rendezvous::stage(state) != Rendezvous::Matched || !receives_.empty()) return false;
    // If the state is still the same, the receiver shares no other message until `writing` is 0.
    const Rendezvous::Writing writing(m);
    if (m.state.load() != state) return false;
    const auto found = outgoing_[to].offered.find(m.tag.load(std::memory_order_relaxed));
    return found != outgoing_[to].offered.end() && !found->second->cancelled_ && copy_there(m, *found->second, to);
}

}  // namespace rankwise
