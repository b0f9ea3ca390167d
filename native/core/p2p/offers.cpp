// Messages whose data stays with their sender until the receiver wants it: synchronous sends, messages for which the
// receiver has no room, and large ones, which are then copied once, not twice. The receiver copies the data from the
// sender's memory, with the help of a sender that waits, or, where it cannot, requests it through the ring. An offered
// message is matched like any other one, so that a later message can be received before it.
#include "kernels/non_temporal.hpp"
#include "p2p/messages.hpp"

namespace rankwise {

uint64_t Messages::most_in_ring() const {
    const Conditions& conditions = transport_.conditions();
    const uint64_t of_far = in_ring_of_far(n_);
    if (!conditions.single_copy) return of_far;  // nothing is offered for its length; exchange() writes so much at once
    if (conditions.oversubscribed) return std::min(kInRingOfShared, of_far);
    return peers_are_far() || conditions.slow_single_copies ? of_far : kInRingOfNear;
}

bool Messages::must_offer(const Request& r, int to) const {
    if (r.synchronous_) return true;
    if (r.bytes() > most_in_ring() && transport_.conditions().single_copy) return true;
    return r.bytes() > group_.peers[to].unexpected_room();
}

// Returns false if there is no room in the ring.
bool Messages::write_offer(Channel& c, const std::shared_ptr<Request>& r, int to) {
    Outgoing& out = outgoing_[to];
    struct {
        OfferBody about;
        OfferBody::Stretch stretches[kMostStretches];
    } body;
    size_t n = 0;
    bool reachable = transport_.conditions().single_copy && r->stretches_.size() <= std::size(body.stretches) &&
                     !out.free_slots.empty();
    r->for_stretches(0, r->bytes(), [&](const uint8_t* data, uint64_t bytes) {
        reachable = reachable && transport_.memory.reachable(data, bytes, reachable_);
        if (reachable) body.stretches[n++] = {reinterpret_cast<uint64_t>(data), bytes};
    });
    if (!reachable) n = 0;
    body.about = {out.next_offer, n ? out.free_slots.back() : -1};
    MessageHeader header = header_of(*r);
    header.form = r->synchronous_ ? Form::OfferedSynchronously : Form::Offered;
    header.stretches = uint8_t(n);
    if (n) c.offers[body.about.slot].store(OfferStage::Offered);
    const auto listed = out.offered.emplace(body.about.number, r).first;  // before the receiver knows of it
    if (!write_header(c, to, header, &body, sizeof body.about + n * sizeof(OfferBody::Stretch))) {
        out.offered.erase(listed);
        return false;
    }
    if (r->synchronous_) notify_progress_of(to);  // a receive that may stay in the ring listens only for this
    if (n) out.free_slots.pop_back();
    r->become(Request::State::Offered);
    r->offer_ = body.about.number;
    r->slot_ = body.about.slot;
    out.next_offer = (out.next_offer + 1) & INT32_MAX;
    return true;
}

// Whether the message is still there. If it is, its sender can no longer cancel it, and it must be fetched.
bool Messages::claim(Message& m) {
    Offer& offer = *m.offer;
    if (offer.stretches.empty()) return true;
    OfferStage offered = OfferStage::Offered;
    if (channel_from(m.from)->offers[offer.slot].compare_exchange_strong(offered, OfferStage::Copying)) return true;
    outgoing_[m.from].answers.push_back(MessageHeader::about_offer(Form::Copied, offer.number));
    return false;
}

// The first arrived message that a receive matches; those that have been cancelled are dropped. wanted: what the
// receive accepts, and so fetches; null for a probe.
Message* Messages::first_arrived(int from, int tag, Request* wanted) {
    for (;;) {
        Message* const m = arrived_.first_for(from, tag);
        if (!m || !m->offered()) return m;
        if (wanted && accepts(*wanted, m->header)) {
            if (wanted->needs_own_memory(m->header.bytes, m->header.object))
                wanted->memory_ = Memory(m->header.bytes);  // before the claim, since there may be none
            make_room_in(incoming_[m->from].claimed);
            if (claim(*m)) return m;
        } else if (!answered_as_cancelled(*m)) {
            return m;
        }
        send_answers(arrived_.remove(*m)->from);
    }
}

// Whether its sender has cancelled the message: then the claim fails, and queues the answer to the sender.
bool Messages::answered_as_cancelled(Message& m) {
    const Offer& offer = *m.offer;
    if (offer.stretches.empty() || channel_from(m.from)->offers[offer.slot].load() != OfferStage::Cancelled)
        return false;
    return !claim(m);
}

// The message is claimed and has memory. Returns whether its sender may help to copy it.
bool Messages::begin_fetch(Message& m) {
    Offer& offer = *m.offer;
    if (!offer.stretches.empty() && !std::exchange(offer.fetched, true)) offer.shared = share(m);
    return offer.shared;
}

// The message is claimed and has memory: copy the data there, or request it. Returns whether that is done, which it is
// not while its sender helps.
bool Messages::fetch(const std::shared_ptr<Message>& message) {
    Message& m = *message;
    Offer& offer = *m.offer;
    auto& answers = outgoing_[m.from].answers;
    const bool awaited = !group_.failed();  // in a failed group nobody awaits an answer; then this must need no memory
    if (awaited) make_room_in(answers);
    if (offer.stretches.empty()) {
        incoming_[m.from].requested.emplace(offer.number, message);
        offer.fetched = true;
        answers.push_back(MessageHeader::about_offer(Form::Fetch, offer.number));
        return true;
    }
    if (begin_fetch(m) && !fetch_shared(m)) return false;
    bool copied = !group_.failed();
    for (uint64_t at = 0; !offer.shared && copied && at < m.header.bytes; at += kBytesPerCheck)
        copied = copy_stretches(m, at, std::min(kBytesPerCheck, m.header.bytes - at)) && !group_.failed();
    if (awaited) answers.push_back(MessageHeader::about_offer(Form::Copied, offer.number));
    channel_from(m.from)->offers[offer.slot].store(OfferStage::Copied);
    if (copied) m.left = 0;  // else the group has failed, or will when the sender's death is noticed
    return true;
}

// Fetches the messages from this source that receives have matched. That comes later than the match, because the second
// of two ranks that exchange messages would otherwise copy before it starts its own send.
bool Messages::fetch_claimed(int from) {
    std::vector<std::shared_ptr<Message>>& claimed = incoming_[from].claimed;
    if (claimed.empty()) return false;
    const size_t before = claimed.size();
    const bool begins = claimed.front()->offered();
    while (!claimed.empty() && fetch(claimed.front())) {
        const std::shared_ptr<Message> m = claimed.front();
        claimed.erase(claimed.begin());
        if (!m->left) complete_receive(*m);
    }
    send_answers(from);
    return begins || claimed.size() < before;
}

// The same, until all are here or their sender has ended. If the sender is stopped meanwhile, the group fails.
void Messages::finish_claimed(int from) {
    const auto ended = [&] {
        const bool over = transport_.ended(from);  // before, as a sender may end after its last piece
        fetch_claimed(from);
        return incoming_[from].claimed.empty() || over;
    };
    if (!Waiter(kStoppedPeer).check_every({}, ended))
        fail_group(group_, Cause::PeerLost, rank_, 0,
                   "gave up a receive while rank " + std::to_string(from) + " was sending to it");
}

// Keeps the offered messages that no receive has matched and for which there is room. Only a thread that would sleep,
// or that waits in a send, does this: their senders may have to go on before this rank can. A receive that follows soon
// saves the copy.
void Messages::take_offers(int from) {
    arrived_.for_each_offered([&](Message& m) {
        if (from != kAny && from != m.from) return;
        if (m.header.form == Form::OfferedSynchronously) {
            if (answered_as_cancelled(m)) send_answers(arrived_.remove(m)->from);
            return;
        }
        if (m.header.bytes > room()) return;
        Memory memory(m.header.bytes);
        make_room_in(outgoing_[m.from].answers);
        if (claim(m)) {
            m.at = memory.data();
            fetch(m.held);
            m.kept = std::move(memory);
            arrived_.keeps(m);
            publish_room();
            send_answers(m.from);
        } else {
            send_answers(arrived_.remove(m)->from);
        }
    });
}

void Messages::send_answers(int to) {
    if (outgoing_[to].answers.empty()) return;
    push(to);
    if (!outgoing_[to].answers.empty()) go_on_in_background();  // the ring is full
}

// The receiver of an offered message has copied it, or found that it was cancelled, or requests its data.
void Messages::apply_answer(int from, const MessageHeader& h) {
    Outgoing& out = outgoing_[from];
    const auto found = out.offered.find(h.tag);
    if (found == out.offered.end()) throw_overwritten("an answer", from, rank_);
    const std::shared_ptr<Request> r = found->second;
    if (h.form == Form::Fetch) {
        out.requested.push_back(r);
        return;
    }
    out.end_offer(*r);
    complete(*r);
}

// Cancels a send whose data the receiver may copy. Returns false if it has copied it; else it finds that the message
// was cancelled.
bool Messages::cancel_offer(const Request& r) {
    std::atomic<OfferStage>& stage = channel_to(r.peer_).offers[r.slot_];
    OfferStage offered = OfferStage::Offered;
    if (stage.compare_exchange_strong(offered, OfferStage::Cancelled)) return true;
    const auto ended = [&] { return stage.load() != OfferStage::Copying || transport_.ended(r.peer_); };
    if (!Waiter(kStoppedPeer).check_every({}, ended))
        fail_group(group_, Cause::PeerLost, rank_, 0,
                   "cancelled a send while rank " + std::to_string(r.peer_) + " was receiving it");
    return stage.load() != OfferStage::Copied;
}

// This rank leaves the group, and its memory may be used for something else.
void Messages::cancel_offers(int to) {
    for (auto& [number, r] : outgoing_[to].offered)
        if (r->slot_ >= 0) cancel_offer(*r);
}

}  // namespace rankwise
