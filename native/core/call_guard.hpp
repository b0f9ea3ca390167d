// How a communicator begins and ends a collective call.
#pragma once
#include <exception>
#include <utility>

#include "collectives/collectives.hpp"
#include "comm.hpp"

namespace rankwise {

inline const uint8_t* bytes(const void* p) { return static_cast<const uint8_t*>(p); }
inline uint8_t* bytes(void* p) { return static_cast<uint8_t*>(p); }

// Begins and ends a collective call; or begins one that is only started, if its single step can be posted now.
class Comm::CallGuard {
public:
    // piece: as collectives::bytes_of_only_step. If the call is only started, Comm::start_call holds its Use already.
    CallGuard(Comm& comm, const Call& call, uint64_t bytes = 0, const CallOptions& options = {},
              size_t piece = collectives::kSeveral)
        : comm_(comm), call_(options.started ? comm.memory_->no_use() : comm.begin_call(options)) {
        CallLog& log = comm.transport_.log;
        must_run_later_ =
            options.started && (piece == collectives::kSeveral || !comm.transport_.steps.may_start(piece));
        if (must_run_later_) {
            options.started->must_run_later = true;
            options.started->bytes = bytes;
            return;
        }
        if (!options.description.none()) log.describe(options.description);
        if (comm.group_.failed()) comm.failures_.refuse(call, options);
        log.begin(call, bytes, options);
        comm.transport_.started = options.started;
    }
    ~CallGuard() {
        if (must_run_later_) return;
        Started* const started = std::exchange(comm_.transport_.started, nullptr);
        if (started && started->rest) {
            comm_.transport_.steps.started();
            started->call = comm_.transport_.log.suspend();
            return;
        }
        comm_.transport_.end_call();
    }
    // Runs the steps of the call, unless it was to be started and cannot be now.
    template <class Steps> void run(const Steps& steps) const {
        if (!must_run_later_) comm_.or_fail_group(steps);
    }

private:
    Comm& comm_;
    GroupMemory::Use call_;
    bool must_run_later_ = false;
};

// Other ranks may wait for what these steps do, so if they throw, the group fails; unless all ranks throw.
template <class Steps> void Comm::or_fail_group(const Steps& steps) {
    try {
        steps();
    } catch (const Unsupported&) {
        throw;
    } catch (const std::exception& e) {
        fail_in_call(e);
        throw;
    }
}

}  // namespace rankwise
