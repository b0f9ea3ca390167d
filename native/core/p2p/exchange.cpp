// Sends and receives of one thread at the same time.
#include <exception>

#include "p2p/messages.hpp"

namespace rankwise {

namespace {

// Calls f, and keeps the first of the errors that say that a message does not fit its receive. Another error may
// follow from that one.
template <class F> void keeping(std::exception_ptr& error, F&& f) {
    try {
        f();
    } catch (const Mismatch&) {
        if (!error) error = std::current_exception();
    } catch (const Error&) {
        if (error) std::rethrow_exception(error);
        throw;
    }
}

}  // namespace

// Polls for a moment for messages that these receives match and that their senders can copy without this rank.
void Messages::let_senders_copy(std::span<const Receive> receives, const CallOptions& options) {
    size_t shared = 0;
    for (int i = policy_.first_polls; i >= 0 && shared < receives.size(); --i) {
        const auto lock = lock_requests(options);
        shared = 0;
        for (const Receive& each : receives) {
            if (each.from == rank_) continue;
            pull(each.from);
            for (const auto& message : incoming_[each.from].claimed) shared += begin_fetch(*message);
        }
        cpu_relax();
    }
}

Arrival Messages::exchange(std::span<const Send> sends, std::span<const Receive> receives, const CallOptions& options,
                           const std::function<void()>& meanwhile) {
    const uint64_t most = most_in_ring();
    const auto sent_at_once = [&](const Send& each) {
        return write_now(each, options, most) || (await_room(each, options, most) && write_now(each, options, most));
    };
    const bool all_short = std::ranges::all_of(receives, [&](const Receive& each) { return each.bytes() <= most; });
    std::exception_ptr error;
    Arrival last{};
    size_t sent = 0;
    std::vector<std::pair<Arrival, const void*>> received;
    if (all_short && receives.size() > 1) received.reserve(receives.size());
    while (all_short && sent < sends.size() && sent_at_once(sends[sent])) ++sent;
    if (all_short && sent == sends.size()) {
        if (meanwhile) meanwhile();
        try {
            for (const Receive& each : receives)
                keeping(error, [&] {
                    last = receive_now(each, options, most);
                    if (receives.size() > 1) received.emplace_back(last, each.data);
                });
        } catch (...) {
            if (!fork_.is_child())
                for (const auto& [arrival, data] : received) return_message(arrival, data);
            throw;
        }
    } else {  // the receives come first, so that their messages go directly to their memory
        std::vector<std::shared_ptr<Request>> started;
        started.reserve(sends.size() + receives.size());
        try {
            for (const Receive& each : receives) started.push_back(recv(each, options, Caller::WaitsAtOnce));
            for (; sent < sends.size(); ++sent)
                if (!sent_at_once(sends[sent])) started.push_back(send(sends[sent], options, Caller::WaitsAtOnce));
            if (meanwhile) {
                let_senders_copy(receives, options);
                meanwhile();
            }
            try {
                for (const auto& request : started) keeping(error, [&] { request->wait(std::nullopt, options); });
            } catch (const TimedOut&) {
                for (const auto& request : started) cancel(request);
                if (!std::ranges::all_of(started, [](const auto& r) { return r->has_result(); })) throw;
            }
        } catch (...) {
            cancel_all(started);
            throw;
        }
        if (!receives.empty()) last = started[receives.size() - 1]->arrival();
    }
    if (error) std::rethrow_exception(error);
    return last;
}

}  // namespace rankwise
