// The calls that a rank makes in a group: what the ranks compare, and what observers see of the current call.
#pragma once
#include "memory/group_segment.hpp"
#include "sync/embedding.hpp"
#include "trace/trace.hpp"

namespace rankwise {

class CallLog {
public:
    // part: as in Settings.
    CallLog(Segment& segment, GroupSegment& group, int rank, bool part);

    // What is known of one call.
    struct Current {
        Call call{};
        CallOptions options{};
        uint64_t number = 0;   // among the calls begun
        uint64_t history = 0;  // digest of it and all calls before
        uint64_t bytes = 0;
        uint64_t began = 0, waited = 0;  // ticks
        TraceEntry* entry = nullptr;
        bool traced = true;
        bool resumed = false;
    };
    const Call& call() const { return now_.call; }  // the current one
    Op op() const { return now_.call.op(); }
    const CallOptions& options() const { return now_.options; }
    uint64_t number() const { return now_.number; }       // among the calls begun; resume() sets it back
    uint64_t begun() const { return own_.calls.load(); }  // how many calls; for any thread
    uint64_t history() const { return now_.history; }
    // Whether the call has only to be completed: whoever leaves it may complete it later.
    bool resumed() const { return now_.resumed; }
    bool part() const { return tracer_.part(); }
    void set_counted(bool now) { tracer_.set_counted(now); }

    // Publish the description of the next call, which other ranks show if the calls differ.
    void describe(const Description& description);
    // A call on `bytes` of data begins.
    void begin(const Call& call, uint64_t bytes, const CallOptions& options);
    // Correct the number of bytes that begin() gave.
    void set_bytes(uint64_t bytes) { now_.bytes = bytes; }
    // Enter the call into the trace, unless it has its entry.
    void trace() {
        if (!now_.traced) enter();
    }
    // The call has ended, normally or by an exception.
    void end();
    // What is left of the call is done later: the calls between may be others.
    Current suspend() {
        now_.options = {};
        return now_;
    }
    void resume(const Current& call, const CallOptions& options) {
        now_ = call;
        now_.options = options;
        now_.resumed = true;
    }
    // All ranks have joined: number the program's operations from 1.
    void restart_numbering();

    class Wait;

private:
    void enter();
    void publish_bytes();

    GroupSegment& group_;
    PeerSlot& own_;
    Tracer tracer_;
    Current now_;
    uint64_t unpublished_bytes_ = 0;    // not yet added to the rank's record
    uint64_t history_ = 0, begun_ = 0;  // of all calls
};

// Measures a wait that did not end within the first polls, and publishes its duration for observers.
class CallLog::Wait {
public:
    explicit Wait(CallLog& log);
    ~Wait() { publish(); }
    Wait(const Wait&) = delete;
    void publish();

private:
    CallLog& log_;
    uint64_t since_;
    const ForkMark fork_;
};

}  // namespace rankwise
