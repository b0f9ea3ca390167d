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
    here.number.store(calls_ + 1, std::memory_order_release);
}

void CallLog::begin(const Call& call, uint64_t bytes, const CallOptions& options) {
    call_ = call;
    options_ = options;
    ++calls_;
    const uint64_t amount = options.description.none() ? call.amount : call.amount ^ options.description.digest();
    history_ = mix(mix(history_, call.what), amount);
    own_.calls.store(calls_, std::memory_order_relaxed);
    bytes_ = bytes;
    waited_ = 0;
    traced_ = false;
    if (bytes >= kTimedFrom || tracer_.measured()) enter();
}

void CallLog::enter() {
    began_ = ticks();
    entry_ = tracer_.begin(call_.what, group_.number, 0, calls_, bytes_, began_);
    traced_ = true;
}

void CallLog::end() {
    trace();
    const bool measured = tracer_.measured(), quick = bytes_ < kTimedFrom && !waited_ && !measured;
    const uint64_t now = quick ? began_ : ticks();
    tracer_.end(entry_, now, waited_, group_.failed() ? kFailed : 0);
    if (measured) tracer_.count(call_.op(), now - began_, waited_, bytes_);
    unpublished_bytes_ += bytes_;
    if (unpublished_bytes_ >= kTimedFrom) publish_bytes();
    options_ = {};
}

void CallLog::publish_bytes() {
    tracer_.moved(unpublished_bytes_);
    unpublished_bytes_ = 0;
}

void CallLog::restart_numbering() {
    calls_ = 0;
    own_.calls.store(0, std::memory_order_relaxed);
}

CallLog::Wait::Wait(CallLog& log) : log_(log), since_(ticks()) {
    log.trace();
    if (is_engine_thread && log.entry_) log.entry_->set(kOnStream);
}

void CallLog::Wait::publish() {
    if (fork_.is_child()) return;
    const uint64_t now = ticks(), waited = now - since_;
    since_ = now;
    log_.waited_ += waited;
    log_.tracer_.waited(waited);
    if (log_.entry_) log_.entry_->waited.store(log_.waited_, std::memory_order_relaxed);
    if (log_.unpublished_bytes_) log_.publish_bytes();
}

}  // namespace rankwise
