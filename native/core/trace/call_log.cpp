#include "trace/call_log.hpp"

#include <algorithm>

#include "base/mix.hpp"
#include "sync/engine_thread.hpp"

namespace rankwise {

CallLog::CallLog(Segment& segment, GroupSegment& group, int rank, bool part)
    : group_(group), own_(group.peers[rank]), tracer_(segment, group.member()[rank], part) {}

void CallLog::describe(const Description& description) {
    LastDescription& here = own_.last_description;
    here.number.store(LastDescription::kBeingWritten, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    here.operation.store(uint32_t(description.operation), std::memory_order_relaxed);
    here.dims.store(uint32_t(description.dims), std::memory_order_relaxed);
    for (int i = 0; i < std::min(description.dims, LastDescription::kDims); ++i)
        here.dim[i].store(description.dim[i], std::memory_order_relaxed);
    here.number.store(begun_ + 1, std::memory_order_release);
}

void CallLog::begin(const Call& call, uint64_t bytes, const CallOptions& options) {
    const uint64_t amount = options.description.none() ? call.amount : call.amount ^ options.description.digest();
    history_ = mix(mix(history_, call.what), amount);
    // One by one: a copy of them all would read what has just been stored in smaller pieces, which takes 10 ns.
    now_.call = call;
    now_.options = options;
    now_.number = ++begun_;
    now_.history = history_;
    now_.bytes = bytes;
    now_.began = now_.waited = 0;
    now_.entry = nullptr;
    now_.traced = now_.resumed = false;
    own_.calls.store(begun_, std::memory_order_relaxed);
    if (bytes >= kTimedFrom || tracer_.measured()) enter();
}

void CallLog::enter() {
    now_.began = ticks();
    now_.entry = tracer_.begin(now_.call.what, group_.number, 0, now_.number, now_.bytes, now_.began);
    now_.traced = true;
}

void CallLog::end() {
    trace();
    const bool measured = tracer_.measured(), quick = now_.bytes < kTimedFrom && !now_.waited && !measured;
    const uint64_t ended = quick ? now_.began : ticks();
    tracer_.end(now_.entry, ended, now_.waited, group_.failed() ? kFailed : 0);
    if (measured) tracer_.count(now_.call.op(), ended - now_.began, now_.waited, now_.bytes);
    unpublished_bytes_ += now_.bytes;
    if (unpublished_bytes_ >= kTimedFrom) publish_bytes();
    now_.options = {};
    now_.resumed = false;
}

void CallLog::publish_bytes() {
    tracer_.moved(unpublished_bytes_);
    unpublished_bytes_ = 0;
}

void CallLog::restart_numbering() {
    begun_ = now_.number = 0;
    own_.calls.store(0, std::memory_order_relaxed);
}

CallLog::Wait::Wait(CallLog& log) : log_(log), since_(ticks()) {
    log.trace();
    if (is_engine_thread && log.now_.entry) log.now_.entry->set(kOnStream);
}

void CallLog::Wait::publish() {
    if (fork_.is_child()) return;
    const uint64_t now = ticks(), waited = now - since_;
    since_ = now;
    log_.now_.waited += waited;
    log_.tracer_.waited(waited);
    if (TraceEntry* const entry = log_.now_.entry) entry->waited.store(log_.now_.waited, std::memory_order_relaxed);
    if (log_.unpublished_bytes_) log_.publish_bytes();
}

}  // namespace rankwise
