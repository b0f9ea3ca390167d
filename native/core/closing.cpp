// How a communicator is closed: new calls are turned away, and what is in progress ends, before this rank releases the
// group's memory (memory/group_memory.hpp).
#include "comm.hpp"

namespace rankwise {

namespace {

constexpr std::chrono::microseconds kInterval{500};

}  // namespace

std::optional<std::string> Comm::close(double timeout) noexcept {
    if (closing_.exchange(true)) return std::nullopt;
    if (fork_.is_child()) {
        memory_->close();
        return std::nullopt;
    }
    const GroupMemory::Use lease = memory_->lease();  // with it, Messages::close may still wait after memory_->close()
    const Waiter waiter(timeout);
    std::string trouble;
    const auto attempt = [&](const auto& step) {  // whatever it throws, the steps after it follow
        try {
            step();
        } catch (const std::exception& e) {
            try {
                trouble = e.what();
            } catch (const std::bad_alloc&) {
            }
        }
    };
    bool pending = false, ended = false;
    const bool on_stream = stream_.on_own_thread();
    const bool interrupts = memory_->in_own_call() || (on_stream && !stream_.idle_but_for_caller());
    // What is in progress may finish within the timeout, also for other threads; then the group is failed. What waits
    // for this thread itself cannot: its own call, which a signal handler interrupts, or the queue of the stream, if a
    // function of the program that runs there closes the group.
    attempt([&] {
        const auto in_progress = [&] { return memory_->in_call_of_others() || !(on_stream || stream_.idle()); };
        pending = interrupts || in_progress();
        if (pending && !on_stream) hurry();
        const auto finished = [&] {  // what is left on the stream of a failed group will not run
            return !in_progress() || (group_.failed() && !memory_->in_call_of_others());
        };
        if ((interrupts || !waiter.check_every(kInterval, finished)) && !group_.failed()) {
            fail_group(group_, Cause::PeerLost, rank(), transport_.log.begun(),
                       "closed the group while one of its own calls was in progress");
            trouble = "an operation was still in progress and was abandoned";
        }
    });
    memory_->close();
    attempt([&] {
        ended = Waiter(kToNotice).check_every(kInterval, [&] { return !memory_->in_call_of_others(); }) && !interrupts;
        if (pending && trouble.empty() && group_.failed())
            trouble = "an operation was still in progress when the group failed";
        if (!pending && ended) failures_.compare_last();
    });
    stand_in_.stop();
    attempt([&] {
        if (!stream_.close(kUserCodeTimeout))
            trouble = "a function of the program on the communicator's stream did not return and was abandoned";
    });
    attempt([&] {
        if (group_.failed()) messages_->close(0);
        else if (std::string left = messages_->close(waiter.left().count()); !left.empty()) trouble = left;
    });
    group_.peers[rank()].has_left.store(1);
    if (group_.asleep()) wake_all(group_);
    attempt([&] {
        if (!Waiter(kToNotice).check_every(kInterval, [&] { return !memory_->used_by_others(); }))
            trouble = "a call of another thread did not end; the group's memory is freed when it does";
    });
    attempt([&] { buffers_->leave(); });
    if (trouble.empty()) return std::nullopt;
    return trouble;
}

}  // namespace rankwise
