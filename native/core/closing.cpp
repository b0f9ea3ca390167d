// How a communicator is closed: no call of this rank may be using the group's memory when it is released.
#include <unistd.h>

#include "comm.hpp"
#include "sync/forks.hpp"

namespace rankwise {

namespace {

constexpr double kUserCodeTimeout = 0.2;      // seconds that close waits for a function of the program that runs on the stream
constexpr std::chrono::seconds kToNotice{5};  // for a call to notice that the group has failed

}  // namespace

// Whether a call is running: not only that a thread is between lock() and unlock().
bool Comm::call_is_running() const { return nested_.load() || (busy_.load() && lock_owner_.load() == std::thread::id()); }

// Waits until `running` is false. If that takes until `until`, fails the group, and so ends the call, and sets `trouble`.
// Returns false if a call is running even then.
template <class Running> bool Comm::end_calls(Clock::time_point until, std::string& trouble, const Running& running) {
    for (; running(); usleep(500)) {
        const auto now = Clock::now();
        if (!group_.failed() && now > until) {
            trouble = "an operation was still in progress and was abandoned";
            fail_group(group_, Cause::PeerLost, rank(), group_.peers[rank()].calls.load(), "closed the group while one of its own calls was in progress");
        }
        if (group_.failed() && !call_is_running()) break;  // what is left on the stream will not run
        if (now > until + kToNotice) return false;
    }
    return true;
}

std::optional<std::string> Comm::close(double timeout) noexcept {
    if (closing_.exchange(true)) return std::nullopt;
    if (forks_ != forks_so_far()) {
        closed_ = true;
        return std::nullopt;
    }
    std::string trouble;
    try {
        // Operations in progress, also those of other threads, may finish within the timeout; then the group is failed.
        const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(timeout, 1e9)));
        const auto in_progress = [&] { return call_is_running() || !stream_.idle_but_for_caller(); };
        const bool pending = in_progress();
        end_calls(until, trouble, in_progress);
        closed_ = true;
        const bool ended = end_calls(until, trouble, [&] { return call_is_running(); });  // a call that began just before that
        if (pending && trouble.empty() && group_.failed()) trouble = "an operation was still in progress when the group failed";
        try {
            if (!pending && ended) protocol_.compare_last();
        } catch (const Error& e) {
            trouble = e.what();
        }
        if (!stream_.close(kUserCodeTimeout)) trouble = "a function of the program on the communicator's stream did not return and was abandoned";
        if (group_.failed()) messages_->close(0);
        else if (std::string left = messages_->close(timeout); !left.empty()) trouble = left;
        PeerSlot& peer_slot = group_.peers[rank()];
        peer_slot.left.store(1);
        wake_all(group_);
        if (!ended) return "a call of another thread did not end and was abandoned, with the group's memory";
        for (int r = 0; r < world_size(); ++r)  // a dead rank cannot detach itself; it is not the last, because this one is still attached
            if (r != rank() && protocol_.ended(r)) group_.detach(r);
        if (group_.detach(rank())) release_group_segment(*segment_, group_offset_);
        buffers_->leave();
    } catch (const std::exception& e) {
        trouble = e.what();
    }
    if (trouble.empty()) return std::nullopt;
    return trouble;
}

}  // namespace rankwise
