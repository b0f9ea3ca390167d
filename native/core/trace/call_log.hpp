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

    const Call& call() const { return call_; }  // the current one
    Op op() const { return call_.op(); }
    const CallOptions& options() const { return options_; }  // of the current call
    uint64_t calls() const { return calls_; }                // begun so far: the number of the current one
    uint64_t history() const { return history_; }            // digest of all calls so far
    bool part() const { return tracer_.part(); }
    void set_counted(bool now) { tracer_.set_counted(now); }

    // Publish the description of the next call, which other ranks show if the calls differ.
    void describe(const Description& description);
    // A call on `bytes` of data begins.
    void begin(const Call& call, uint64_t bytes, const CallOptions& options);
    // Correct the number of bytes that begin() gave.
    void set_bytes(uint64_t bytes) { bytes_ = bytes; }
    // Enter the call into the trace, unless it has its entry.
    void trace() {
        if (!traced_) enter();
    }
    // The call has ended, normally or by an exception.
    void end();
    // All ranks have joined: number the program's operations from 1.
    void restart_numbering();

    class Wait;

private:
    void enter();
    void publish_bytes();

    GroupSegment& group_;
    PeerSlot& own_;
    Tracer tracer_;
    TraceEntry* entry_ = nullptr;  // of the current call
    bool traced_ = true;
    uint64_t began_ = 0;              // ticks
    uint64_t waited_ = 0;             // ticks in the current call
    uint64_t bytes_ = 0;              // of the current call
    uint64_t unpublished_bytes_ = 0;  // not yet added to the rank's record
    Call call_{};
    CallOptions options_{};
    uint64_t history_ = 0;
    uint64_t calls_ = 0;
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
