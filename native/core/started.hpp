// What a call that is only started leaves behind.
#pragma once
#include <memory>
#include <utility>

#include "comm.hpp"

namespace rankwise {

// A collective that has been started. Either its step is posted and it has only to be completed, or all of it is left.
class Comm::StartedCall : public Task {
public:
    explicit StartedCall(Comm& comm) : comm_(comm) {}
    // Posts its step, if that can be done now. Returns whether it has begun.
    bool begin() {
        call({.started = &started_});
        return !started_.must_run_later;
    }
    bool complete() const { return !started_.must_run_later && !started_.rest; }
    bool overlaps() const {
        return started_.bytes >= (comm_.conditions().oversubscribed ? kOverlappedOnSharedCores : kOverlapped);
    }

private:
    virtual void call(const CallOptions& options) = 0;
    bool for_waiters() const override { return true; }
    bool begun() const override { return bool(started_.rest); }
    bool ready() const override {
        if (comm_.group_.failed()) return true;  // the rest raises the error
        StepRing& ring = comm_.transport_.steps;
        return started_.awaited == Started::kAll ? ring.all_arrived(started_.step)
                                                 : ring.arrived(started_.awaited, started_.step);
    }
    bool may_run() const override { return !comm_.memory_->in_own_call(); }
    void run(const CallOptions& options) override {
        if (begun()) return comm_.complete(started_, options);
        comm_.deferred_begins();
        options.before_waiting();
        call({});
    }
    std::exception_ptr interrupted() const override {
        if (begun() || !comm_.group_.failed()) return nullptr;
        try {
            comm_.failures_.throw_failure(name(Op::None));
        } catch (...) {
            return std::current_exception();
        }
    }

    Comm& comm_;
    Started started_;
};

// With the call, and so in one piece of memory.
template <class Call> class Comm::StartedCallOf final : public StartedCall {
public:
    StartedCallOf(Comm& comm, Call call) : StartedCall(comm), call_(std::move(call)) {}

private:
    void call(const CallOptions& options) override { call_(options); }
    Call call_;
};

template <class Call> std::shared_ptr<Task> Comm::start(Call call, const CodePlace& place) {
    return start_call(std::make_shared<StartedCallOf<Call>>(*this, std::move(call)), place);
}

}  // namespace rankwise
