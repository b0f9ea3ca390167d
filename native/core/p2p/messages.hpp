// Messages between two ranks: a ring of bytes for each (source, destination) that has communicated, and this rank's sends
// and receives that are in progress.
//
// A send copies at once into the ring what fits (eager). A thread that waits for a request makes progress on the rest,
// and on receives without a message; so does a progress thread, which starts with the first request that no thread waits
// for, and sleeps while there is nothing to move. A large message whose receive is already posted goes directly into the
// receiver's memory (rendezvous.cpp). Messages match by (source, tag) in the order sent. A message that arrives before its
// receive is kept in this rank's private memory, so it never blocks the next one, and two ranks that send large messages
// to each other both make progress.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "memory/group_memory.hpp"
#include "p2p/channel.hpp"
#include "stream/stream.hpp"
#include "sync/forks.hpp"
#include "transport/slot_protocol.hpp"

namespace rankwise {

class Messages;

inline constexpr int kAny = -1;  // any source or any tag

std::string message_text(uint64_t count, DType dtype, int tag);  // a message: "3 x float32 with tag 0"

// A message that has arrived and not been received.
struct Arrival {
    int source, tag;
    uint64_t count;
    DType dtype;
};

// One send or receive.
class Request : public std::enable_shared_from_this<Request> {
public:
    // Waits until it is complete, at most `timeout` seconds, by default the communicator's. After TimedOut the request is
    // still in progress.
    void wait(std::optional<double> timeout);
    bool done();
    bool complete() const { return complete_; }
    // Gives it up, so that the caller may free its memory; see Messages::abandon. Does nothing to a complete one.
    void abandon();
    // Of a complete receive: the message's source and tag.
    int source() const { return peer_; }
    int tag() const { return tag_; }

private:
    friend class Messages;
    uint64_t bytes() const { return count_ * itemsize(dtype_); }

    std::weak_ptr<Messages> messages_;
    std::shared_ptr<void> keep_;  // what owns the memory
    bool sends_ = false;
    int peer_ = 0;
    int tag_ = 0;
    DType dtype_ = DType::U8;
    uint64_t count_ = 0;
    uint8_t* data_ = nullptr;
    std::vector<uint8_t> copy_;   // send: the data, after the caller has abandoned the request
    uint64_t sent_ = 0;           // send: bytes written to the ring
    bool matched_ = false;        // send: its header is in the ring, or it has matched a posted receive; receive: it has its message
    bool rendezvous_ = false;     // send: it bypasses the ring
    bool abandoned_ = false;
    std::atomic<bool> complete_{false};
    std::string failure_;         // receive: how the message differs from what the receive expects
    TraceEntry* entry_ = nullptr;
    uint64_t began_ = 0;          // ticks; 0 if it was started without waiting for it
    uint64_t waits_since_ = 0;    // ticks; 0 until a thread waits for longer than the first polls
};

class Messages : public std::enable_shared_from_this<Messages> {
public:
    static std::shared_ptr<Messages> make(std::shared_ptr<Segment> segment, std::shared_ptr<GroupMemory> memory, SlotProtocol& steps);
    ~Messages();
    void set_counted(bool now) { tracer_.set_counted(now); }

    // waits: the caller will wait at once, so the progress thread need not be woken.
    std::shared_ptr<Request> send(const void* data, uint64_t count, DType dtype, int to, int tag, bool waits = false, std::shared_ptr<void> keep = {});
    std::shared_ptr<Request> recv(void* data, uint64_t count, DType dtype, int from, int tag, bool waits = false, std::shared_ptr<void> keep = {});
    // Sends or receives a short message at once. Returns false, with nothing done, if the message is long or must wait for
    // others.
    bool send_short(const void* data, uint64_t count, DType dtype, int to, int tag);
    bool recv_short(void* data, uint64_t count, DType dtype, int from, int tag);
    // The caller stops waiting and may free its memory. A receive is withdrawn, and what has arrived of its message is kept
    // for another receive. A send that has begun continues from a copy of the data; another is cancelled.
    void abandon(const std::shared_ptr<Request>& request);
    // The arrived message that a receive from `from` with `tag` (either may be kAny) would match.
    std::optional<Arrival> probe(int from, int tag);
    // Receives the message that `probe` found. Returns null, with nothing done, if another receive has matched it meanwhile.
    std::shared_ptr<Request> recv_probed(void* data, const Arrival& found, std::shared_ptr<void> keep = {});
    // Waits until every request of this rank is complete.
    void sync(double timeout);
    // Waits at most `timeout` seconds for the sends, and ends the progress thread. Returns a text about what is incomplete.
    std::string close(double timeout);

private:
    friend class Request;
    struct Message {  // one that has begun to arrive
        Header header;
        int from;
        uint64_t left;                     // bytes still to come
        uint8_t* at;                       // where the next one goes
        uint64_t number;                   // in the order of arrival at this rank
        std::vector<uint8_t> kept;         // the bytes, until a receive matches
        std::shared_ptr<Request> receive;  // the matching receive
    };
    struct Incoming {  // what is being read from one source
        std::shared_ptr<Message> message;
        uint64_t pad = 0;                  // bytes to skip behind it
    };

    Channel* channel(int from, int to, bool make);
    [[noreturn]] void overwritten(const char* what, int from, int to);
    Messages(std::shared_ptr<Segment> segment, std::shared_ptr<GroupMemory> memory, SlotProtocol& steps);
    bool forked() const { return forks_ != forks_so_far(); }
    // Without the ring (rendezvous.cpp).
    void post_receive(const std::shared_ptr<Request>& receive);
    bool progress_rendezvous(int from, bool& moved);
    void withdraw_receive(int from);
    uint64_t receive_posted_for(Channel& c, const Request& send) const;
    void poll_for_receive(int to, const Request& send);
    static bool may_copy_at_once(const Request& send);
    bool match(Channel& c, Request& send, int to, uint64_t state);
    bool copied(const Rendezvous& m, uint64_t bytes) const;
    bool copy_pieces(Rendezvous& m, int peer, bool sends, uint8_t* here, uint64_t there, uint64_t bytes);

    std::shared_ptr<Request> request(Op op, void* data, uint64_t count, DType dtype, int peer, int tag, std::shared_ptr<void> keep);
    bool progress();  // with mutex_ locked; true if a byte moved
    bool push(int to, bool at_once = true);
    bool pull(int from);
    void pull_from(int from);  // which may be kAny
    void cancel(const std::shared_ptr<Request>& request);  // abandon, with mutex_ locked
    bool has_left(int from) const;
    std::shared_ptr<Message> arrive(int from, const Header& header);
    std::shared_ptr<Message> first_arrived(int from, int tag);
    void receive_arrived(const std::shared_ptr<Request>& receive, const std::shared_ptr<Message>& message);
    void finish(Message& message);
    void trace(Request& request, bool waits);
    // began: in ticks, or 0 if nobody measures.
    void trace_short(Op op, DType dtype, int peer, int tag, uint64_t bytes, uint64_t began);
    void complete(Request& request, bool failed = false);
    void end_trace(Request& request, bool failed);
    bool fits(Request& receive, int from, const Header& header);
    bool pending() const;
    std::unique_lock<std::mutex> lock_requests();
    void notify(int whom);
    void check_open(const char* operation);  // with mutex_ locked
    template <class Done> void wait_until(std::optional<double> timeout, Done&& done, Request* request);
    void check_peers(const Request* request);
    void ensure_thread();
    void run();

    std::shared_ptr<Segment> segment_;
    const std::shared_ptr<GroupMemory> memory_;
    GroupSegment& group_;
    SlotProtocol& protocol_;
    Tracer tracer_;
    const int rank_, n_;
    const unsigned forks_ = forks_so_far();
    const WaitPolicy& policy_;
    std::mutex mutex_;
    std::vector<std::deque<std::shared_ptr<Request>>> sends_;     // by destination
    std::vector<std::list<std::shared_ptr<Message>>> arrived_;    // by source: not matched yet
    std::list<std::shared_ptr<Request>> receives_;                // posted, in order
    std::vector<Incoming> incoming_;                              // by source
    std::vector<std::shared_ptr<Request>> posted_;                // by source: the receive in its Rendezvous
    uint64_t arrivals_ = 0;
    ReachableRanges reachable_;                                   // guarded by mutex_
    std::condition_variable work_;
    bool closing_ = false;                                        // then only who holds a lease touches the group's memory
    std::thread thread_;
};

}  // namespace rankwise
