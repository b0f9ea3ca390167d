// The communicator: one rank's end of one group. It checks arguments, serialises calls, and runs them.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/collectives.hpp"
#include "failure/agreement.hpp"
#include "failure/failure_reporter.hpp"
#include "memory/group_memory.hpp"
#include "memory/registered.hpp"
#include "p2p/messages.hpp"
#include "p2p/progress_thread.hpp"
#include "shared_block.hpp"
#include "stream/stream.hpp"
#include "transport/transport.hpp"

namespace rankwise {

// A row of an array: elements that all ranks' vector collectives move together.
struct Row {
    DType dtype = DType::U8;
    uint64_t elements = 1;
    size_t bytes() const { return checked_bytes(elements, itemsize(dtype)); }
};

class Comm {
public:
    using Lock = GroupMemory::Lock;

    // A rank that is a process of its own watches its peers.
    enum class RunsAs : bool { Thread, Process };
    // Joins `segment` as `rank`, and returns when all its ranks have joined. If the ranks force different algorithms,
    // or set `oversubscribed` or the thresholds differently, every rank throws BadArgument. Throws PeerLost, TimedOut,
    // BadArgument. restart: 0, or, in a process that replaces a lost one, how many have been started for this rank
    // before: then it joins the survivors, which call restore.
    static std::shared_ptr<Comm> join(const std::shared_ptr<Segment>& segment, int rank, double timeout, RunsAs runs_as,
                                      const Settings& settings = {}, uint32_t restart = 0);
    Comm(std::shared_ptr<BufferCache> buffers, uint64_t group, int rank, double timeout, const Settings& settings);
    // Closes, and waits until no other thread uses this any more.
    ~Comm();

    int rank() const { return transport_.rank; }
    int world_size() const { return transport_.n; }
    double timeout() const { return transport_.steps.timeout; }
    void set_timeout(double seconds);
    // Whether measurements count this communicator's operations; not if they are parts of another one's
    // (trace/totals.hpp).
    void set_counted(bool now) {
        transport_.log.set_counted(now);
        messages_->set_counted(now);
    }

    // Registered memory, which collectives access in place. Throws OutOfMemory.
    std::shared_ptr<Registered> allocate(size_t bytes, Contents contents = Contents::Zeros);
    // A block that this rank makes, or takes with the ticket of the rank that has made it (shared_block.hpp). filled:
    // a rank writes all of it to the segment's file before anybody uses it; until then it has no memory.
    std::shared_ptr<SharedBlock> shared_block(size_t bytes, const std::optional<SharedBlock::Ticket>& ticket = {},
                                              bool filled = false);
    const std::shared_ptr<BufferCache>& buffers() const { return buffers_; }
    // Whether `bytes` from `p` on lie in the segment.
    bool in_segment(const void* p, size_t bytes) const { return segment_->contains_data(p, bytes); }
    const std::shared_ptr<Segment>& segment() const { return segment_; }

    // The operations of the contract. They throw BadArgument before anything is sent, else what FailureReporter throws.
    void barrier(const CallOptions& options = {});  // completes this rank's messages too
    void barrier_without_sync(const CallOptions& options = {});
    void broadcast(void* data, uint64_t count, DType dtype, int root, const CallOptions& options = {});
    void all_reduce(void* data, uint64_t count, DType dtype, ReduceOp op, const CallOptions& options = {});
    void reduce(void* data, uint64_t count, DType dtype, ReduceOp op, int root, const CallOptions& options = {});
    void all_gather(const void* send, void* recv, uint64_t count, DType dtype, const CallOptions& options = {});
    void gather(const void* send, void* recv, uint64_t count, DType dtype, int root, const CallOptions& options = {});
    void scatter(const void* send, void* recv, uint64_t count, DType dtype, int root, const CallOptions& options = {});
    void reduce_scatter(const void* send, void* recv, uint64_t count, DType dtype, ReduceOp op,
                        const CallOptions& options = {});
    void all_to_all(const void* send, void* recv, uint64_t count, DType dtype, const CallOptions& options = {});
    // The reduction of the ranks up to this one, and of those before it, which leaves recv of rank 0 as it is. send may
    // be recv.
    void scan(const void* send, void* recv, uint64_t count, DType dtype, ReduceOp op, const CallOptions& options = {});
    void exscan(const void* send, void* recv, uint64_t count, DType dtype, ReduceOp op,
                const CallOptions& options = {});
    // Vector collectives whose counts only the ranks themselves know; see collectives.hpp. A count is one of rows, and
    // the ranks compare what a row is; those of a gather without `row` are of bytes. If what returns the memory throws,
    // the group fails.
    void gather_sized(const void* block, uint64_t count, const std::optional<Row>& row,
                      const collectives::RoomForEach& room, int root, const CallOptions& options = {});
    void all_gather_sized(const void* block, uint64_t count, const Row& row, const collectives::Room& room,
                          const CallOptions& options = {});
    void all_to_all_sized(const void* blocks, const Counts& counts, const Row& row, const collectives::Room& room,
                          const CallOptions& options = {});
    void scatter_sized(collectives::Division& division, const void* data, const collectives::PartBuffer& part_buffer,
                       int root, const CallOptions& options = {});
    void all_gather_v(const void* send, void* recv, const Counts& counts, DType dtype, const CallOptions& options = {});
    void gather_v(const void* send, void* recv, const Counts& counts, DType dtype, int root,
                  const CallOptions& options = {});
    void scatter_v(const void* send, void* recv, const Counts& counts, DType dtype, int root,
                   const CallOptions& options = {});
    void reduce_scatter_v(const void* send, void* recv, const Counts& counts, DType dtype, ReduceOp op,
                          const CallOptions& options = {});
    void all_to_all_v(const void* send, void* recv, const Counts& out, const Counts& in, DType dtype,
                      const CallOptions& options = {});

    // Messages between two ranks. Throws Closed.
    Messages& messages() {
        check_open();
        return *messages_;
    }
    // The messages that have failed, and whose error no `wait` has raised yet; each is returned once.
    std::vector<std::shared_ptr<Request>> failed_messages() { return messages_->take_failed(); }
    std::vector<std::shared_ptr<Task>> failed_operations() { return stream_.take_failed(); }
    // Starts `call`, a call of one of the operations above with the options that it is given, without waiting for
    // another rank. If its data travels in one step, and no more than kStarted are on their way, this rank posts it
    // now, and `wait`, `done` or the next call completes it. Any other runs in the order started, before any later
    // blocking call: in the thread that waits for it, or in a thread of the stream. The Task's wait rethrows what it
    // throws. place: where the program makes the call.
    template <class Call> std::shared_ptr<Task> start(Call call, const CodePlace& place = {});  // started.hpp
    // Runs any function in a thread of the stream, in this order.
    std::shared_ptr<Task> submit(std::function<void()> body, CodeOf whose = CodeOf::Engine);
    // The same for code of the program that makes calls of this communicator. The thread that waits for it runs it, if
    // no thread of the stream has begun to, as one does when a peer waits for this rank.
    std::shared_ptr<Task> start_body(std::function<void()> body);
    // Events (stream/events.hpp) on the stream. A recorded event is reached when all operations started so far have
    // run, if the group has not failed by then. After wait_event, later operations, started or called, wait for the
    // event. A wait that exceeds the timeout, or whose event can never be reached, fails the group.
    void record_event(uint64_t event);
    void wait_event(uint64_t event);
    // Waits until all operations started so far have run. Throws TimedOut, and, if the group has failed, its failure.
    void sync_stream();
    // Whether the caller runs a task of the stream.
    bool on_stream_thread() const { return stream_.on_own_thread(); }
    // As long as the lock lives, no other thread's call and no operation started meanwhile runs between this thread's
    // calls. May be nested.
    [[nodiscard]] Lock lock(const CallOptions& options = {});
    void sync();
    // A new group of these ranks of this group, in their order. One of the ranks creates it with make_subgroup and
    // sends the result to the others; each rank joins it with join_subgroup. They throw BadArgument, OutOfMemory.
    uint64_t make_subgroup(const std::vector<int>& ranks);
    std::shared_ptr<Comm> join_subgroup(uint64_t subgroup);
    // The algorithms that a call of `op` on this group tries, in order, if each rank's array has this many bytes.
    std::vector<Algorithm> algorithms(Op op, size_t bytes) const;
    const Conditions& conditions() const { return transport_.conditions(); }
    // Collective. color < 0: this rank joins no new group and gets nullptr.
    std::shared_ptr<Comm> split(int64_t color, int64_t key);

    // Fail the group with an error that names this rank: "rank 2 <why>". Does nothing in a forked child.
    void abort(const std::string& why);
    // Going on after a loss (recovery.cpp), on a group that may have failed.
    //
    // The ranks whose process has ended, that have left the group, or without which the others went on; and how.
    std::map<int, std::string> failed() const;
    // These two are collective over the ranks that live: they wait for every rank that has not been lost, at most the
    // timeout, and then go on without those that are missing. All ranks have the same outcome, although others die
    // meanwhile. A rank without which the others went on throws PeerLost, which names that rank itself.
    int64_t agree(int64_t flags);  // the AND of the ranks' flags; throws the failure if other ranks call shrink instead
    // A new group of these ranks, in their order. exclude: other ranks to leave out although they may live; nobody
    // waits for them. Throws Mismatch if the callers exclude different ranks, BadArgument if `exclude` has this rank.
    std::shared_ptr<Comm> shrink(const std::vector<int>& exclude = {});
    // Collective over the ranks of the whole job: a new group of all of them, once a replacement of each lost rank has
    // joined. Throws Unsupported if no launcher starts replacements, PeerLost if it gave up a rank, TimedOut.
    std::shared_ptr<Comm> restore();
    // The numbers of this group's ranks in `former`.
    std::vector<int> numbers_in(const Comm& former) const;
    // Show the group by this name in messages and traces.
    void name_group(const std::string& name);
    // The process is about to end: peers that lose it may wait for its exit status.
    void announce_end() {
        if (!fork_.is_child()) segment_->record(members_[size_t(rank())]).ending = process_ + 1;
    }
    // Idempotent, never throws. Returns a text if something went wrong. A call of another thread that does not end in
    // time keeps the group's memory until it ends, and so does a call of this thread, whose signal handler may call
    // this.
    std::optional<std::string> close(double timeout) noexcept;

private:
    class CallGuard;
    class StartedCall;
    template <class Call> class StartedCallOf;
    class Body;
    template <Op operation> struct Collective;
    template <Op operation>
    void scan_as(const void* send, void* recv, uint64_t count, DType dtype, ReduceOp op, const CallOptions& options);
    template <class Steps> void or_fail_group(const Steps& steps);
    [[gnu::cold]] void fail_in_call(const std::exception& why);
    // Runs what this rank has started and deferred, when a peer waits for it.
    class StandIn final : public BackgroundWork {
    public:
        explicit StandIn(Comm& comm);
        ~StandIn();
        void listen();
        void stop();
        Next advance() noexcept override;
        bool take_notification() noexcept override;

    private:
        Comm& comm_;
        ProgressThread& thread_;
        std::atomic<bool> listens_{false};
    };
    GroupMemory::Use begin_call(const CallOptions& options = {});
    void begin_after_others(const CallOptions& options);
    std::shared_ptr<Task> start_call(std::shared_ptr<StartedCall> call, const CodePlace& place);
    void complete(Started& started, const CallOptions& options);
    enum class Runs : bool { WhenAwaited, AtOnce };
    std::shared_ptr<Task> defer(std::shared_ptr<Task> task, Runs runs, std::string site, const CodePlace& place = {});
    void deferred_begins();
    void hurry() noexcept;
    // What is no call, but uses the group's memory.
    struct OpenLease {
        explicit OpenLease(const Comm& comm);
        const GroupMemory::Use lease;
    };
    [[noreturn]] static void throw_closed();
    void await_joined();
    void agree_on_conditions();
    std::string exchange_conditions();
    std::chrono::nanoseconds time_of_step();
    // make_subgroup and join_subgroup within a call, which goes on although the group has been closed meanwhile.
    uint64_t create_subgroup(const std::vector<int>& ranks);
    std::shared_ptr<Comm> enter_subgroup(uint64_t subgroup);
    void leave_unjoined(GroupSegment& group, uint64_t subgroup, int index);
    std::shared_ptr<Comm> split_off(int64_t color, int64_t key, std::string& trouble);
    Outcome decide(Op op, int64_t flags, std::string& trouble, const RankSet& exclude);
    void exclude_all_but(const RankSet& present, const RankSet& left_out);
    static void prepare_replacement(Segment& segment, int rank, uint32_t process);
    static std::shared_ptr<Comm> meet(const std::shared_ptr<BufferCache>& buffers, int rank, uint32_t process,
                                      double timeout, const Settings& settings, const GroupMemory* memory = nullptr);
    void wait_for_mark(const std::shared_ptr<Task>& mark);
    void check_open() const;
    GroupMemory& open_memory() const {
        check_open();
        return *memory_;
    }
    void check_root(int root, const char* argument = "root") const;
    void check_counts(const Counts& counts, const char* argument) const;
    // One block for each rank: all of `count` elements, or of as many as `counts` says.
    Blocks blocks_of(uint64_t count, size_t item) const { return Blocks(world_size(), count, item); }
    Blocks blocks_of(const Counts& counts, size_t item) const;

    const std::shared_ptr<BufferCache> buffers_;
    std::shared_ptr<Segment> segment_;
    const std::shared_ptr<GroupMemory> memory_;
    GroupSegment& group_;
    const std::vector<int>
        members_;             // the world rank of each rank, like process_ also known when the group's memory is gone
    const uint32_t process_;  // number of this rank's process
    const Settings settings_;
    FailureReporter failures_;
    Transport transport_;
    std::shared_ptr<Messages> messages_;
    Stream stream_;
    StandIn stand_in_;
    std::atomic<bool> closing_{false};  // close has begun: what is in progress may finish
    std::vector<std::atomic<bool>>
        excluded_;  // the ranks without which the others went on; this rank may be one of them
    const ForkMark fork_;
};

}  // namespace rankwise
