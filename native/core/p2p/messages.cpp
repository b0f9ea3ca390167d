#include "p2p/messages.hpp"

#include <algorithm>
#include <cstring>
#include <random>

namespace rankwise {

namespace {

std::string array_text(uint64_t count, DType dtype) { return std::to_string(count) + " x " + name(dtype); }
std::string text_of(const MessageHeader& h) {
    return h.object ? "an object with tag " + std::to_string(h.tag) : message_text(h.count, DType(h.dtype), h.tag);
}

}  // namespace

std::string message_text(uint64_t count, DType dtype, int tag) {
    return array_text(count, dtype) + (tag == kBlockTag ? " of a gather" : " with tag " + std::to_string(tag));
}

Arrival arrival_of(int from, const MessageHeader& h, uint64_t number) {
    return {from, h.tag, h.count, DType(h.dtype), bool(h.object), number};
}

Messages::Messages(std::shared_ptr<Segment> segment, std::shared_ptr<GroupMemory> memory, Transport& transport,
                   FailureReporter& failures, uint64_t unexpected_limit)
    : segment_(std::move(segment)), memory_(std::move(memory)), group_(memory_->group()),
      channels_(&group_.channel(0, 0)), transport_(transport), failures_(failures),
      tracer_(*segment_, transport.members[size_t(transport.rank)].world_rank, transport.log.part()),
      rank_(transport.rank), n_(transport.n), policy_(transport.steps.policy()), outgoing_(n_), arrived_(n_),
      incoming_(n_), unexpected_limit_(unexpected_limit), lease_(*memory_),
      background_(ProgressThread::of(*segment_, transport.members[size_t(transport.rank)].world_rank)) {
    publish_room();
}

Messages::~Messages() {
    if (lease_) close(0);
}

std::shared_ptr<Messages> Messages::make(std::shared_ptr<Segment> segment, std::shared_ptr<GroupMemory> memory,
                                         Transport& transport, FailureReporter& failures, uint64_t unexpected_limit) {
    // A forked child does not delete it: its thread does not exist there, and may have held the mutex.
    return {new Messages(std::move(segment), std::move(memory), transport, failures, unexpected_limit),
            [](Messages* messages) {
                if (!messages->fork_.is_child()) delete messages;
            }};
}

Channel& Messages::channel_to(int to) {
    std::atomic<uint64_t>& entry = channels_[rank_ * n_ + to];
    uint64_t offset = entry.load();
    if (!offset) {
        const uint64_t capacity = ring_bytes(n_);
        const uint64_t made = segment_->heap().allocate(sizeof(Channel) + capacity, BlockKind::Channel);
        Channel& c = *segment_->at<Channel>(made);
        c.capacity = capacity;
        c.first_stamp = std::random_device{}() | uint64_t(std::random_device{}()) << 32;
        if (entry.compare_exchange_strong(offset, made)) return c;
        segment_->heap().release(made);
    }
    return channel_at(offset, rank_, to);
}

Channel* Messages::channel_from(int from) {
    const uint64_t offset = channels_[from * n_ + rank_].load();  // as in notify(): this rank may be about to sleep
    return offset ? &channel_at(offset, from, rank_) : nullptr;
}

Channel& Messages::channel_at(uint64_t offset, int from, int to) {
    Channel* const c = segment_->at<Channel>(offset);
    if (offset % alignof(Channel) ||
        !segment_->heap().contains(Area::Control, offset, sizeof(Channel) + ring_bytes(n_)) ||
        c->capacity != ring_bytes(n_))
        throw_overwritten("the channel", from, to);
    return *c;
}

void Messages::throw_overwritten(const char* what, int from, int to) {
    failures_.throw_overwritten(
        std::string(what) + " of messages from rank " + std::to_string(from) + " to rank " + std::to_string(to),
        name(Op::None));
}

// Another thread may hold the mutex for milliseconds while it copies a large message.
std::unique_lock<std::mutex> Messages::lock_requests(const CallOptions& options) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) {
        options.before_waiting();
        lock.lock();
    }
    return lock;
}

void Messages::check_open(const char* operation, const CallOptions& options) {
    if (closing_) throw Closed("this communicator is closed");
    if (group_.failed()) failures_.throw_failure(operation, -1, options);
}

// These loads are sequentially consistent, as is the exchange before them that has changed the channel, and as are, in
// the rank that is about to sleep, the store by which it registers and the loads by which it then looks once more:
// either this rank sees the sleeper, or the sleeper sees the change.
void Messages::notify(int whom) {
    PeerSlot& peer_slot = group_.peers[whom];
    if (peer_slot.message_sleepers.load()) futex_notify(peer_slot.message_notifications);
    if (peer_slot.awaits_progress.load()) notify_progress_of(whom);
}

void Messages::notify_progress_of(int whom) {
    group_.peers[whom].progress_notified.store(1);
    futex_notify(segment_->record(transport_.members[size_t(whom)].world_rank).progress_notifications);
}

void Messages::check_peer(Op op, int peer) const {
    if ((peer >= 0 && peer < n_) || (peer == kAny && op == Op::Recv)) return;
    throw BadArgument(std::string(op == Op::Send ? "dest" : "src") + ": rank " + std::to_string(peer) +
                      " given, expected 0 to " + std::to_string(n_ - 1));
}

std::shared_ptr<Request> Messages::request(Op op, const void* data, uint64_t count, DType dtype, int peer, int tag) {
    check_peer(op, peer);
    checked_bytes(count, itemsize(dtype));
    auto r = std::make_shared<Request>();
    r->messages_ = weak_from_this();
    r->sends_ = op == Op::Send;
    r->peer_ = peer;
    r->tag_ = tag;
    r->dtype_ = dtype;
    r->count_ = count;
    r->data_ = static_cast<uint8_t*>(const_cast<void*>(data));
    return r;
}

std::shared_ptr<Request> Messages::request(const Receive& wanted) {
    const auto r = request(Op::Recv, wanted.data, wanted.count, wanted.dtype, wanted.from, wanted.tag);
    r->wanted_ = wanted.wanted;
    return r;
}

std::shared_ptr<Request> Messages::send(const Send& message, const CallOptions& options, Caller caller) {
    const auto r = request(Op::Send, message.data, message.count, message.dtype, message.to, message.tag);
    r->object_ = message.object;
    r->synchronous_ = message.mode == Send::Mode::Synchronous;
    r->stretches_.assign(message.stretches.begin(), message.stretches.end());
    const int to = r->peer_;
    const auto lock = lock_requests(options);
    check_open(name(Op::Send), options);
    try {
        trace(*r, caller);
        if (to == rank_) {
            arrive_here(r);
            return r;
        }
        outgoing_[to].sends.push_back(r);
        push(to);
        if (r->ended() || caller == Caller::WaitsAtOnce) return r;
        go_on_in_background();
        // There is something to do at once.
        if (progress_ == Progress::Wakeable) notify_progress_of(rank_);
    } catch (...) {  // no memory, or no thread
        cancel_and_keep_message(r);
        throw;
    }
    return r;
}

// A message of this rank to itself arrives at once.
void Messages::arrive_here(const std::shared_ptr<Request>& r) {
    const std::shared_ptr<Message> m = arrive(rank_, header_of(*r));
    r->for_stretches(0, m->left, [&](const uint8_t* data, uint64_t bytes) {
        copy_bytes(m->at, data, bytes);
        m->at += bytes;
    });
    m->left = 0;
    if (r->synchronous_ && !m->receive) m->awaiting = r;
    else complete(*r);
    complete_receive(*m);
    notify(rank_);  // another thread may wait for it
}

std::shared_ptr<Request> Messages::recv(const Receive& wanted, const CallOptions& options, Caller caller) {
    const auto r = request(wanted);
    const auto lock = lock_requests(options);
    check_open(name(Op::Recv), options);
    trace(*r, caller);
    try {
        if (caller == Caller::GoesOn) listen(*r);
        if (Message* const m = first_arrived(r->peer_, r->tag_, r.get()); !m) {
            receives_.add_posted(r);
            pull_from(r->peer_);
        } else if (match_or_fail(*r, m->from, m->header)) {
            receive_arrived(r, *m);
        }
        if (!r->ended() && caller == Caller::GoesOn && !may_stay_in_ring(*r)) go_on_in_background();
    } catch (...) {  // no memory, perhaps for another message, or no thread
        cancel_and_keep_message(r);
        throw;
    }
    return r;
}

std::shared_ptr<Request> Messages::recv_probed(void* data, const Arrival& found) {
    const auto r = request({data, found.count, found.dtype, found.source, found.tag});
    const auto lock = lock_requests();
    check_open(name(Op::Recv));
    Message* const m = first_arrived(found.source, found.tag, r.get());
    if (!m || !accepts(*r, m->header) || m->header.count != found.count || DType(m->header.dtype) != found.dtype)
        return nullptr;
    start_arrived(r, *m);
    return r;
}

std::shared_ptr<Request> Messages::recv_arrived(int from, int tag) {
    const auto r = request(Receive::of_any_length(Wanted::Any, from, tag));
    const auto lock = lock_requests();
    check_open(name(Op::Recv));
    pull_from(from, Reads::All);
    Message* const m = first_arrived(from, tag, r.get());
    if (m) start_arrived(r, *m);
    else take_offers();  // as in probe
    return m ? r : nullptr;
}

// `r`, which nobody knows yet, receives a message that has arrived, or begun to, and that it accepts.
void Messages::start_arrived(const std::shared_ptr<Request>& r, Message& arrived) {
    trace(*r, Caller::GoesOn);
    match_or_fail(*r, arrived.from, arrived.header);
    try {
        receive_arrived(r, arrived);
        if (!r->ended()) go_on_in_background();
    } catch (...) {
        cancel_and_keep_message(r);
        throw;
    }
}

// `r` receives a message that has arrived, or begun to, and fits.
void Messages::receive_arrived(const std::shared_ptr<Request>& r, Message& arrived) {
    const std::shared_ptr<Message> m =
        arrived_.remove(arrived);  // incoming_ or requested_ holds it too while bytes are still to come
    publish_room();
    if (!r->held_) receives_.add_matched(r);
    const uint64_t here = m->header.bytes - m->left;
    if (r->in_own_memory()) {
        if (!m->kept) m->kept = std::move(r->memory_);  // which first_arrived has allocated
        give_memory(*r, *m);
    } else {
        copy_bytes(r->data_, m->kept.data(), here);
        m->kept = {};
    }
    m->at = r->data_ + here;
    attach(r, m);
    if (m->offered()) incoming_[m->from].claimed.push_back(m);
    else if (!m->left) complete_receive(*m);
    else pull(m->from);
}

void Messages::attach(const std::shared_ptr<Request>& r, const std::shared_ptr<Message>& m) {
    m->receive = r;
    r->message_ = m;
    r->arrival_ = m->number_;
    if (const auto awaiting = std::move(m->awaiting)) {
        complete(*awaiting);
        notify(rank_);  // another thread may wait for it
    }
}

// The message is received in the memory in which it is kept.
void Messages::give_memory(Request& r, Message& m) {
    r.memory_ = std::move(m.kept);
    r.data_ = r.memory_.data();
}

void Messages::trace(Request& r, Caller caller) {
    const bool waits = caller == Caller::WaitsAtOnce;
    if (!waits && !(r.reserved_ = tracer_.reserve())) return;  // the other entries are for what the program waits for
    const uint64_t what = make_call(r.sends_ ? Op::Send : Op::Recv, r.dtype_, {}, r.peer_).what, now = ticks();
    const uint64_t flags = (waits ? 0 : kBackground) | (r.synchronous_ ? kSynchronous : 0);
    r.entry_ = tracer_.begin(what | flags, group_.number, r.tag_, 0, r.bytes(), now);
    r.began_ = waits ? now : 0;
}

void Messages::end_trace(Request& r, Request::State result) {
    if (std::exchange(r.reserved_, false)) tracer_.unreserve();
    if (!r.entry_) return;
    const uint64_t now = ticks();
    if (!r.sends_) r.entry_->set_peer(r.peer_, r.tag_);  // the receive may have been from any rank
    tracer_.end(r.entry_, now, r.waits_since_ ? now - r.waits_since_ : 0,
                result == Request::State::Complete ? 0 : kFailed);
    r.entry_ = nullptr;
}

void Messages::complete(Request& r, Request::State result) {
    if (r.ended()) return;  // it was cancelled, or who cancelled it found that it was complete
    const uint64_t bytes = result == Request::State::Complete ? r.bytes() : 0;
    end_trace(r, result);
    tracer_.moved(bytes);
    if (tracer_.measured()) {
        const uint64_t now = ticks(), since = r.began_ ? r.began_ : r.waits_since_;
        tracer_.count(r.sends_ ? Op::Send : Op::Recv, since ? now - since : 0,
                      r.waits_since_ ? now - r.waits_since_ : 0, bytes);
    }
    r.become(result);
}

void Messages::pull_from(int from, Reads reads) {
    for (int p = 0; p < n_; ++p)
        if (p != rank_ && (from == kAny || p == from)) pull(p, reads);
}

std::optional<Arrival> Messages::arrival(int from, int tag) {
    pull_from(from, Reads::All);
    const Message* const m = first_arrived(from, tag, nullptr);
    if (!m) return std::nullopt;
    return arrival_of(m->from, m->header, m->number_);
}

std::optional<Arrival> Messages::probe(int from, int tag) {
    check_peer(Op::Recv, from);
    const auto lock = lock_requests();
    check_open("probe");
    const auto found = arrival(from, tag);
    if (!found) take_offers();  // a program that probes in a loop waits like one that sleeps
    return found;
}

bool Messages::accepts(const Request& r, const MessageHeader& h) {
    return rankwise::accepts(r.wanted_, r.count_, r.dtype_, h);
}

// Whether the progress thread need not run for a receive: its message is short and has not been matched, and so few
// receives are pending that all their messages fit into the ring, where each may wait until the program asks for it.
// A sender that cannot go on before that wakes the thread (listen).
bool Messages::may_stay_in_ring(const Request& r) const {
    return r.may_be_shorter() && !r.message_ && r.bytes() < kShortMessage &&
           receives_.size() * kShortMessage <= ring_bytes(n_) / 2;
}

// The receive takes the source and tag of the message. Returns whether it accepts it; if not, the receive fails, and
// the message is kept for another one.
bool Messages::match_or_fail(Request& r, int from, const MessageHeader& h) {
    r.peer_ = from;
    r.tag_ = h.tag;
    r.become(Request::State::Matched);
    if (accepts(r, h)) {
        r.object_ = h.object;
        r.overflows_ = r.wanted_ == Wanted::Any && r.needs_own_memory(h.bytes, h.object);
        r.count_ = h.count;
        r.dtype_ = DType(h.dtype);
        return true;
    }
    const std::string message = "the message from rank " + std::to_string(from) + " with tag " + std::to_string(h.tag) +
                                " is ",
                      array = array_text(h.count, DType(h.dtype));
    switch (r.wanted_) {
    case Wanted::Exactly:
        r.failure_ = "recv from rank " + std::to_string(from) + ": the message is " + text_of(h) +
                     ", the receive expects " + message_text(r.count_, r.dtype_, r.tag_);
        break;
    case Wanted::UpTo:
        r.failure_ = "recv: " + message + text_of(h) + ", the receive expects at most " + std::to_string(r.bytes()) +
                     " bytes of an array";
        break;
    case Wanted::Object:
        r.failure_ =
            "recv_object: " + message + "an array of " + array + ", not an object; receive it with recv or recv_any";
        break;
    case Wanted::Any: break;
    }
    std::erase_if(failed_, [](const auto& each) { return bool(each->raised_); });
    if (failed_.size() < kMostFailed) failed_.push_back(r.shared_from_this());
    complete(r, Request::State::Failed);
    return false;
}

std::vector<std::shared_ptr<Request>> Messages::take_failed() {
    if (fork_.is_child()) return {};
    const auto lock = lock_requests();
    return std::move(failed_);
}

// A header has been read: match the message to a posted receive, or keep it. offer: its data is still with its sender,
// and is fetched if there is a receive. Returns null if the sender has cancelled it.
std::shared_ptr<Message> Messages::arrive(int from, const MessageHeader& h, std::optional<Offer> offer) {
    Request* const posted = receives_.first_for(from, h.tag);
    Memory memory;  // before anything changes, since there may be none
    const bool fits = posted && accepts(*posted, h), stays = offer && !posted;
    if (fits ? posted->needs_own_memory(h.bytes, h.object) : !stays) memory = Memory(h.bytes);
    auto m =
        std::make_shared<Message>(Message{h, from, h.bytes, nullptr, arrivals_, std::move(offer), std::move(memory)});
    if (m->offer && posted && !claim(*m)) return nullptr;
    ++arrivals_;
    while (Request* const next = receives_.first_for(from, h.tag)) {
        const std::shared_ptr<Request> r = next->held_;
        receives_.leave_queue(*r);
        if (match_or_fail(*r, from, h)) {
            if (!r->in_own_memory()) m->kept = {};
            else give_memory(*r, *m);
            m->at = r->data_;
            attach(r, m);
            return m;
        }
        receives_.remove(*r);
    }
    m->at = m->kept.data();
    if (m->offer && m->kept) fetch(m);
    arrived_.add(m);
    publish_room();
    return m;
}

// The last byte has arrived.
void Messages::complete_receive(Message& m) {
    if (!m.receive) return;
    const std::shared_ptr<Request> r = std::move(m.receive);
    r->message_ = nullptr;
    receives_.remove(*r);
    complete(*r);
}

bool Messages::progress() {
    bool moved = false;
    for (int p = 0; p < n_; ++p) {
        if (p == rank_) continue;
        bool pushed = push(p);
        moved |= pull(p);
        moved |= fetch_claimed(p);
        if (!outgoing_[p].offered.empty()) pushed |= help_to_fetch(channel_to(p), p);
        pushed |= push(p);
        moved |= pushed;
        // The ring may be full of messages that the receiver does not wait for, before one that it does wait for.
        Outgoing& out = outgoing_[p];
        if (pushed || out.sends.empty()) out.stuck = false;
        else if (!out.stuck && !group_.peers[p].message_waits.load(std::memory_order_relaxed)) {
            out.stuck = true;
            notify_progress_of(p);
        }
    }
    return moved;
}

// Whether no more messages can come from this source; for kAny, from any other rank.
bool Messages::has_left(int from) const {
    for (int p = 0; p < n_; ++p)
        if (p != rank_ && (p == from || from == kAny) && !group_.peers[p].has_left.load()) return false;
    return n_ > 1;
}

bool Messages::pending() const {
    if (!receives_.empty()) return true;
    return std::any_of(outgoing_.begin(), outgoing_.end(), [](const Outgoing& out) { return !out.idle(); });
}

bool Messages::unfinished() const {
    return !receives_.empty() ||
           std::any_of(outgoing_.begin(), outgoing_.end(), [](const Outgoing& out) { return out.incomplete(); });
}

}  // namespace rankwise
