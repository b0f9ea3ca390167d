#include "p2p/messages.hpp"

#include <algorithm>
#include <cstring>
#include <random>

#include "collectives/tuning.hpp"

namespace rankwise {

std::string message_text(uint64_t count, DType dtype, int tag) {
    return std::to_string(count) + " x " + name(dtype) + " with tag " + std::to_string(tag);
}

Messages::Messages(std::shared_ptr<Segment> segment, std::shared_ptr<GroupMemory> memory, SlotProtocol& steps)
    : segment_(std::move(segment)), memory_(std::move(memory)), group_(memory_->group()), protocol_(steps), tracer_(*segment_, group_.member()[steps.rank], steps.part()), rank_(steps.rank), n_(steps.n),
      policy_(steps.policy()), sends_(n_), arrived_(n_), incoming_(n_), posted_(n_) {}

Messages::~Messages() {
    if (!closing_) close(0);  // after the first close the group's memory may belong to others
}

std::shared_ptr<Messages> Messages::make(std::shared_ptr<Segment> segment, std::shared_ptr<GroupMemory> memory, SlotProtocol& steps) {
    // A forked child does not delete it: its thread does not exist there, and may have held the mutex.
    return {new Messages(std::move(segment), std::move(memory), steps), [](Messages* messages) {
                if (!messages->forked()) delete messages;
            }};
}

Channel* Messages::channel(int from, int to, bool make) {
    std::atomic<uint64_t>& entry = group_.channel(from, to);
    uint64_t offset = entry.load(std::memory_order_acquire);
    if (!offset && make) {
        const uint64_t capacity = tuning::ring_bytes(n_);
        const uint64_t made = segment_->heap().allocate(sizeof(Channel) + capacity, BlockKind::Channel);
        Channel& c = *segment_->at<Channel>(made);
        c.capacity = capacity;
        c.first_stamp = std::random_device{}() | uint64_t(std::random_device{}()) << 32;
        if (entry.compare_exchange_strong(offset, made)) return &c;
        segment_->heap().release(made);  // the other rank was faster
    }
    if (!offset) return nullptr;
    Channel* const c = segment_->at<Channel>(offset);
    if (!segment_->contains(c, sizeof(Channel)) || c->capacity != tuning::ring_bytes(n_)) overwritten("the channel", from, to);
    return c;
}

// The shared memory holds something that no rank writes there. It must not be used as an address or a length.
void Messages::overwritten(const char* what, int from, int to) {
    const std::string why = std::string("found that ") + what + " of messages from rank " + std::to_string(from) + " to rank " + std::to_string(to) +
                            " had been overwritten in shared memory, perhaps by an array access outside its bounds";
    fail_group(group_, Cause::PeerLost, rank_, 0, why);
    protocol_.throw_failure(name(Op::None));
}

// Another thread may hold the mutex for milliseconds while it copies a large message.
std::unique_lock<std::mutex> Messages::lock_requests() {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) {
        before_waiting();
        lock.lock();
    }
    return lock;
}

void Messages::check_open(const char* operation) {
    if (closing_) throw Closed("this communicator is closed");
    if (group_.failed()) protocol_.throw_failure(operation);
}

void Messages::notify(int whom) {
    PeerSlot& peer_slot = group_.peers[whom];
    if (!peer_slot.message_sleepers.load()) return;
    peer_slot.message_notifications.fetch_add(1);
    futex_wake_all(peer_slot.message_notifications);
}

std::shared_ptr<Request> Messages::request(Op op, void* data, uint64_t count, DType dtype, int peer, int tag, std::shared_ptr<void> keep) {
    auto r = std::make_shared<Request>();
    r->messages_ = weak_from_this();
    r->keep_ = std::move(keep);
    r->sends_ = op == Op::Send;
    r->peer_ = peer;
    r->tag_ = tag;
    r->dtype_ = dtype;
    r->count_ = count;
    r->data_ = static_cast<uint8_t*>(data);
    return r;
}

std::shared_ptr<Request> Messages::send(const void* data, uint64_t count, DType dtype, int to, int tag, bool waits, std::shared_ptr<void> keep) {
    const auto r = request(Op::Send, const_cast<void*>(data), count, dtype, to, tag, std::move(keep));
    const auto lock = lock_requests();
    check_open(name(Op::Send));
    trace(*r, waits);
    if (to == rank_) {  // arrives at once
        auto message = arrive(rank_, Header::of(count, dtype, tag));
        if (message->left) std::memcpy(message->at, data, message->left);
        message->left = 0;
        finish(*message);
        complete(*r);
        return r;
    }
    sends_[to].push_back(r);
    try {
        if (waits && sends_[to].size() == 1) poll_for_receive(to, *r);
        push(to, waits || may_copy_at_once(*r));
        if (!r->complete_ && !waits) ensure_thread();
    } catch (...) {  // no memory for the channel, or no thread
        cancel(r);
        throw;
    }
    return r;
}

std::shared_ptr<Request> Messages::recv(void* data, uint64_t count, DType dtype, int from, int tag, bool waits, std::shared_ptr<void> keep) {
    const auto r = request(Op::Recv, data, count, dtype, from, tag, std::move(keep));
    const auto lock = lock_requests();
    check_open(name(Op::Recv));
    trace(*r, waits);
    try {
        if (auto m = first_arrived(from, tag); !m) {
            receives_.push_back(r);
            pull_from(from);
            post_receive(r);
        } else if (fits(*r, m->from, m->header)) {
            receive_arrived(r, m);
        }
        if (!r->complete_ && !waits) ensure_thread();
    } catch (...) {  // no memory for the channel, or for another message, or no thread
        cancel(r);
        throw;
    }
    return r;
}

std::shared_ptr<Request> Messages::recv_probed(void* data, const Arrival& found, std::shared_ptr<void> keep) {
    const auto r = request(Op::Recv, data, found.count, found.dtype, found.source, found.tag, std::move(keep));
    const auto lock = lock_requests();
    check_open(name(Op::Recv));
    const auto m = first_arrived(found.source, found.tag);
    if (!m || m->header.count != found.count || DType(m->header.dtype) != found.dtype) return nullptr;
    trace(*r, false);
    r->matched_ = true;
    try {
        receive_arrived(r, m);
        if (!r->complete_) ensure_thread();
    } catch (...) {
        cancel(r);
        throw;
    }
    return r;
}

// `r` receives a message that has begun to arrive and fits.
void Messages::receive_arrived(const std::shared_ptr<Request>& r, const std::shared_ptr<Message>& m) {
    const uint64_t here = m->header.bytes - m->left;
    if (here) std::memcpy(r->data_, m->kept.data(), here);
    m->at = r->data_ + here;
    m->kept = {};
    m->receive = r;
    receives_.push_back(r);
    arrived_[m->from].remove(m);  // incoming_ holds it too while bytes are still to come
    if (!m->left) finish(*m);
    else pull(m->from);
}

void Messages::trace(Request& r, bool waits) {
    const uint64_t what = make_call(r.sends_ ? Op::Send : Op::Recv, r.dtype_, {}, r.peer_).what, now = ticks();
    r.entry_ = tracer_.begin(what | (waits ? 0 : kBackground), group_.number, r.tag_, 0, r.bytes(), now);
    r.began_ = waits ? now : 0;
}

void Messages::end_trace(Request& r, bool failed) {
    if (!r.entry_) return;
    const uint64_t now = ticks();
    if (r.matched_ && !r.sends_) r.entry_->set_peer(r.peer_, r.tag_);  // the receive may have been from any rank
    tracer_.end(r.entry_, now, r.waits_since_ ? now - r.waits_since_ : 0, failed ? kFailed : 0);
    r.entry_ = nullptr;
}

void Messages::complete(Request& r, bool failed) {
    end_trace(r, failed);
    if (!failed) tracer_.moved(r.bytes());
    if (tracer_.measured()) {
        const uint64_t now = ticks(), since = r.began_ ? r.began_ : r.waits_since_;
        tracer_.count(r.sends_ ? Op::Send : Op::Recv, since ? now - since : 0, r.waits_since_ ? now - r.waits_since_ : 0, failed ? 0 : r.bytes());
    }
    r.complete_ = true;
}

void Messages::pull_from(int from) {
    for (int p = 0; p < n_; ++p)
        if (p != rank_ && (from == kAny || p == from)) pull(p);
}

void Messages::abandon(const std::shared_ptr<Request>& r) {
    std::lock_guard lock(mutex_);
    cancel(r);
}

void Messages::cancel(const std::shared_ptr<Request>& r) {
    if (r->complete_ || closing_ || std::exchange(r->abandoned_, true)) return;
    end_trace(*r, true);
    if (r->sends_) {
        auto& queue = sends_[r->peer_];
        if (!r->matched_) {
            queue.erase(std::find(queue.begin(), queue.end(), r));
            return;
        }
        if (r->rendezvous_)  // the receiver may be reading a piece of this memory
            return fail_group(group_, Cause::PeerLost, rank_, 0, "gave up a send while rank " + std::to_string(r->peer_) + " was receiving it");
        r->copy_.assign(r->data_, r->data_ + r->bytes());
        r->data_ = r->copy_.data();
        return ensure_thread();
    }
    if (r->peer_ != kAny && r->peer_ != rank_ && posted_[r->peer_] == r) withdraw_receive(r->peer_);
    receives_.remove(r);
    for (Incoming& in : incoming_) {
        if (!in.message || in.message->receive != r) continue;
        Message& m = *in.message;
        m.kept.resize(m.header.bytes);
        const uint64_t here = m.header.bytes - m.left;
        if (here) std::memcpy(m.kept.data(), r->data_, here);
        m.at = m.kept.data() + here;
        m.receive = nullptr;
        arrived_[m.from].push_back(in.message);
    }
}

std::shared_ptr<Messages::Message> Messages::first_arrived(int from, int tag) {
    std::shared_ptr<Message> first;
    for (int p = 0; p < n_; ++p) {
        if (from != kAny && p != from) continue;
        auto& kept = arrived_[p];
        auto found = std::find_if(kept.begin(), kept.end(), [&](auto& m) { return tag == kAny || m->header.tag == tag; });
        if (found != kept.end() && (!first || (*found)->number < first->number)) first = *found;
    }
    return first;
}

std::optional<Arrival> Messages::probe(int from, int tag) {
    std::lock_guard lock(mutex_);
    check_open("probe");
    pull_from(from);
    auto m = first_arrived(from, tag);
    if (!m) return std::nullopt;
    return Arrival{m->from, m->header.tag, m->header.count, DType(m->header.dtype)};
}

// Whether the message has the count and dtype that the receive expects. If not, the receive fails, and the message is
// kept for another receive.
bool Messages::fits(Request& r, int from, const Header& h) {
    r.peer_ = from;
    r.tag_ = h.tag;
    r.matched_ = true;
    if (r.count_ == h.count && r.dtype_ == DType(h.dtype)) return true;
    r.failure_ = "recv from rank " + std::to_string(from) + ": the message is " + message_text(h.count, DType(h.dtype), h.tag) +
                 ", the receive expects " + message_text(r.count_, r.dtype_, r.tag_);
    complete(r, true);
    return false;
}

// A header has been read: match the message to a posted receive, or keep it.
std::shared_ptr<Messages::Message> Messages::arrive(int from, const Header& h) {
    auto m = std::make_shared<Message>(Message{h, from, h.bytes, nullptr, arrivals_++, {}, nullptr});
    auto posted = std::find_if(receives_.begin(), receives_.end(), [&](auto& r) {
        return !r->matched_ && (r->peer_ == from || r->peer_ == kAny) && (r->tag_ == h.tag || r->tag_ == kAny);
    });
    if (posted != receives_.end()) {
        if (fits(**posted, from, h)) {
            m->receive = *posted;
            m->at = m->receive->data_;
            return m;
        }
        receives_.erase(posted);
    }
    m->kept.resize(h.bytes);
    m->at = m->kept.data();
    arrived_[from].push_back(m);
    return m;
}

// The last byte has arrived.
void Messages::finish(Message& m) {
    if (!m.receive) return;
    receives_.remove(m.receive);
    complete(*m.receive);
}

bool Messages::push(int to, bool at_once) {
    auto& queue = sends_[to];
    if (queue.empty()) return false;
    Channel& c = *channel(rank_, to, true);
    bool moved = false;
    while (!queue.empty()) {
        Request& r = *queue.front();
        if (const uint64_t state = r.matched_ ? 0 : receive_posted_for(c, r)) {
            if (!at_once) break;  // the progress thread does it
            moved |= match(c, r, to, state);
        }
        if (r.rendezvous_) {
            if (!copied(c.rendezvous, r.bytes())) break;
            complete(r);
            queue.pop_front();
            moved = true;
            continue;
        }
        const uint64_t total = r.bytes();
        const uint64_t before = c.written.load(std::memory_order_relaxed);
        uint64_t at = before, room = c.room();
        if (!r.matched_ && room >= sizeof(Header)) {
            c.put_header(at, Header::of(r.count_, r.dtype_, r.tag_));
            at += sizeof(Header);
            room -= sizeof(Header);
            r.matched_ = true;
        }
        if (r.matched_) {
            const uint64_t bytes = std::min({total - r.sent_, room, tuning::kRingPiece});
            c.put(at, r.data_ + r.sent_, bytes);
            at += bytes;
            room -= bytes;
            r.sent_ += bytes;
        }
        if (r.sent_ == total && at - before == sizeof(Header) + total) c.stamp_at(before).store(c.stamp(before), std::memory_order_release);
        const bool finished = r.matched_ && r.sent_ == total && room >= Channel::pad_of(at);
        if (finished) at += Channel::pad_of(at);
        if (at != before) {
            c.written.exchange(at);
            notify(to);
            moved = true;
        }
        if (finished) {
            complete(r);
            queue.pop_front();
        } else if (at == before) {
            break;
        }
    }
    return moved;
}

bool Messages::pull(int from) {
    Channel* c = channel(from, rank_, false);
    if (!c) return false;
    Incoming& in = incoming_[from];
    bool moved = false;
    if (!progress_rendezvous(from, moved)) return moved;
    for (;;) {
        const uint64_t before = c->read.load(std::memory_order_relaxed);
        uint64_t at = before, waiting = c->waiting();
        if (!in.message && !in.pad && waiting >= sizeof(Header)) {
            const Header h = c->header(at);
            if (!h.valid() || at % kCacheLine) overwritten("a header", from, rank_);
            at += sizeof h;
            waiting -= sizeof h;
            in.message = arrive(from, h);
            in.pad = Channel::pad_of(at + h.bytes);
        }
        if (in.message) {
            Message& m = *in.message;
            const uint64_t bytes = std::min({m.left, waiting, tuning::kRingPiece});
            c->get(at, m.at, bytes);
            at += bytes;
            waiting -= bytes;
            m.at += bytes;
            m.left -= bytes;
            if (!m.left) {
                finish(m);
                in.message.reset();
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
    }
}

bool Messages::progress() {
    bool moved = false;
    for (int p = 0; p < n_; ++p) {
        if (p == rank_) continue;
        moved |= push(p);
        moved |= pull(p);
    }
    return moved;
}

// Whether no more messages can come from this source; for kAny, from any other rank.
bool Messages::has_left(int from) const {
    for (int p = 0; p < n_; ++p)
        if (p != rank_ && (p == from || from == kAny) && !group_.peers[p].left.load()) return false;
    return n_ > 1;
}

bool Messages::pending() const {
    if (!receives_.empty()) return true;
    return std::any_of(sends_.begin(), sends_.end(), [](auto& q) { return !q.empty(); });
}

}  // namespace rankwise
