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
    Rendezvous& m = channel(from, rank_, true)->rendezvous;
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
    Rendezvous& m = c.rendezvous;
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
    moved |= copy_here(m, *r, there);
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
    Rendezvous& m = channel(from, rank_, true)->rendezvous;
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
    const Rendezvous& m = c.rendezvous;
    const uint64_t state = m.state.load();
    if (Rendezvous::stage(state) != Rendezvous::Posted || c.room() != c.capacity) return 0;
    const int tag = m.tag.load(std::memory_order_relaxed);
    const bool fits = !r.object_ && tag_matches(tag, r.tag_) && m.count.load(std::memory_order_relaxed) == r.count_ &&
                      m.dtype.load(std::memory_order_relaxed) == uint32_t(r.dtype_);
    return fits ? state : 0;
}

// Polls briefly for the receive of a large message, because a rendezvous saves more time than the polling takes.
void Messages::poll_for_receive(int to, const Request& r) {
    if (!transport_.conditions().single_copy || r.bytes() < tuning::kPollForReceive) return;
    Channel& c = *channel(rank_, to, true);
    const auto times = int(std::min(r.bytes() / tuning::kPollForReceive, tuning::kLongestPoll));
    for (int i = policy_.first_polls * times; i > 0 && !receive_posted_for(c, r); --i) cpu_relax();
    for (int i = transport_.conditions().yields ? tuning::kYieldsForReceive : 0; i > 0 && !receive_posted_for(c, r);
         --i)
        sched_yield();
}

// Matches the receive posted in this state, unless it has been cancelled; returns whether it did.
bool Messages::match(Channel& c, Request& r, int to, uint64_t state) {
    Rendezvous& m = c.rendezvous;
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
    if (!shared) copy_there(c, r, to);
    notify(to);
    return true;
}

// The sender copies, from the beginning, the pieces that the receiver has not begun; returns whether there were any.
bool Messages::copy_there(Channel& c, Request& r, int to) {
    Rendezvous& m = c.rendezvous;
    const uint64_t bytes = r.bytes(), piece = piece_of(m, bytes), before = r.sent_;
    const auto left = [&](uint64_t begun) { return begun * piece < bytes && r.sent_ < bytes && !group_.failed(); };
    if (!left(m.begun.load(std::memory_order_relaxed))) return false;
    const uint64_t there = m.to.load(std::memory_order_relaxed);
    if (m.to_digest.load(std::memory_order_relaxed) != Rendezvous::digest_of(there, bytes))
        overwritten("the address", rank_, to);
    m.writing.store(1);
    while (left(m.begun.load(std::memory_order_relaxed)) && left(m.begun.fetch_add(1))) {
        const uint64_t at = r.sent_, length = std::min(piece, bytes - at);
        r.sent_ += length;
        if (!transport_.memory.try_copy(to, true, r.data_ + at, there + at, length)) break;
        m.done.fetch_add(1);
    }
    m.writing.store(0);
    if (copied(m, bytes)) notify(to);
    return r.sent_ > before;
}

// A matched send is given up: this rank copies the pieces that the receiver has not begun, and waits for the others.
void Messages::finish_rendezvous(Request& r) {
    Channel& c = *channel(rank_, r.peer_, true);
    const auto ended = [&] {
        copy_there(c, r, r.peer_);
        return copied(c.rendezvous, r.bytes()) || group_.failed() || transport_.ended(r.peer_);
    };
    if (!Waiter(kStoppedPeer).watch({}, ended))
        return fail_group(group_, Cause::PeerLost, rank_, 0,
                          "gave up a send while rank " + std::to_string(r.peer_) + " was receiving it");
    if (!copied(c.rendezvous, r.bytes())) return;
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
bool Messages::copy_here(Rendezvous& m, const Request& r, uint64_t from) {
    const uint64_t bytes = r.bytes(), piece = piece_of(m, bytes), pieces = (bytes + piece - 1) / piece;
    if (from == kUnreachable) return false;
    uint64_t mine = 0;
    // `mine` bounds the loop even if a stray write has overwritten the count.
    while (mine < pieces && m.begun.load(std::memory_order_relaxed) < pieces && !group_.failed() &&
           m.begun.fetch_add(1) < pieces) {
        const uint64_t at = (pieces - ++mine) * piece;
        if (!transport_.memory.try_copy(r.peer_, false, r.data_ + at, from + at, std::min(piece, bytes - at)))
            return true;
        m.done.fetch_add(1);
    }
    return mine > 0;
}

}  // namespace rankwise
