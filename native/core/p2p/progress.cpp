// How a rank waits for its messages: the threads that wait for requests, the progress thread, and the end of both.
#include <sched.h>

#include "failure/timeout_report.hpp"
#include "p2p/messages.hpp"
#include "p2p/vain_wait.hpp"

namespace rankwise {

namespace {

constexpr double kMoment = 1e-3;  // seconds between two checks of the requests of other communicators
constexpr const char* kClosedTooEarly = "the communicator was closed before this request was complete";

std::string tag_text(int tag) { return tag == kAny ? "any tag" : "tag " + std::to_string(tag); }

}  // namespace

// Throws if the group has failed, or a peer has left it without which `done` can no longer be true. request: as in
// wait_until.
template <class Done> void Messages::check_peers(const Request* request, Done&& done) {
    const char* operation = name(!request ? Op::Sync : request->sends_ ? Op::Send : Op::Recv);
    if (group_.failed()) failures_.throw_failure(operation);
    auto peer_that_left = [&](const Request& r) -> std::optional<int> {
        const auto lock = lock_requests();
        if (r.ended() || r.peer_ == rank_ || !has_left(r.peer_)) return std::nullopt;
        while (progress()) {
        }  // messages that it left in the ring are still received
        if (r.ended() || done()) return std::nullopt;
        return r.peer_ == kAny ? (rank_ + 1) % n_ : r.peer_;
    };
    std::vector<std::shared_ptr<const Request>> all;
    if (request) {
        all.push_back(request->shared_from_this());
    } else {
        const auto lock = lock_requests();
        receives_.for_each([&](const Request& r) { all.push_back(r.shared_from_this()); });
        for (const Outgoing& out : outgoing_) {
            all.insert(all.end(), out.sends.begin(), out.sends.end());
            for (auto& [number, r] : out.offered)
                if (!r->ended()) all.push_back(r);
        }
    }
    for (auto& r : all)
        if (const auto peer = peer_that_left(*r)) failures_.throw_lost(*peer, operation);
}

// One thread's wait beyond the first polls, measured for observers. While a thread waits for a request, reports say
// that this rank is in it; afterwards only if it is still pending.
class Messages::Foreground {
public:
    // request: as in wait_until.
    Foreground(Messages& messages, Request* request) : messages_(messages), request_(request) {
        std::lock_guard lock(messages.mutex_);
        waiting_.emplace(messages);
        if (!request || request->ended()) return;
        request->waits_since_ = since_;
        if (request->entry_) request->entry_->clear(kBackground);
        else messages.trace(*request, Caller::WaitsAtOnce);
    }
    ~Foreground() {
        if (messages_.fork_.is_child()) return;
        {
            std::lock_guard lock(messages_.mutex_);
            waiting_.reset();
            if (request_ && request_->entry_) {
                if (messages_.group_.failed()) messages_.end_trace(*request_, Request::State::Failed);
                else request_->entry_->set(kBackground);
            }
        }
        publish();
    }
    void publish() {
        const uint64_t now = ticks();
        messages_.tracer_.waited(now - std::exchange(since_, now));
    }

private:
    Messages& messages_;
    Request* const request_;
    std::optional<Waiting> waiting_;
    uint64_t since_ = ticks();
};

// Where ranks share cores, a waiting rank yields its own. But if its peer is running, the answer arrives sooner
// than a yield returns. Two signs of that: the peer last waited on another core, and answers have come in time lately.
template <class Done> bool Messages::answered_soon(int peer, const Waiter& waiter, const Done& done) {
    if (policy_.first_polls || is_engine_thread || peer == kAny) return false;
    const int32_t core = sched_getcpu() + 1;
    own_slot().core.store(core, std::memory_order_relaxed);
    if (group_.peers[peer].core.load(std::memory_order_relaxed) == core) return false;
    const uint32_t doublings = unanswered_;
    if (waits_++ % (1u << doublings) != 0) return false;
    const bool answered = waiter.spin(kSpinForAnswer, done);
    unanswered_ = answered ? doublings - (doublings > 0) : std::min(doublings + kDoublings, kMostDoublings);
    return answered;
}

// Returns true as soon as done() is. After `limit` seconds, by default the communicator's timeout, it throws TimedOut
// or returns false. request: the one that the program waits for, or null.
template <class Done>
bool Messages::wait_until(std::optional<double> limit, Done&& done, Request* request, const CallOptions& options,
                          AtTimeout at_timeout) {
    const GroupMemory::Use lease = memory_->lease();
    if (!lease) throw Closed(kClosedTooEarly);
    const double timeout = limit.value_or(transport_.steps.timeout);
    bool moved = false, soon = true;
    int peer = kAny;  // the request's; kAny may become a rank
    auto try_once = [&] {
        const auto lock = lock_requests(options);
        if (closing_) throw Closed(kClosedTooEarly);
        moved = progress();
        if (request) peer = request->peer_;
        if (done()) return true;
        // The receiver may wait in a send in turn: to this rank, or, if this lasts, in a ring of ranks.
        if (request && request->sends_) take_offers(soon ? peer : kAny);
        return false;
    };
    for (int i = policy_.first_polls; i >= 0; --i) {
        if (try_once()) return true;
        cpu_relax();
    }
    soon = false;
    options.before_waiting();
    Waiter waiter(timeout, transport_.program);
    Foreground foreground(*this, request);
    const auto poll_once = [&] {
        if (try_once()) return true;
        if (moved) waiter.poll_on();
        return false;
    };
    WaitPolicy policy = policy_;
    if (transport_.conditions().oversubscribed) policy.yields = kYieldsForMessage;
    if (answered_soon(peer, waiter, poll_once) || waiter.poll(policy, poll_once)) return true;
    // With a limit of its own, the program means to come back.
    const bool limited = limit || timeout < transport_.steps.first_timeout;
    const bool may_be_vain =
        request && !request->sends_ && !limited && at_timeout == AtTimeout::Throw && !is_engine_thread;
    VainWait vain(own_slot());
    const auto check = [&] {
        check_peers(request, done);
        // Another rank's long wait is a sign of a deadlock, and cheaper to see than this process's threads.
        if (may_be_vain && peer != kAny && group_.peers[peer].message_waits.load(std::memory_order_relaxed) &&
            vain.check(waiter.spent(), [&] { return waits_in_vain(*request); }))
            if (const std::string found = failures_.certain_deadlock(); !found.empty())
                throw_timed_out(timeout, request, " can never be complete" + found);
        foreground.publish();
        const auto lock = lock_requests();
        if (!closing_) take_offers();
    };
    PeerSlot& own = own_slot();
    if (waiter.sleep({own.message_notifications, &own.message_sleepers}, try_once, check)) return true;
    if (at_timeout == AtTimeout::Throw)
        throw_timed_out(
            timeout, request,
            (request ? " was" : " were") + (" not complete within " + seconds(timeout)) + failures_.deadlock(timeout));
    return false;
}

// Looks for the message, in vain; and nothing that comes can make this rank send something.
bool Messages::waits_in_vain(const Request& r) {
    const auto lock = lock_requests();
    progress();
    return !r.ended() && receives_.size() == 1 && std::ranges::all_of(outgoing_, &Outgoing::idle) &&
           segment_->record(transport_.members[size_t(rank_)].world_rank).pending_messages.load() ==
               (r.reserved_ ? 1u : 0u);  // no other pending message of this rank, in any group
}

// The message that a request sends or waits for.
std::string Messages::awaited_text(const Request& r) {
    if (r.object_ || r.wanted_ == Wanted::Object) return "an object with " + tag_text(r.tag_);
    if (r.wanted_ == Wanted::UpTo)
        return "an array of at most " + std::to_string(r.bytes()) + " bytes with " + tag_text(r.tag_);
    if (r.wanted_ == Wanted::Any) return "a message with " + tag_text(r.tag_);
    return message_text(r.count_, r.dtype_, r.tag_);
}

void Messages::throw_timed_out(double timeout, const Request* request, const std::string& why) {
    std::string what = "pending messages";
    std::vector<int> missing;
    if (std::lock_guard lock(mutex_); request) {
        what = std::string(request->sends_ ? "send to" : "recv from") +
               (request->peer_ == kAny ? " any rank" : " rank " + std::to_string(request->peer_)) + " (" +
               awaited_text(*request) + ")";
        if (request->peer_ != kAny) missing.push_back(request->peer_);
    }
    const RankTexts where = failures_.states();
    // With a timeout shorter than the group's, the program means to come back later, so no stacks are requested.
    const RankTexts stacks = timeout < transport_.steps.timeout ? RankTexts() : failures_.request_stacks(missing);
    const std::string headline = "rank " + std::to_string(rank_) + "'s " + what + why;
    throw TimedOut(headline + list_states(where), timeout, missing, where,
                   request ? name(request->sends_ ? Op::Send : Op::Recv) : name(Op::Sync), -1, stacks);
}

void Messages::sync(double timeout, const CallOptions& options) {
    {
        std::lock_guard lock(mutex_);
        if (!unfinished()) return;
    }
    wait_until(timeout, [&] { return !unfinished(); }, nullptr, options);
}

// Waits at most `timeout` seconds until done(), which a message from `from` with `tag` may bring about.
template <class Done> void Messages::await(int from, int tag, double timeout, Done&& done) {
    const auto receive =
        request(Receive::of_any_length(Wanted::Any, from, tag));  // for the reports: it receives nothing
    struct EndTrace {
        Messages& messages;
        Request& receive;
        ~EndTrace() {
            if (messages.fork_.is_child()) return;
            std::lock_guard lock(messages.mutex_);
            messages.end_trace(receive, Request::State::Complete);
        }
    } end{*this, *receive};
    wait_until(timeout, done, receive.get(), {}, AtTimeout::Return);
}

std::optional<Arrival> Messages::await_arrival(int from, int tag, double timeout) {
    std::optional<Arrival> found;
    await(from, tag, timeout, [&] { return bool(found = arrival(from, tag)); });
    return found;
}

void Messages::await_any(const std::vector<std::shared_ptr<Request>>& requests, double timeout) {
    const bool to_itself = [&] {  // which another thread may complete, even if all other ranks have left
        const auto lock = lock_requests();
        return std::ranges::any_of(requests, [&](const auto& r) { return r->peer_ == rank_; });
    }();
    await(to_itself ? rank_ : kAny, kAny, timeout,
          [&] { return std::ranges::any_of(requests, [](const auto& r) { return r->ended(); }); });
}

void Messages::go_on_in_background() {
    if (closing_) return;
    idle_polls_ = 0;
    if (progress_ != Progress::Idle) return;
    waits_changed_ = false;  // there was nothing to do meanwhile
    background_.serve(*this);
    set_progress(Progress::StandsBy);
}

// For a receive that may stay in the ring: senders that wait for it notify the progress thread. Called before this rank
// looks for the message, so that none is missed.
void Messages::listen(const Request& r) {
    if (listens_ || !r.may_be_shorter()) return;
    background_.listen(*this);
    listens_ = true;
}

void Messages::set_progress(Progress now) {
    const bool wakeable = now == Progress::Wakeable;
    if (wakeable != (progress_ == Progress::Wakeable)) own_slot().awaits_progress.store(wakeable);
    progress_ = now;
}

BackgroundWork::Next Messages::advance() noexcept {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return Next::Soon;  // another thread makes progress, perhaps for as long as a large message takes
    const auto over = [&] { return closing_ || group_.failed(); };
    if (!over() && pending()) {
        // Set, sequentially consistent as in notify(), before looking for something to do: so whoever comes later
        // notifies it.
        set_progress(std::exchange(waits_changed_, false) ? Progress::StandsBy
                     : waiting_                           ? Progress::GivesWay
                                                          : Progress::Wakeable);
        try {
            if (progress()) return Next::Again;
            if (progress_ == Progress::Wakeable) take_offers();
        } catch (const Error&) {  // the group has failed, or the segment has no room for a channel: try again later
        } catch (const std::exception&) {  // no memory for a message that nobody receives yet
            fail_group(group_, Cause::PeerLost, rank_, 0,
                       "had no memory for the messages that it had not received yet");
        }
        if (!over() && pending()) return progress_ == Progress::StandsBy ? Next::Soon : Next::Later;
    }
    if (!closing_ && group_.failed()) {
        try {  // the senders of these messages need not wait; nothing is copied but what a sender has begun
            for (int p = 0; p < n_; ++p) fetch_claimed(p);
            if (std::ranges::any_of(incoming_, [](const Incoming& in) { return !in.claimed.empty(); }))
                return Next::Soon;
        } catch (const std::exception&) {  // a channel has been overwritten, or there is no memory for an answer
        }
    }
    if (!over() && ++idle_polls_ <= kIdlePolls) {
        set_progress(Progress::StandsBy);
        return Next::Soon;
    }
    set_progress(Progress::Idle);
    return listens_ && !over() ? Next::Notified : Next::Nothing;
}

std::string Messages::close(double timeout) {
    std::string trouble;
    const auto report = [&](const auto& text) {  // without memory for that, the rest must end all the same
        try {
            if (trouble.empty()) trouble = text();
        } catch (const std::bad_alloc&) {
        }
    };
    auto sends_left = [&] {
        size_t left = 0;
        for (const Outgoing& out : outgoing_) left += out.incomplete();
        return left;
    };
    try {
        if (timeout > 0) wait_until(timeout, [&] { return sends_left() == 0; }, nullptr);
    } catch (const std::exception& e) {
        report([&] { return e.what(); });
    }
    {
        std::lock_guard lock(mutex_);
        if (!receives_.empty())
            report([&] { return std::to_string(receives_.size()) + " receives without a message"; });
        closing_ = true;
        for (int p = 0; p < n_; ++p) {
            try {
                finish_claimed(p);
                cancel_offers(p);
            } catch (const std::exception& e) {  // as when their channel has been overwritten
                report([&] { return e.what(); });
            }
        }
        if (size_t left = sends_left()) report([&] { return std::to_string(left) + " sends not delivered"; });
        const auto end_trace_of = [&](Request& r) { end_trace(r, Request::State::Cancelled); };
        receives_.for_each(end_trace_of);
        arrived_.for_each_awaiting(end_trace_of);
        for (const Outgoing& out : outgoing_) {
            for (auto& r : out.sends) end_trace_of(*r);
            for (auto& [number, r] : out.offered) end_trace_of(*r);
        }
    }
    notify(rank_);
    background_.dismiss(*this);
    std::lock_guard lock(mutex_);  // release the requests, and with them the memory of dropped ones
    receives_.clear();
    for (Outgoing& out : outgoing_) out.drop_all();
    lease_.end();
    return trouble;
}

void Request::wait(std::optional<double> timeout, const CallOptions& options) {
    await_end(timeout, options);
    if (cancelled()) throw Closed("the operation was cancelled");
    if (!failed()) return;
    raised_ = true;
    throw Mismatch(failure_, {}, {}, {}, -1);
}

void Request::await_end(std::optional<double> timeout, const CallOptions& options) {
    if (ended()) return;
    auto messages = messages_.lock();
    if (messages && messages->fork_.is_child())
        throw Closed("this message belongs to the parent of this forked process");
    if (!messages) throw Closed(kClosedTooEarly);
    messages->wait_until(timeout, [&] { return ended(); }, this, options);
}

void Request::await_any(const std::vector<std::shared_ptr<Request>>& requests, double timeout) {
    const auto of = [](const std::shared_ptr<Request>& r) { return r->messages_.lock(); };
    const auto messages = requests.empty() ? nullptr : of(requests.front());
    if (!messages || messages->fork_.is_child()) return;
    const bool together = std::ranges::all_of(requests, [&](const auto& r) { return of(r) == messages; });
    messages->await_any(requests, together ? timeout : std::min(timeout, kMoment));
}

bool Request::done() {
    if (ended()) return true;
    auto messages = messages_.lock();
    if (!messages || messages->fork_.is_child()) return true;  // wait throws
    std::lock_guard lock(messages->mutex_);
    if (messages->closing_) return true;
    messages->progress();
    if (!ended()) messages->take_offers();  // as in probe
    return ended() || messages->group_.failed();
}

void Request::cancel() {
    if (const auto messages = messages_.lock()) messages->cancel(shared_from_this());
}

void Request::return_message() {
    if (const auto messages = messages_.lock()) messages->return_message(*this);
}

}  // namespace rankwise
