// Operations that a call only starts, and the communicator's stream.
#include "started.hpp"

#include "call_guard.hpp"
#include "stream/events.hpp"
#include "stream/function_task.hpp"

namespace rankwise {

std::shared_ptr<Task> Comm::start_call(std::shared_ptr<StartedCall> call, const CodePlace& place) {
    const OpenLease lease(*this);
    std::string site = place.code ? "" : Stream::call_site(transport_.program);
    if (stream_.only_begun() && !group_.failed() && memory_->try_begin()) {
        // Not begin_call, which would wait for the queue: what is in it has posted its steps already.
        const GroupMemory::Use in_order = memory_->call_with_lock();
        if (call->begin())
            return call->complete() ? Stream::finished(call) : stream_.enqueue(call, std::move(site), place);
    }
    const Runs runs = call->overlaps() ? Runs::AtOnce : Runs::WhenAwaited;
    return defer(std::move(call), runs, std::move(site), place);
}

// Code of the program that makes several calls.
class Comm::Body final : public FunctionTask {
public:
    Body(Comm& comm, std::function<void()> body) : FunctionTask(std::move(body), CodeOf::Program), comm_(comm) {}

private:
    bool for_waiters() const override { return true; }
    bool may_run() const override { return !comm_.memory_->in_own_call(); }
    void run(const CallOptions& options) override {
        comm_.deferred_begins();
        options.before_waiting();
        FunctionTask::run(options);
    }

    Comm& comm_;
};

std::shared_ptr<Task> Comm::start_body(std::function<void()> body) {
    const OpenLease lease(*this);
    return defer(std::make_shared<Body>(*this, std::move(body)), Runs::WhenAwaited,
                 Stream::call_site(transport_.program));
}

// Queues what has not begun, for whoever waits for it, or for a thread: at once, so that it overlaps with the program,
// or when a peer waits for this rank.
std::shared_ptr<Task> Comm::defer(std::shared_ptr<Task> task, Runs runs, std::string site, const CodePlace& place) {
    stand_in_.listen();
    task = stream_.enqueue(std::move(task), std::move(site), place);
    if (transport_.steps.announce_deferred() || runs == Runs::AtOnce) hurry();
    return task;
}

// Called by what was deferred, when it begins.
void Comm::deferred_begins() {
    group_.peers[rank()].deferred.store(Deferred::None);
    if (!stream_.last_not_begun() && transport_.steps.announce_deferred()) hurry();
}

// A thread runs what is deferred, if the system gives one. If not, whoever waits for it runs it, and a peer that
// waits for this rank calls for it again (StandIn).
void Comm::hurry() noexcept {
    try {
        stream_.hurry();
    } catch (const std::exception&) {
    }
}

Comm::StandIn::StandIn(Comm& comm)
    : comm_(comm), thread_(ProgressThread::of(*comm.segment_, comm.members_[size_t(comm.rank())])) {}

Comm::StandIn::~StandIn() { stop(); }

void Comm::StandIn::listen() {
    if (listens_) return;
    thread_.listen(*this);  // may throw; twice does no harm
    listens_ = true;
}

void Comm::StandIn::stop() {
    if (!comm_.fork_.is_child() && listens_.exchange(false)) thread_.dismiss(*this);
}

bool Comm::StandIn::take_notification() noexcept {
    std::atomic<Deferred>& deferred = comm_.group_.peers[comm_.rank()].deferred;
    return deferred.load() == Deferred::Awaited && deferred.exchange(Deferred::None) == Deferred::Awaited;
}

BackgroundWork::Next Comm::StandIn::advance() noexcept {
    try {
        comm_.stream_.hurry();
    } catch (const std::exception& e) {  // the system gives no thread: no peer may wait forever
        fail_group(comm_.group_, Cause::PeerLost, comm_.rank(), comm_.transport_.log.begun(),
                   {"could not run an operation that it had started: ", e.what()});
    }
    return Next::Notified;
}

// The rest of an operation whose step this rank has posted.
void Comm::complete(Started& started, const CallOptions& options) {
    const GroupMemory::Use call = begin_call(options);
    struct End {
        Transport& transport;
        bool later = false;
        ~End() {
            if (later) return;
            transport.steps.completed();
            transport.end_call();
        }
    } end{transport_};
    transport_.log.resume(started.call, options);
    try {
        started.rest();
    } catch (const Interrupted&) {
        end.later = true;
        started.call = transport_.log.suspend();
        throw;
    } catch (const std::exception& e) {
        fail_in_call(e);
        throw;
    }
}

std::shared_ptr<Task> Comm::submit(std::function<void()> body, CodeOf whose) {
    check_open();
    return stream_.submit(std::move(body), whose, Stream::call_site(transport_.program));
}

void Comm::record_event(uint64_t event) {
    const OpenLease lease(*this);
    events::mark(event);  // throws if there is no such event, before anything is queued
    const auto check_group = [this] {
        if (group_.failed()) failures_.throw_failure(name(Op::None));
    };
    events::record(event, stream_.idle() && !group_.failed() ? Stream::reached_mark() : stream_.submit(check_group));
}

void Comm::wait_event(uint64_t event) {
    check_open();
    if (const auto mark = events::mark(event); mark && !mark->succeeded())
        stream_.submit([this, mark] { wait_for_mark(mark); });
}

// Runs as a task of the stream. The tasks behind it must not run unless the mark is reached, so otherwise the group
// fails.
void Comm::wait_for_mark(const std::shared_ptr<Task>& mark) {
    const OpenLease lease(*this);
    const Waiter waiter(timeout());
    const auto late = [&] { return waiter.left().count() < 0; };
    switch (stream_.wait_for(mark, [&] { return group_.failed() || late(); })) {
    case Stream::WaitResult::Reached: return;
    case Stream::WaitResult::Closing: return;  // no task behind it will run
    case Stream::WaitResult::Failed:
        return abort("waited, before its next operation, for an event that can no longer be reached");
    case Stream::WaitResult::Stopped: break;
    }
    if (late()) fail_group(group_, Cause::TimedOut, rank(), transport_.log.begun(), std::to_string(rank()));
}

void Comm::sync_stream() {
    const OpenLease lease(*this);
    stream_.sync(timeout());
    if (group_.failed()) failures_.throw_failure(name(Op::None));
}

void Comm::sync() {
    sync_stream();
    messages_->sync(timeout());
}

}  // namespace rankwise
