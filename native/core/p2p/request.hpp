// What a receive accepts, and one send or receive.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/aligned_memory.hpp"
#include "base/linked_list.hpp"
#include "base/sizes.hpp"
#include "sync/embedding.hpp"
#include "trace/trace.hpp"

namespace rankwise {

class Messages;
struct Message;

inline constexpr int kAny = -1;       // any source or any tag
inline constexpr int kBlockTag = -2;  // of messages within a collective; a receive with any tag does not match it

inline bool tag_matches(int wanted, int tag) { return wanted == tag || (wanted == kAny && tag >= 0); }

std::string message_text(uint64_t count, DType dtype, int tag);  // a message: "3 x float32 with tag 0"

// What a receive accepts.
enum class Wanted : uint8_t {
    Exactly,  // an array of the receive's count and dtype
    UpTo,     // an array of any dtype that fits into the receive's memory
    Object,
    Any,  // an array that fits into the receive's memory, and whatever else in memory of its own
};

// Some of the bytes of a message, in the sender's memory.
struct Stretch {
    const uint8_t* data;
    uint64_t bytes;
};

// Calls f(data, bytes) for what these bytes of the stretches occupy in each of them.
template <class F> void for_stretches(const std::vector<Stretch>& stretches, uint64_t at, uint64_t bytes, F&& f) {
    for (const Stretch& stretch : stretches) {
        if (at >= stretch.bytes) {
            at -= stretch.bytes;
            continue;
        }
        const uint64_t here = std::min(bytes, stretch.bytes - at);
        if (here) f(stretch.data + at, here);
        bytes -= here;
        if (!bytes) return;
        at = 0;
    }
}

// A message to a rank: an array, or an object. It does not own the memory.
struct Send {
    // Synchronous: the send is complete when a receive has matched the message.
    enum class Mode : uint8_t { Standard, Synchronous };
    const void* data;
    uint64_t count;
    DType dtype;
    int to, tag;
    Mode mode = Mode::Standard;
    bool object = false;
    std::span<const Stretch> stretches{};  // in place of `data`, if it is not contiguous
    // The stretches, one after the other.
    static Send of_object(std::span<const Stretch> stretches, int to, int tag, Mode mode = Mode::Standard) {
        Send made{nullptr, 0, DType::U8, to, tag, mode};
        made.object = true;
        for (const Stretch& stretch : stretches) made.count += stretch.bytes;
        if (stretches.size() == 1) made.data = stretches[0].data;
        else made.stretches = stretches;
        return made;
    }
    uint64_t bytes() const { return checked_bytes(count, itemsize(dtype)); }
};

// What a receive is for, and the memory for it. `from` and `tag` may be kAny. count and dtype: what is expected.
struct Receive {
    void* data;
    uint64_t count;
    DType dtype;
    int from, tag;
    Wanted wanted = Wanted::Exactly;
    // In memory that the engine allocates.
    static Receive of_any_length(Wanted wanted, int from, int tag) {
        return {nullptr, 0, DType::U8, from, tag, wanted};
    }
    uint64_t bytes() const { return checked_bytes(count, itemsize(dtype)); }
};

// A message that has arrived and not been received.
struct Arrival {
    int source, tag;
    uint64_t count;
    DType dtype;
    bool object;
    uint64_t number = 0;  // in the order of arrival at this rank
};

// One send or receive.
class Request : public std::enable_shared_from_this<Request> {
public:
    // Waits until it is complete, at most `timeout` seconds, by default the communicator's. After TimedOut the request
    // is still in progress.
    void wait(std::optional<double> timeout, const CallOptions& options = {});
    // The same, but without raising the error of a receive whose message does not fit it.
    void await_end(std::optional<double> timeout, const CallOptions& options = {});
    bool done();
    bool has_result() const { return state() >= State::Failed; }
    bool cancelled() const { return state() == State::Cancelled; }
    bool sends() const { return sends_; }
    // Waits until one of the requests of a communicator is complete, at most `timeout` seconds. If they are of several
    // communicators, it waits only a moment.
    static void await_any(const std::vector<std::shared_ptr<Request>>& requests, double timeout);
    // Cancels it, so that the caller may free its memory; see Messages::cancel. Does nothing to a complete one.
    void cancel();
    void return_message();  // see Messages::return_message
    // Of a complete request: whether the message did not fit, and whether `wait` has raised that error.
    bool failed() const { return state() == State::Failed; }
    bool raised() const { return raised_; }
    // The caller drops the request, which goes on. owner: what owns the memory; it stays alive with the request.
    void keep(std::shared_ptr<void> owner) { keep_ = std::move(owner); }
    // Of a complete receive: the message's source, tag, count and dtype.
    int source() const { return peer_; }
    int tag() const { return tag_; }
    uint64_t count() const { return count_; }
    DType dtype() const { return dtype_; }
    bool object() const { return object_; }
    Arrival arrival() const { return {peer_, tag_, count_, dtype_, object_, arrival_}; }
    // Of a complete receive of any message: whether it is not in the caller's memory.
    bool overflows() const { return overflows_; }
    // Of a complete receive that accepts any length: the message, once.
    Memory take_memory() { return std::move(memory_); }

private:
    friend class Messages;
    friend class PostedReceives;
    enum class State : uint8_t {
        Waiting,  // send: nothing of it is in the ring; receive: no message has matched it
        Offered,  // send: the header with the address of its data is in the ring
        Writing,  // send: the header that precedes its data is in the ring
        Matched,  // receive: it has its message
        // In this order: from here on it has ended, for its caller and for the engine, and from Failed on it has a
        // result.
        Cancelled,
        Failed,  // receive: its message does not fit it
        Complete,
    };
    State state() const { return state_.load(std::memory_order_acquire); }
    void become(State next) { state_.store(next, std::memory_order_release); }
    bool ended() const { return state() >= State::Cancelled; }
    uint64_t bytes() const { return count_ * itemsize(dtype_); }
    bool in_own_memory() const { return wanted_ == Wanted::Object || overflows_; }
    // Whether the message may be shorter than the caller's memory.
    bool may_be_shorter() const { return wanted_ == Wanted::UpTo || (wanted_ == Wanted::Any && data_); }
    // Whether this message, which the receive accepts, does not go to the caller's memory.
    bool needs_own_memory(uint64_t bytes, bool object) const {
        return in_own_memory() || (wanted_ == Wanted::Any && (object || bytes > this->bytes()));
    }
    template <class F> void for_stretches(uint64_t at, uint64_t bytes, F&& f) const {
        if (stretches_.empty()) return f(data_ + at, bytes);
        rankwise::for_stretches(stretches_, at, bytes, f);
    }

    std::weak_ptr<Messages> messages_;
    std::shared_ptr<void> keep_;  // what owns the memory, if the caller has dropped the request
    std::atomic<State> state_{State::Waiting};
    bool sends_ = false;
    bool object_ = false;              // the message is an object
    Wanted wanted_ = Wanted::Exactly;  // receive
    bool overflows_ = false;           // receive of any message: it has matched one that goes to memory of its own
    int peer_ = 0;
    int tag_ = 0;
    DType dtype_ = DType::U8;
    uint64_t count_ = 0;
    uint8_t* data_ = nullptr;
    std::vector<Stretch> stretches_;    // send: the data, if it is not contiguous
    std::shared_ptr<Message> message_;  // receive: the message that it has matched, until it is complete
    Memory memory_;             // send that goes on for a cancelled one: its data; receive of any length: the message
    bool synchronous_ = false;  // send: it is complete only when a receive has matched its message
    uint64_t sent_ = 0;         // send: bytes written to the ring, or copied from the beginning
    int offer_ = -1;            // send: the number under which its data is offered
    int slot_ = -1;             // send: where the receiver marks that it copies the data
    std::string failure_;       // receive: how the message differs from what the receive expects
    std::atomic<bool> raised_{false};
    uint64_t arrival_ = 0;  // receive: the number_ of its message
    TraceEntry* entry_ = nullptr;
    bool reserved_ = false;     // it counts among the messages that have an entry although nobody waits for them
    uint64_t began_ = 0;        // ticks; 0 if it was started without waiting for it
    uint64_t waits_since_ = 0;  // ticks; 0 until a thread waits for longer than the first polls
    uint64_t number_ = 0;       // receive: in the order posted
    Links<Request> in_all_, in_queue_;  // receive: until it is complete, and until it has matched a message
    std::shared_ptr<Request> held_;     // receive: itself, while it is in a list
};

}  // namespace rankwise
