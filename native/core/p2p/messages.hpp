// Messages between two ranks: a ring of bytes for each (source, destination) that has communicated, and this rank's
// sends and receives that are in progress.
//
// A send copies at once into the ring what fits (eager). A thread that waits for a request makes progress on the rest,
// and on receives without a message; so does the rank's progress thread for requests that no thread waits for. It
// sleeps while there is nothing to move: senders wake it unless another thread of this rank waits, or has just waited.
// The data of a large message stays in the sender's memory, and is copied from there (offers.cpp). Messages match by
// (source, tag) in the order sent. A message that arrives before its receive is kept in this rank's private memory, so
// it never blocks the next one, and two ranks that send large messages to each other both make progress.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "failure/failure_reporter.hpp"
#include "memory/group_memory.hpp"
#include "p2p/matching.hpp"
#include "p2p/progress_thread.hpp"
#include "sync/forks.hpp"
#include "sync/waiter.hpp"
#include "transport/transport.hpp"

namespace rankwise {

Arrival arrival_of(int from, const MessageHeader& header, uint64_t number);

class Messages final : public std::enable_shared_from_this<Messages>, private BackgroundWork {
public:
    // unexpected_limit: how many bytes of unexpected messages this rank keeps; the data of further ones stays with
    // their senders.
    static std::shared_ptr<Messages> make(std::shared_ptr<Segment> segment, std::shared_ptr<GroupMemory> memory,
                                          Transport& transport, FailureReporter& failures, uint64_t unexpected_limit);
    ~Messages();
    void set_counted(bool now) { tracer_.set_counted(now); }

    // Whether the caller of a send or receive waits for it at once; then the progress thread need not be woken.
    enum class Caller : uint8_t { GoesOn, WaitsAtOnce };
    // All throw BadArgument for a rank that does not exist.
    std::shared_ptr<Request> send(const Send& message, const CallOptions& options = {}, Caller caller = Caller::GoesOn);
    // A message that is not wanted fails the receive and stays for another one. One of Wanted::Any that does not fit
    // into the memory, or is an object, goes to memory that the engine allocates.
    std::shared_ptr<Request> recv(const Receive& wanted, const CallOptions& options = {},
                                  Caller caller = Caller::GoesOn);
    // Receives whatever has arrived, in memory that the engine allocates. Returns null, with nothing done, if there is
    // nothing.
    std::shared_ptr<Request> recv_arrived(int from, int tag);
    // Sends a short message at once. Returns false, with nothing done, if it is long or must wait for others.
    bool send_at_once(const Send& message, const CallOptions& options = {}) {
        return write_now(message, options, kShortMessage);
    }
    // These return when the message is complete.
    void send_now(const Send& message, const CallOptions& options = {});
    Arrival recv_now(const Receive& wanted, const CallOptions& options = {}) {
        return receive_now(wanted, options, kShortMessage);
    }
    // The longest message that passes through the ring: a longer one is offered, if ranks can read each other's memory.
    uint64_t most_in_ring() const;
    // All of these at the same time, so that no order can deadlock. Throws the error of the first receive whose message
    // does not fit it when the others are complete. Returns the message of the last receive. meanwhile: what this rank
    // does while long messages arrive.
    Arrival exchange(std::span<const Send> sends, std::span<const Receive> receives, const CallOptions& options = {},
                     const std::function<void()>& meanwhile = {});
    // Returns the completed receive, or null if a short message was stored where `accept` said: it returns the memory
    // for a message, or null if this receive does not take it. `arrival` describes the message.
    using Accept = std::function<uint8_t*(const MessageHeader&)>;
    std::shared_ptr<Request> recv_any_now(Wanted wanted, int from, int tag, const Accept& accept, Arrival& arrival,
                                          std::optional<double> timeout, const CallOptions& options = {});
    // The caller stops waiting and may free its memory. A receive is cancelled, and what has arrived of its message is
    // kept for another receive. A send that has begun continues from a copy of the data; another is cancelled.
    void cancel(const std::shared_ptr<Request>& request);
    // A complete receive, whose message its caller never gets, gives it to the next one that matches. If it was of any
    // length, nobody has taken the message's memory.
    void return_message(Request& receive);
    // The caller of these cannot know which of them are complete: they are cancelled, and the messages that have been
    // received are for later receives.
    void cancel_all(std::span<const std::shared_ptr<Request>> requests);
    void return_message(const Arrival& received, const void* data);
    // The arrived message that a receive from `from` with `tag` (either may be kAny) would match.
    std::optional<Arrival> probe(int from, int tag);
    // Waits at most `timeout` seconds for such a message.
    std::optional<Arrival> await_arrival(int from, int tag, double timeout);
    // Waits at most `timeout` seconds until one of these requests of this communicator has ended.
    void await_any(const std::vector<std::shared_ptr<Request>>& requests, double timeout);
    // Receives the message that `probe` found. Returns null, with nothing done, if another receive has matched it
    // meanwhile.
    std::shared_ptr<Request> recv_probed(void* data, const Arrival& found);
    // The requests that have failed, and whose error no `wait` has raised yet; each is returned once.
    std::vector<std::shared_ptr<Request>> take_failed();
    // Waits until every request of this rank is complete.
    void sync(double timeout, const CallOptions& options = {});
    // Waits at most `timeout` seconds for the sends. Returns a text about what is incomplete.
    std::string close(double timeout);

private:
    friend class Request;
    struct Incoming {  // what is being read from one source
        std::shared_ptr<Message> message;
        uint64_t pad = 0;                                               // bytes to skip behind it
        std::unordered_map<int, std::shared_ptr<Message>> requested{};  // by the number of the offer
        std::vector<std::shared_ptr<Message>> claimed{};                // offered, and not fetched yet
    };
    // Before a message is claimed, since there may be no memory.
    template <class T> static void make_room_in(std::vector<T>& list) {
        if (list.size() == list.capacity()) list.reserve(2 * list.size() + 4);
    }
    using Sends = std::deque<std::shared_ptr<Request>>;
    struct Outgoing {     // what goes to one destination
        Sends sends;      // in the order started, until each is in the ring or offered
        Sends requested;  // offered ones whose data the receiver has requested
        std::unordered_map<int, std::shared_ptr<Request>> offered{};  // by number, with those in `requested`
        std::vector<MessageHeader> answers;                           // to offers of that rank
        Sends* writing = nullptr;                                     // the queue whose first message is being written
        bool stuck = false;  // and the receiver's progress thread has been notified of that
        uint64_t read = 0;   // what the destination had read from the ring when this rank last had to look
        int next_offer = 0;
        std::vector<int> free_slots = all_slots();
        static std::vector<int> all_slots() {
            std::vector<int> slots(Channel::kOffers);
            std::iota(slots.begin(), slots.end(), 0);
            return slots;
        }
        void end_offer(const Request& r) {
            offered.erase(r.offer_);
            if (r.slot_ >= 0) free_slots.push_back(r.slot_);
        }
        void drop_all() {
            sends.clear();
            requested.clear();
            offered.clear();
            answers.clear();
            writing = nullptr;
        }
        bool idle() const { return sends.empty() && offered.empty() && answers.empty(); }
        size_t incomplete() const {
            return sends.size() + answers.size() + size_t(std::count_if(offered.begin(), offered.end(), [](auto& each) {
                       return !each.second->ended();
                   }));
        }
    };

    Channel& channel_to(int to);      // which this rank makes if there is none
    Channel* channel_from(int from);  // null before the first message
    Channel& channel_at(uint64_t offset, int from, int to);
    [[noreturn]] void throw_overwritten(const char* what, int from, int to);
    Messages(std::shared_ptr<Segment> segment, std::shared_ptr<GroupMemory> memory, Transport& transport,
             FailureReporter& failures, uint64_t unexpected_limit);
    PeerSlot& own_slot() const { return group_.peers[rank_]; }
    // What both ranks copy (copy_job.cpp).
    bool share(const Message& message);
    bool fetch_shared(const Message& message);
    bool copy_stretches(const Message& message, uint64_t at, uint64_t bytes);
    bool help_to_fetch(Channel& c, int to);

    std::shared_ptr<Request> request(Op op, const void* data, uint64_t count, DType dtype, int peer, int tag);
    std::shared_ptr<Request> request(const Receive& wanted);
    bool progress();  // with mutex_ locked; true if a byte moved
    // Through the ring (ring.cpp).
    bool push(int to);
    bool begin_next(Channel& c, int to, bool& moved);
    bool write_piece(Channel& c, Request& send, int to, const MessageHeader& header);
    bool write_header(Channel& c, int to, const MessageHeader& header, const void* body = nullptr, uint64_t bytes = 0);
    enum class Reads : bool {
        UntilReceived,
        All
    };  // up to the message of the last receive, or what comes after it too
    bool pull(int from, Reads reads = Reads::UntilReceived);
    bool read_messages(int from, Reads reads);
    bool read_header(Channel& c, int from, uint64_t& at, uint64_t& waiting);
    // Data that stays with its sender (offers.cpp).
    bool must_offer(const Request& send, int to) const;
    bool write_offer(Channel& c, const std::shared_ptr<Request>& send, int to);
    bool claim(Message& message);
    bool answered_as_cancelled(Message& message);
    Message* first_arrived(int from, int tag, Request* wanted);
    bool begin_fetch(Message& message);
    bool fetch(const std::shared_ptr<Message>& message);
    bool fetch_claimed(int from);
    void finish_claimed(int from);
    void take_offers(int from = kAny);
    void apply_answer(int from, const MessageHeader& header);
    void send_answers(int to);
    bool cancel_offer(const Request& send);
    void cancel_offers(int to);
    uint64_t room() const { return unexpected_limit_ - std::min(unexpected_limit_, arrived_.bytes()); }
    void publish_room() { group_.peers[rank_].set_unexpected_room(room()); }
    void attach(const std::shared_ptr<Request>& receive, const std::shared_ptr<Message>& message);
    void arrive_here(const std::shared_ptr<Request>& send);
    void pull_from(int from, Reads reads = Reads::UntilReceived);             // from may be kAny
    void cancel_or_forget(const std::shared_ptr<Request>& request) noexcept;  // with mutex_ locked, as the next ones
    void cancel_and_keep_message(const std::shared_ptr<Request>& request) noexcept;
    template <class Step> void end_or_fail_group(const Step& step) noexcept;
    void return_message_locked(Request& receive) noexcept;
    void drop(const std::shared_ptr<Request>& send);
    void forget(Message& message);
    bool has_left(int from) const;
    static MessageHeader header_of(const Request& send) {
        return MessageHeader::of(send.count_, send.dtype_, send.tag_, send.object_);
    }
    void cancel_send(const std::shared_ptr<Request>& send);
    void cancel_receive(Request& receive);
    void go_on_from_copy(const std::shared_ptr<Request>& send);
    void put_back(const Arrival& received, Memory data);
    void put_back(const std::shared_ptr<Message>& message, Memory copy);
    void put_back(const std::shared_ptr<Message>& message);
    void match_posted(Message& message);
    std::shared_ptr<Message> arrive(int from, const MessageHeader& header, std::optional<Offer> offer = {});
    std::optional<Arrival> arrival(int from, int tag);  // probe, with mutex_ locked
    void receive_arrived(const std::shared_ptr<Request>& receive, Message& message);
    void start_arrived(const std::shared_ptr<Request>& receive, Message& message);
    static void give_memory(Request& receive, Message& message);
    Channel* readable(int from);
    void check_peer(Op op, int peer) const;
    // send_at_once and recv_now, whose messages are of at most `most` bytes if they go through the ring at once.
    bool write_now(const Send& message, const CallOptions& options, uint64_t most);
    bool await_room(const Send& message, const CallOptions& options, uint64_t most);
    Arrival receive_now(const Receive& wanted, const CallOptions& options, uint64_t most);
    Arrival complete_now(const std::shared_ptr<Request>& request, const CallOptions& options,
                         std::optional<double> timeout = {});
    void let_senders_copy(std::span<const Receive> receives, const CallOptions& options);
    template <class Take>
    std::optional<Arrival> take_short(int from, int tag, const Take& accept, const CallOptions& options);
    void complete_receive(Message& message);
    void trace(Request& request, Caller caller);
    // began: in ticks, or 0 if nobody measures.
    void trace_short(Op op, DType dtype, int peer, int tag, uint64_t bytes, uint64_t began);
    void complete(Request& request, Request::State result = Request::State::Complete);
    void end_trace(Request& request, Request::State result);
    static bool accepts(const Request& receive, const MessageHeader& header);
    bool may_stay_in_ring(const Request& receive) const;
    void listen(const Request& receive);
    bool match_or_fail(Request& receive, int from, const MessageHeader& header);
    bool pending() const;     // something is left to do for the progress thread
    bool unfinished() const;  // something that this rank has started, and not cancelled, is not complete
    std::unique_lock<std::mutex> lock_requests(const CallOptions& options = {});
    void notify(int whom);
    void notify_progress_of(int whom);
    void check_open(const char* operation, const CallOptions& options = {});  // with mutex_ locked
    class Waiting;
    class Foreground;
    template <class Done> bool answered_soon(int peer, const Waiter& waiter, const Done& done);
    enum class AtTimeout : bool { Throw, Return };
    template <class Done>
    bool wait_until(std::optional<double> limit, Done&& done, Request* request, const CallOptions& options = {},
                    AtTimeout at_timeout = AtTimeout::Throw);
    template <class Done> void await(int from, int tag, double timeout, Done&& done);
    template <class Done> void check_peers(const Request* request, Done&& done);
    bool waits_in_vain(const Request& receive);
    [[noreturn]] void throw_timed_out(double timeout, const Request* request, const std::string& why);
    static std::string awaited_text(const Request& request);
    // Lets the progress thread move what is pending.
    void go_on_in_background();
    // What the progress thread does. A thread that waits moves everything, so nobody wakes the progress thread
    // meanwhile; nor soon after, since a program that waits for one short message after another would be disturbed by
    // it each time.
    enum class Progress : uint8_t {
        Idle,      // it has nothing to do
        Wakeable,  // sleeps until a peer wakes it
        StandsBy,  // sleeps for a moment: a thread has just started or stopped waiting, or nothing is left to do
        GivesWay,  // sleeps during the longer wait of a thread, which wakes it at the end
    };
    void set_progress(Progress now);
    Next advance() noexcept override;
    bool take_notification() noexcept override {
        return own_slot().progress_notified.load() && own_slot().progress_notified.exchange(0);
    }

    std::shared_ptr<Segment> segment_;
    const std::shared_ptr<GroupMemory> memory_;
    GroupSegment& group_;
    std::atomic<uint64_t>* const
        channels_;  // [src][dst]; not looked up again, since a stray write may change where it is
    Transport& transport_;
    FailureReporter& failures_;
    Tracer tracer_;
    const int rank_, n_;
    const ForkMark fork_;
    const WaitPolicy& policy_;  // the ring's, which changes when the ranks have agreed on their conditions
    std::atomic<uint32_t> waits_{0}, unanswered_{0};  // for answered_soon, which spins in one wait of 2^unanswered_
    std::mutex mutex_;
    std::vector<Outgoing> outgoing_;  // by destination
    ArrivedMessages arrived_;
    PostedReceives receives_;
    std::vector<Incoming> incoming_;                // by source
    std::vector<std::shared_ptr<Request>> failed_;  // whose errors no `wait` has raised yet, and some others
    const uint64_t unexpected_limit_;
    uint64_t arrivals_ = 0;
    ReachableRanges reachable_;   // guarded by mutex_
    int waiting_ = 0;             // threads that wait for a message
    bool waits_changed_ = false;  // one started or stopped waiting since the progress thread last looked
    Progress progress_ = Progress::Idle;
    int idle_polls_ = 0;  // of the progress thread, since there was something to do
    bool closing_ = false;
    GroupMemory::Lease lease_;  // of all requests: while it is held, whoever has the mutex may use the group's memory
    ProgressThread& background_;
    bool listens_ = false;  // the progress thread listens
};

// A thread waits for a message for as long as this lives, which begins and ends with mutex_ locked.
class Messages::Waiting {
public:
    explicit Waiting(Messages& messages) : messages_(messages) {
        count(1);
        if (messages.progress_ != Progress::Wakeable) return;
        messages.set_progress(Progress::StandsBy);
        messages.notify_progress_of(messages.rank_);  // so that it becomes wakeable again later
    }
    ~Waiting() {
        if (messages_.fork_.is_child()) return;
        count(-1);
        if (!messages_.waiting_ && messages_.progress_ == Progress::GivesWay)
            messages_.notify_progress_of(messages_.rank_);
    }
    Waiting(const Waiting&) = delete;

private:
    void count(int more) {
        messages_.waiting_ += more;
        messages_.waits_changed_ = true;
        messages_.own_slot().message_waits.store(uint32_t(messages_.waiting_), std::memory_order_relaxed);
    }

    Messages& messages_;
};

}  // namespace rankwise
