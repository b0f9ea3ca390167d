#include "comm.hpp"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <exception>
#include <numeric>

#include "base/mix.hpp"
#include "collectives/collectives.hpp"
#include "failure/watchdog.hpp"
#include "stream/events.hpp"

namespace rankwise {

namespace {

ReduceKernel checked_kernel(DType dtype, ReduceOp op) {
    if (ReduceKernel kernel = reduce_kernel(dtype, op)) return kernel;
    throw BadArgument(std::string("op: ") + name(op) + " is not defined for " + name(dtype));
}

}  // namespace

// Begins and ends a collective call.
class Comm::CallGuard {
public:
    CallGuard(Comm& comm, const Call& call, uint64_t bytes = 0, const CallOptions& options = {})
        : comm_(comm), call_(comm.begin_call(options)) {
        CallLog& log = comm.transport_.log;
        if (!options.description.none()) log.describe(options.description);
        if (comm.group_.failed()) comm.failures_.refuse(call, options);
        log.begin(call, bytes, options);
    }
    ~CallGuard() {
        comm_.transport_.ring.prefetch_next();
        comm_.transport_.log.end();
    }
    Lock keep_lock() { return Lock(call_); }

private:
    Comm& comm_;
    GroupMemory::Use call_;
};

// Begins a call after all queued operations have run.
GroupMemory::Use Comm::begin_call(const CallOptions& options) {
    check_open();
    if (stream_.idle() && memory_->try_begin()) return memory_->call(false);
    if (memory_->in_own_call())
        throw Error("a signal handler cannot call an operation of a group in the middle of another one");
    if (memory_->locked_by_caller()) {
        if (!memory_->begin_locked()) throw_closed();
        return memory_->call(true);
    }
    options.before_waiting();
    stream_.sync(timeout());
    if (!memory_->try_begin()) wait_for_calls();
    return memory_->call(false);
}

void Comm::wait_for_calls() {
    const OpenLease lease(*this);
    if (!memory_->begin_when_unlocked(Waiter(timeout(), transport_.program), [this] { check_open(); }))
        throw TimedOut("another thread's call on this communicator did not finish within " + seconds(timeout()),
                       timeout(), {}, failures_.states(), "", -1);
}

Comm::Lock Comm::lock(const CallOptions& options) {
    GroupMemory::Use call = begin_call(options);
    return Lock(call);
}

std::shared_ptr<Comm> Comm::join(const std::shared_ptr<Segment>& segment, int rank, double timeout, bool process,
                                 const Settings& settings, uint32_t restart) {
    RankRecord& me = segment->record(checked_number("rank", rank, segment->world_size()));
    if (me.joined.load() > restart)
        throw BadArgument("rank: " + std::to_string(rank) + " given, which has already joined this segment");
    SegmentHeader& header = segment->header();
    if (restart > 0) prepare_replacement(*segment, rank, restart);
    const TracedCall traced(*segment, rank, Op::Join, 0, settings.part);
    if (process) segment->set_owner(rank, restart);
    auto buffers = std::make_shared<BufferCache>(segment);
    me.pid = QualifiedPid::own();
    if (restart > 0) {
        me.joined.store(restart + 1);
        segment->announce_roster();
        return meet(buffers, rank, restart, timeout, settings);
    }
    auto comm = std::make_shared<Comm>(buffers, header.world_group.load(), rank, timeout, settings);
    me.joined.store(1);
    segment->announce_roster();
    try {
        comm->await_joined();
        if (process) watch_peers(segment, rank, *settings.program);
        comm->agree_on_conditions();
        return comm;
    } catch (const PeerLost&) {
        if (!header.restarts_expected.load()) throw;
        comm->close(0);
    }
    return meet(buffers, rank, 0, timeout, settings);
}

// Waits until all ranks of the segment have joined.
void Comm::await_joined() {
    const OpenLease lease(*this);
    const int n = segment_->world_size();
    int joined = 0;  // the ranks before this one have
    const auto all_joined = [&] {
        while (joined < n && segment_->record(joined).joined.load()) ++joined;
        return joined == n;
    };
    const auto check = [&] {
        if (group_.failed()) failures_.throw_failure(name(Op::Join));
    };
    if (Waiter(timeout(), transport_.program).sleep({segment_->header().roster}, all_joined, check)) return;
    std::vector<int> missing;
    for (int r = 0; r < n; ++r)
        if (!segment_->record(r).joined.load()) missing.push_back(r);
    throw TimedOut("init: " + std::to_string(missing.size()) + " of " + std::to_string(n) +
                       " ranks did not join within " + seconds(timeout()) + "; the first is " +
                       list_ranks({missing.empty() ? joined : missing[0]}),
                   timeout(), missing, failures_.states(), name(Op::Join), -1);
}

// In three steps: each rank posts the address of a word and its scheduler session; each tests whether it can read
// the next rank's word and may write there, and posts the result, its cores and its settings; all confirm that they
// have read. Single copy requires that all ranks can access the next one's memory, and yielding that all are in one
// scheduler session, because a rank cannot yield its core to another session.
void Comm::agree_on_conditions() {
    CallGuard call(*this, make_call(Op::Join));
    transport_.ring.set_policy(
        WaitPolicy::when(settings_.oversubscribed.value_or(segment_->world_size() > usable_cores())));
    static const uint64_t word = 0x72616e6b77697365;
    const uint64_t mine[2] = {reinterpret_cast<uint64_t>(&word), scheduler_session()};
    const uint64_t probed = transport_.ring.post(mine, sizeof mine);
    struct Proposal {
        bool single_copy, yields;
        int8_t oversubscribed;  // -1: not set
        Forced forced;
        uint64_t tuning;  // digest
        ProcessCores cores;
    };
    static_assert(sizeof(Proposal) <= kInline);
    const int8_t oversubscribed = settings_.oversubscribed ? *settings_.oversubscribed : -1;
    Proposal own{settings_.single_copy && transport_.n > 1,
                 true,
                 oversubscribed,
                 settings_.forced,
                 settings_.tuning.digest(),
                 process_cores()};
    if (const int next = (rank() + 1) % transport_.n; next != rank()) {
        uint64_t theirs[2];
        transport_.ring.await(next, probed);
        std::memcpy(theirs, transport_.ring.payload(next, probed), sizeof theirs);
        if (!transport_.memory.can_access(next, theirs[0], word)) own.single_copy = false;
        if (theirs[1] != mine[1]) own.yields = false;
    }
    const uint64_t step = transport_.ring.post(&own, sizeof own);
    Conditions agreed{transport_.n,     false, own.yields, own.single_copy, transport_.n > 1 ? own.forced : Forced{},
                      settings_.backend};
    std::string difference;
    std::vector<ProcessCores> cores{own.cores};
    for (int p = 0; p < transport_.n; ++p) {
        Proposal theirs;
        if (p == rank()) continue;
        transport_.ring.await(p, step);
        std::memcpy(&theirs, transport_.ring.payload(p, step), sizeof theirs);
        agreed.single_copy &= theirs.single_copy;
        agreed.yields &= theirs.yields;
        cores.push_back(theirs.cores);
        if (theirs.oversubscribed != oversubscribed)
            difference = "RANKWISE_OVERSUBSCRIBED differs between rank " + std::to_string(rank()) + " and rank " +
                         std::to_string(p);
        if (theirs.forced != own.forced)
            difference = "RANKWISE_ALGORITHM forces " + tuning::text_of(own.forced) + " on rank " +
                         std::to_string(rank()) + " and " + tuning::text_of(theirs.forced) + " on rank " +
                         std::to_string(p);
        if (theirs.tuning != own.tuning)
            difference = "the thresholds of the tuning files (RANKWISE_TUNING) differ between rank " +
                         std::to_string(rank()) + " and rank " + std::to_string(p);
    }
    transport_.ring.await_all(transport_.ring.post());  // all ranks have read the words
    if (!difference.empty()) throw BadArgument(difference + "; expected the same on all ranks");
    agreed.oversubscribed = settings_.oversubscribed.value_or(share_cores(cores));
    agreed.yields &= agreed.oversubscribed;
    agreed.thresholds = settings_.tuning.*tuning::kCores[tuning::cores_of(agreed.oversubscribed, agreed.yields)].second;
    transport_.set_conditions(agreed);
    transport_.log.restart_numbering();
}

Comm::Comm(std::shared_ptr<BufferCache> buffers, uint64_t group, int rank, double timeout, const Settings& settings)
    : buffers_(std::move(buffers)), segment_(buffers_->segment().shared_from_this()),
      memory_(std::make_shared<GroupMemory>(segment_, group, rank)), group_(memory_->group()),
      members_(group_.member(), group_.member() + group_.nranks), process_(group_.peers[rank].process),
      settings_(settings), failures_(transport_), transport_(*segment_, *memory_, rank, settings, failures_),
      messages_(Messages::make(segment_, memory_, transport_, failures_, settings.unexpected_bytes)),
      stream_(transport_.program), excluded_(size_t(group_.nranks)) {
    set_timeout(timeout);
    transport_.ring.first_timeout = this->timeout();
    group_.peers[rank].pid = segment_->record(members_[size_t(rank)]).pid.load();
    buffers_->join();
}

Comm::~Comm() {
    close(0);
    Waiter(kForever).watch(std::chrono::microseconds(500),
                           [this] { return !memory_->used_by_others() || fork_.is_child(); });
}

std::vector<Algorithm> Comm::algorithms(Op op, size_t bytes) const {
    const OpenLease lease(*this);
    return tuning::choices(transport_.conditions(), op, bytes, group_.non_temporal_from);
}

void Comm::name_group(const std::string& name) {
    const OpenLease lease(*this);
    segment_->name_group(group_.number, name);
}

void Comm::set_timeout(double seconds) {
    if (!(seconds > 0)) throw BadArgument("timeout: " + std::to_string(seconds) + " given, expected seconds above 0");
    transport_.ring.timeout = std::min(seconds, 1e9);
}

void Comm::check_open() const {
    const auto in_progress = [this] { return stream_.on_own_thread() || memory_->used_by_caller(); };
    if (closing_ && (memory_->closed() || !in_progress())) throw_closed();
    if (fork_.is_child())  // a child shares the segment with its parent, and peers would take it for the parent
        throw Closed("this communicator belongs to the parent of this forked process; a forked child is not a rank");
}

void Comm::throw_closed() { throw Closed("this communicator is closed"); }

Comm::OpenLease::OpenLease(const Comm& comm) : lease((comm.check_open(), comm.memory_->lease())) {
    if (!lease) throw_closed();
}

void Comm::check_root(int root, const char* argument) const {
    if (root < 0 || root >= world_size())
        throw BadArgument(std::string(argument) + ": rank " + std::to_string(root) + " given, expected 0 to " +
                          std::to_string(world_size() - 1));
}

void Comm::check_counts(const Counts& counts, const char* argument) const {
    if (counts.size() != size_t(world_size()))
        throw BadArgument(std::string(argument) + ": " + std::to_string(counts.size()) +
                          " counts given, expected one for each of " + std::to_string(world_size()) + " ranks");
}

std::shared_ptr<Registered> Comm::allocate(size_t bytes, bool zeroed) {
    check_open();
    return std::make_shared<Registered>(buffers_, bytes, zeroed);
}

std::shared_ptr<SharedBlock> Comm::shared_block(size_t bytes, const std::optional<SharedBlock::Ticket>& ticket) {
    check_open();
    return std::make_shared<SharedBlock>(buffers_, Member{members_[size_t(rank())], process_}, bytes, ticket);
}

namespace {
const uint8_t* bytes(const void* p) { return static_cast<const uint8_t*>(p); }
uint8_t* bytes(void* p) { return static_cast<uint8_t*>(p); }
void copy(void* to, const void* from, size_t n) {
    if (n && to != from) std::memmove(to, from, n);
}
}  // namespace

void Comm::barrier(const CallOptions& options) {
    barrier_without_sync(options);
    messages_->sync(timeout(), options);
}

void Comm::barrier_without_sync(const CallOptions& options) {
    CallGuard call(*this, make_call(Op::Barrier), 0, options);
    collectives::barrier(transport_.ring);
}

// A call of a collective: checks its arguments, and describes it to the other ranks, as the table of operations says.
// amount: a number of elements, or one for each rank.
template <Op operation> struct Comm::Collective {
    template <class Amount>
    Collective(Comm& comm, const CallOptions& options, const Amount& amount, DType dtype, ReduceOp op = ReduceOp::SUM,
               int root = 0)
        : kernel(checked(comm, dtype, op, root)), item(itemsize(dtype)), blocks(comm.blocks_of(amount, item)),
          call(comm, make_call(operation, dtype, op, root, agreed(amount)),
               operation == Op::AllToAll ? blocks.total() : blocks.size(comm.rank()), options) {}

    const ReduceKernel kernel;  // null without a reduction
    const size_t item;
    const Blocks blocks;  // each rank's
    const CallGuard call;

private:
    static ReduceKernel checked(const Comm& comm, DType dtype, ReduceOp op, int root) {
        if (row_of(operation).has & kRoot) comm.check_root(root);
        return row_of(operation).has & kReduction ? checked_kernel(dtype, op) : nullptr;
    }
    static uint64_t agreed(uint64_t count) { return count; }
    static uint64_t agreed(const Counts& counts) { return digest(counts); }
};

Blocks Comm::blocks_of(const Counts& counts, size_t item) const {
    check_counts(counts, "counts");
    return Blocks(counts.data(), world_size(), item);
}

void Comm::broadcast(void* data, uint64_t count, DType dtype, int root, const CallOptions& options) {
    const Collective<Op::Broadcast> c(*this, options, count, dtype, ReduceOp::SUM, root);
    if (transport_.n > 1) collectives::broadcast(transport_, bytes(data), c.blocks.size(0), root);
}

void Comm::all_reduce(void* data, uint64_t count, DType dtype, ReduceOp op, const CallOptions& options) {
    const Collective<Op::AllReduce> c(*this, options, count, dtype, op);
    if (transport_.n > 1) collectives::all_reduce(transport_, bytes(data), count, c.item, c.kernel);
}

void Comm::reduce(void* data, uint64_t count, DType dtype, ReduceOp op, int root, const CallOptions& options) {
    const Collective<Op::Reduce> c(*this, options, count, dtype, op, root);
    if (transport_.n > 1) collectives::reduce(transport_, bytes(data), count, c.item, c.kernel, root);
}

void Comm::all_gather(const void* send, void* recv, uint64_t count, DType dtype, const CallOptions& options) {
    const Collective<Op::AllGather> c(*this, options, count, dtype);
    collectives::all_gather(transport_, bytes(send), bytes(recv), c.blocks);
}

void Comm::gather(const void* send, void* recv, uint64_t count, DType dtype, int root, const CallOptions& options) {
    const Collective<Op::Gather> c(*this, options, count, dtype, ReduceOp::SUM, root);
    collectives::gather(transport_, bytes(send), bytes(recv), c.blocks, root);
}

void Comm::scatter(const void* send, void* recv, uint64_t count, DType dtype, int root, const CallOptions& options) {
    const Collective<Op::Scatter> c(*this, options, count, dtype, ReduceOp::SUM, root);
    collectives::scatter(transport_, bytes(send), bytes(recv), c.blocks, root);
}

void Comm::reduce_scatter(const void* send, void* recv, uint64_t count, DType dtype, ReduceOp op,
                          const CallOptions& options) {
    const Collective<Op::ReduceScatter> c(*this, options, count, dtype, op);
    if (transport_.n == 1) copy(recv, send, c.blocks.size(0));
    else collectives::reduce_scatter(transport_, bytes(send), bytes(recv), c.blocks, c.item, c.kernel);
}

void Comm::all_to_all(const void* send, void* recv, uint64_t count, DType dtype, const CallOptions& options) {
    const Collective<Op::AllToAll> c(*this, options, count, dtype);
    if (transport_.n == 1) copy(recv, send, c.blocks.size(0));
    else collectives::all_to_all(transport_, bytes(send), bytes(recv), c.blocks, c.blocks, c.blocks.largest());
}

Comm::Lock Comm::scatter_described(collectives::ArrayHeader& header, const void* send, void* recv,
                                   const collectives::PartBuffer& part_buffer, int root, const CallOptions& options) {
    check_root(root);
    if (rank() == root) header.bytes();
    CallGuard call(*this, make_call(Op::ScatterDescribed, {}, {}, root), sizeof header, options);
    if (!collectives::scatter_described(transport_, header, bytes(send), bytes(recv), part_buffer, root))
        return call.keep_lock();
    transport_.log.set_bytes(rank() == root ? header.bytes() : header.bytes() / uint64_t(transport_.n));
    return {};
}

// Runs `work`, a part of the current collective. If it throws, the group fails, since other ranks may have finished.
template <class Work> auto Comm::or_fail(const Work& work) {
    const std::string operation = name(transport_.log.op());
    try {
        return work();
    } catch (const Mismatch& e) {
        fail_group(group_, Cause::Mismatch, rank(), transport_.log.calls(), operation + ": " + e.what());
        failures_.throw_failure(operation);
    } catch (const std::exception& e) {
        if (!fork_.is_child())
            fail_group(group_, Cause::PeerLost, rank(), transport_.log.calls(),
                       "gave up " + operation + ": " + e.what());
        throw;
    }
}

Comm::Lock Comm::scatter_sized(Counts& sizes, const void* blocks, const collectives::PartBuffer& part_buffer, int root,
                               const CallOptions& options) {
    check_root(root);
    if (rank() == root) blocks_of(sizes, 1);
    CallGuard call(*this, make_call(Op::ScatterSized, {}, {}, root), 0, options);
    const bool done =
        or_fail([&] { return collectives::scatter_sized(transport_, sizes, bytes(blocks), part_buffer, root); });
    if (!done) return call.keep_lock();
    transport_.log.set_bytes(rank() == root ? std::accumulate(sizes.begin(), sizes.end(), uint64_t(0))
                                            : sizes[size_t(rank())]);
    return {};
}

void Comm::gather_sized(const void* block, size_t size, const collectives::BlockOf& block_of, int root,
                        const CallOptions& options) {
    check_root(root);
    const CallGuard call(*this, make_call(Op::GatherSized, {}, {}, root), size, options);
    or_fail([&] { collectives::gather_sized(transport_, *messages_, bytes(block), size, block_of, root, options); });
}

void Comm::all_gather_v(const void* send, void* recv, const Counts& counts, DType dtype, const CallOptions& options) {
    const Collective<Op::AllGatherV> c(*this, options, counts, dtype);
    collectives::all_gather(transport_, bytes(send), bytes(recv), c.blocks);
}

void Comm::gather_v(const void* send, void* recv, const Counts& counts, DType dtype, int root,
                    const CallOptions& options) {
    const Collective<Op::GatherV> c(*this, options, counts, dtype, ReduceOp::SUM, root);
    collectives::gather(transport_, bytes(send), bytes(recv), c.blocks, root);
}

void Comm::scatter_v(const void* send, void* recv, const Counts& counts, DType dtype, int root,
                     const CallOptions& options) {
    const Collective<Op::ScatterV> c(*this, options, counts, dtype, ReduceOp::SUM, root);
    collectives::scatter(transport_, bytes(send), bytes(recv), c.blocks, root);
}

void Comm::reduce_scatter_v(const void* send, void* recv, const Counts& counts, DType dtype, ReduceOp op,
                            const CallOptions& options) {
    const Collective<Op::ReduceScatterV> c(*this, options, counts, dtype, op);
    if (transport_.n == 1) copy(recv, send, c.blocks.size(0));
    else collectives::reduce_scatter(transport_, bytes(send), bytes(recv), c.blocks, c.item, c.kernel);
}

void Comm::all_to_all_v(const void* send, void* recv, const Counts& out, const Counts& in, DType dtype,
                        const CallOptions& options) {
    check_counts(out, "send_counts");
    check_counts(in, "recv_counts");
    const int n = transport_.n;
    const size_t item = itemsize(dtype);
    const Blocks blocks_out(out.data(), n, item), blocks_in(in.data(), n, item);
    CallGuard call(*this, make_call(Op::AllToAllV, dtype), blocks_out.total(), options);
    // The ranks exchange their counts, to check them and to agree on the number of rounds.
    Counts all(size_t(n) * n);
    collectives::all_gather(transport_, bytes(out.data()), bytes(all.data()), Blocks(n, uint64_t(n), sizeof(uint64_t)));
    uint64_t largest = 0;
    for (int from = 0; from < n; ++from)
        for (int to = 0; to < n; ++to)
            if (from != to) largest = std::max(largest, all[size_t(from) * n + to]);
    for (int from = 0; from < n; ++from) {
        const uint64_t sent = all[size_t(from) * n + rank()];
        if (sent == in[from]) continue;
        const std::string text = "all_to_all_v: rank " + std::to_string(from) + " sends " + std::to_string(sent) +
                                 " elements to rank " + std::to_string(rank()) + ", which expects " +
                                 std::to_string(in[from]);
        fail_group(group_, Cause::Mismatch, rank(), transport_.log.calls(), text);
        failures_.throw_failure(name(Op::AllToAllV));
    }
    if (n == 1) copy(recv, send, blocks_out.size(0));
    else collectives::all_to_all(transport_, bytes(send), bytes(recv), blocks_out, blocks_in, largest * item);
}

std::shared_ptr<Task> Comm::start(std::function<void()> operation, bool user_code, std::shared_ptr<void> keep) {
    check_open();
    return stream_.submit(std::move(operation), user_code, std::move(keep), Stream::call_site(transport_.program));
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
    case Stream::Outcome::Reached: return;
    case Stream::Outcome::Closing: return;  // no task behind it will run
    case Stream::Outcome::Failed:
        return abort("waited, before its next operation, for an event that can no longer be reached");
    case Stream::Outcome::Stopped: break;
    }
    if (late()) fail_group(group_, Cause::TimedOut, rank(), transport_.log.calls(), std::to_string(rank()));
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

uint64_t Comm::make_part(const std::vector<int>& ranks) {
    const OpenLease lease(*this);
    std::vector<Member> members;
    for (int r : ranks) {
        check_root(r, "ranks");
        members.push_back(transport_.members[size_t(r)]);
    }
    return create_group_segment(*segment_, members);
}

std::shared_ptr<Comm> Comm::take_part(uint64_t part) {
    const OpenLease lease(*this);
    GroupSegment* const group = find_group(*segment_, part);
    const int32_t* members = group ? group->member() : nullptr;
    const int n = group ? group->nranks : 0;
    const int index = int(std::find(members, members + n, members_[size_t(rank())]) - members);
    if (index == n)
        throw BadArgument("part: " + std::to_string(part) + " given, expected a group that contains this rank");
    auto comm = std::make_shared<Comm>(buffers_, part, index, timeout(), settings_);
    Conditions conditions = transport_.conditions();
    conditions.ranks = n;
    if (n == 1) conditions.single_copy = false, conditions.forced = {};
    comm->transport_.set_conditions(conditions);
    return comm;
}

std::shared_ptr<Comm> Comm::split(int64_t color, int64_t key) {
    struct Entry {
        int64_t color, key;
        bool operator<(const Entry& other) const { return key < other.key; }
    };
    const int n = transport_.n;
    std::vector<Entry> entries(n);
    std::vector<uint64_t> offsets(n);
    std::vector<int> ranks;  // of this group, in the order of the new one
    CallGuard call(*this, make_call(Op::Split));
    const Entry mine{color, key};
    collectives::all_gather(transport_, bytes(&mine), bytes(entries.data()), Blocks(n, 1, sizeof(Entry)));
    for (int r = 0; r < n; ++r)
        if (entries[r].color == color) ranks.push_back(r);
    std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return entries[a] < entries[b]; });

    constexpr uint64_t kNotCreated = 1;
    uint64_t created = 0;  // the offset of the new group's segment, on its first rank
    std::string trouble;
    if (color >= 0 && ranks[0] == rank()) {
        try {
            created = make_part(ranks);
        } catch (const Error& e) {
            created = kNotCreated;
            trouble = e.what();
        }
    }
    collectives::all_gather(transport_, bytes(&created), bytes(offsets.data()), Blocks(n, 1, sizeof created));
    if (color < 0) return nullptr;
    const uint64_t offset = offsets[ranks[0]];
    if (offset == kNotCreated) {
        if (trouble.empty())
            trouble = "shared memory: " + mib(group_segment_bytes(ranks.size())) + " needed, which rank " +
                      std::to_string(ranks[0]) + " could not allocate";
        throw OutOfMemory("split: " + trouble);
    }
    return take_part(offset);
}

void Comm::abort(const std::string& why) {
    if (fork_.is_child()) return;
    if (const GroupMemory::Use lease = memory_->lease())
        fail_group(group_, Cause::PeerLost, rank(), group_.peers[rank()].calls.load(), why);
}

}  // namespace rankwise
