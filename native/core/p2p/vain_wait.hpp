// A rank that waits for a message and can do nothing else until it comes, and the proof that some of them never come.
//
// Such a wait is published with two times. `vain_since`: a time after which the rank has done nothing. The rank's only
// request is this receive, it has no data to send (vain() below), and no other thread and no signal can make its
// program act (resting_threads, whose two equal results enclose this time). `vain_until`: a later time at which it
// looked for the message, in vain. Both are 0 and meaningless once the wait has ended.
//
// Take a cycle of ranks, each of which waits for a message from the next one. Let T be the latest vain_since. If no
// vain_since has changed while all of them were read, all ranks of the cycle were in these waits at T, and none has
// sent anything after T: only the rank itself can send its messages, and it does not before its wait ends. If also each
// has looked at T or later, then nothing that was sent before T is still on its way. So no wait of the cycle ever ends,
// except by its timeout, by an error, or by a signal or a debugger that ends the program.
//
// Not seen in this way, and left to the timeout: waits for any rank, with a limit shorter than the timeout with which
// the group was made, in collectives or for sends to be received; cycles over several groups; ranks whose process has
// pending requests, a thread that may act (also the threads of spawn and Pool), a signal handler, or no
// /proc/self/task/TID/syscall.
#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.hpp"
#include "memory/group_segment.hpp"
#include "sync/forks.hpp"
#include "sync/resting_threads.hpp"

namespace rankwise {

class VainWait {
public:
    static constexpr std::chrono::duration<double> kFirst{0.3}, kInterval{0.15};

    explicit VainWait(PeerSlot& own) : own_(own) {}
    ~VainWait() {
        if (published_ && !fork_.is_child()) own_.vain_since.store(0);
    }
    VainWait(const VainWait&) = delete;
    // spent: how long the wait has lasted. vain: looks for the message, and whether only that can make the rank act.
    // Returns whether it has looked, and the wait is published.
    template <class Vain> bool check(std::chrono::duration<double> spent, const Vain& vain) {
        if (spent < next_) return false;
        next_ = spent + kInterval;
        const int64_t looked = clock_ns(CLOCK_MONOTONIC);
        std::optional<std::string> others = vain() ? resting_threads() : std::nullopt;
        published_ = others && others == others_;
        if (!published_) since_ = clock_ns(CLOCK_MONOTONIC);
        others_ = std::move(others);
        own_.vain_until.store(looked);
        own_.vain_since.store(published_ ? since_ : 0);
        return published_;
    }

private:
    PeerSlot& own_;
    const ForkMark fork_;
    std::chrono::duration<double> next_ = kFirst;
    std::optional<std::string> others_;  // at the last look
    int64_t since_ = 0;
    bool published_ = false;
};

}  // namespace rankwise
