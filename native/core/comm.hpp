// One rank's end of one group: checks the arguments, lets one call at a time through, and runs it.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/collectives.hpp"
#include "memory/registered.hpp"
#include "p2p/messages.hpp"
#include "stream/stream.hpp"
#include "transport/slot_protocol.hpp"

namespace rankwise {

using Counts = std::vector<uint64_t>;

class Comm {
public:
    // Takes part in `segment` as `rank`; returns once all its ranks have joined. process: this rank
    // is a process of its own, so its peers are watched. Throws PeerLost, TimedOut, BadArgument.
    // All ranks give the same settings; BadArgument on every rank where they differ.
    static std::shared_ptr<Comm> join(std::shared_ptr<Segment> segment, int rank, double timeout, bool process, const Settings& settings = {});
    Comm(std::shared_ptr<Segment> segment, uint64_t group, int rank, double timeout, const Settings& settings);
    ~Comm();

    int rank() const { return protocol_.rank; }
    int world_size() const { return protocol_.n; }
    double timeout() const { return protocol_.timeout; }
    void set_timeout(double seconds);

    // Zeroed memory on which these operations work in place. Throws OutOfMemory.
    std::shared_ptr<Registered> allocate(size_t bytes);
    // Whether `bytes` from `p` on are such memory.
    bool holds(const void* p, size_t bytes) const { return segment_->holds(p, bytes); }
    const std::shared_ptr<Segment>& segment() const { return segment_; }

    // The operations of the contract. Throw BadArgument before anything is sent, else as SlotProtocol does.
    void barrier();
    void broadcast(void* data, uint64_t count, DType dtype, int root);
    void all_reduce(void* data, uint64_t count, DType dtype, ReduceOp op);
    void reduce(void* data, uint64_t count, DType dtype, ReduceOp op, int root);
    void all_gather(const void* send, void* recv, uint64_t count, DType dtype);
    void gather(const void* send, void* recv, uint64_t count, DType dtype, int root);
    void scatter(const void* send, void* recv, uint64_t count, DType dtype, int root);
    void reduce_scatter(const void* send, void* recv, uint64_t count, DType dtype, ReduceOp op);
    void all_to_all(const void* send, void* recv, uint64_t count, DType dtype);
    // As scatter, where the others do not know what array root has; see collectives.hpp. Where the parts do not
    // come along it ends in a hold(), for the call that moves them. bytes: what this rank expects to send or receive.
    bool scatter_described(collectives::ArrayHeader& header, const void* send, void* recv, const collectives::Place& place, int root);
    void all_gather_v(const void* send, void* recv, const Counts& counts, DType dtype);
    void gather_v(const void* send, void* recv, const Counts& counts, DType dtype, int root);
    void scatter_v(const void* send, void* recv, const Counts& counts, DType dtype, int root);
    void reduce_scatter_v(const void* send, void* recv, const Counts& counts, DType dtype, ReduceOp op);
    void all_to_all_v(const void* send, void* recv, const Counts& out, const Counts& in, DType dtype);

    std::shared_ptr<Request> send(const void* data, uint64_t count, DType dtype, int to, int tag);
    std::shared_ptr<Request> recv(void* data, uint64_t count, DType dtype, int from, int tag);
    // A message that waits for its receive; `from` and `tag` may be kAny, here and in recv.
    std::optional<Arrival> probe(int from, int tag);
    // Runs `operation`, a call of one of the operations above, on this communicator's stream: in the
    // order started, before any later blocking call. What it throws comes out of the Task's wait.
    // foreign: the program's own code, which may never end.
    std::shared_ptr<Task> start(std::function<void()> operation, bool foreign = false);
    // Events (stream/events.hpp) on the stream: the event stands for all that was started so far, and is
    // reached only if the group stands by then; what is started, or called, after this waits for the
    // event. A wait longer than the timeout, or for an event that cannot be reached, fails the group.
    void record_event(uint64_t event);
    void wait_event(uint64_t event);
    // Until all that was started so far has run. Throws TimedOut, and the failure of a group that has failed.
    void sync_stream();
    // Between hold and release this thread's calls have the communicator for themselves: no other
    // thread's comes in between, nor does what is started meanwhile. May be nested.
    void hold();
    void release();
    // The same, blocking.
    void send_now(const void* data, uint64_t count, DType dtype, int to, int tag);
    void recv_now(void* data, uint64_t count, DType dtype, int from, int tag);
    void sync();
    // A new group of these ranks of this group, in their order. One of them makes it and sends its number to the
    // others; each joins it by that number. Throw BadArgument, OutOfMemory.
    uint64_t make_part(const std::vector<int>& ranks);
    std::shared_ptr<Comm> take_part(uint64_t part);
    // The algorithms that a call of `op` on this group tries, in this order, where each rank's array has so many bytes.
    std::vector<Algorithm> algorithms(Op op, size_t bytes) const { return tuning::choices(protocol_.conditions(), op, bytes, group_.stream_from); }
    // Collective. color < 0: no part in any new group, nullptr.
    std::shared_ptr<Comm> split(int64_t color, int64_t key);

    // Fail the group, naming this rank: "rank 2 <why>".
    void abort(const std::string& why);
    // The process is about to end: peers that lose it may wait for its exit status.
    void announce_end() { segment_->record(group_.member()[rank()]).ending = 1; }
    // Idempotent, never throws. What went wrong, in words, or nothing.
    std::optional<std::string> close(double timeout) noexcept;

private:
    class Call_;
    friend class Call_;
    bool lock_calls();
    void wait_for_calls();
    void unlock_calls();
    bool holds_calls() const;
    void agree_on_conditions();
    void hold_for(const std::shared_ptr<Task>& mark);
    void complete(const std::shared_ptr<Request>& request);
    void check_open() const;
    void check_root(int root, const char* argument = "root") const;
    void check_counts(const Counts& counts, const char* argument) const;

    std::shared_ptr<Segment> segment_;
    GroupSegment& group_;
    const uint64_t group_offset_;
    const Settings settings_;
    SlotProtocol protocol_;
    std::shared_ptr<Messages> messages_;
    Stream stream_;
    std::atomic<uint32_t> busy_{0};  // futex: 0 free, 1 a call is under way, 2 and others wait
    std::atomic<std::thread::id> holder_{};  // the thread between hold and release
    int holds_ = 0;                  // how deep that is nested
    std::atomic<bool> closing_{false};  // close has begun: it still lets finish what was started
    std::atomic<bool> closed_{false};
    const unsigned forks_;           // how often this process had been forked off when it joined
};

}  // namespace rankwise
