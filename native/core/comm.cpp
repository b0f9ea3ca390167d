#include "call_guard.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <numeric>

#include "base/mix.hpp"
#include "failure/watcher.hpp"
#include "kernels/non_temporal.hpp"

namespace rankwise {

// Begins a call after all queued operations have run.
GroupMemory::Use Comm::begin_call(const CallOptions& options) {
    check_open();
    if (stream_.idle() && memory_->try_begin()) return memory_->call_with_lock();
    if (memory_->in_own_call())
        throw Error("a signal handler cannot call an operation of a group in the middle of another one");
    if (memory_->locked_by_caller()) {
        if (!memory_->begin_locked()) throw_closed();
        return memory_->call_inside_lock();
    }
    if (!stream_.on_own_thread()) stream_.sync(timeout(), options);
    begin_after_others(options);
    return memory_->call_with_lock();
}

void Comm::begin_after_others(const CallOptions& options) {
    if (memory_->try_begin()) return;
    options.before_waiting();
    const OpenLease lease(*this);
    if (!memory_->begin_when_unlocked(Waiter(timeout(), transport_.program), [this] { check_open(); }))
        throw TimedOut("another thread's call on this communicator did not finish within " + seconds(timeout()),
                       timeout(), {}, failures_.states(), "", -1);
}

Comm::Lock Comm::lock(const CallOptions& options) {
    GroupMemory::Use call = begin_call(options);
    return Lock(call);
}

std::shared_ptr<Comm> Comm::join(const std::shared_ptr<Segment>& segment, int rank, double timeout, RunsAs runs_as,
                                 const Settings& settings, uint32_t restart) {
    RankRecord& me = segment->record(checked_number("rank", rank, segment->world_size()));
    if (me.joined.load() > restart)
        throw BadArgument("rank: " + std::to_string(rank) + " given, which has already joined this segment");
    SegmentHeader& header = segment->header();
    if (restart > 0) prepare_replacement(*segment, rank, restart);
    const TracedCall traced(*segment, rank, Op::Join, 0, settings.part);
    if (runs_as == RunsAs::Process) segment->set_owner(rank, restart);
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
        if (runs_as == RunsAs::Process) watch_peers(segment, rank, *settings.program);
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

void Comm::agree_on_conditions() {
    std::string difference;
    const CallGuard call(*this, make_call(Op::Join));
    call.run([&] { difference = exchange_conditions(); });
    if (!difference.empty()) throw BadArgument(difference + "; expected the same on all ranks");
}

// In three steps: each rank posts the address of a word and its scheduler session; each tests whether it can read
// the next rank's word and may write there, and posts the result, its cores and its settings; all confirm that they
// have read. Single copy requires that all ranks can access the next one's memory, and yielding that all are in one
// scheduler session, because a rank cannot yield its core to another session. Returns how the settings differ, or "".
std::string Comm::exchange_conditions() {
    transport_.steps.set_policy(
        WaitPolicy::when(settings_.oversubscribed.value_or(segment_->world_size() > usable_cores())));
    static const uint64_t word = 0x72616e6b77697365;
    const uint64_t mine[2] = {reinterpret_cast<uint64_t>(&word), scheduler_session()};
    const uint64_t probed = transport_.steps.post(mine, sizeof mine);
    struct Proposal {
        bool single_copy, slow_single_copies, yields;
        int8_t oversubscribed;  // -1: not set
        Forced forced;
        uint64_t tuning;  // digest
        ProcessCores cores;
    };
    static_assert(sizeof(Proposal) <= kInline);
    const int8_t oversubscribed = settings_.oversubscribed ? *settings_.oversubscribed : -1;
    Proposal own{
        settings_.single_copy && transport_.n > 1,       false,          true, oversubscribed, settings_.forced,
        tuning::parse_tuning(settings_.tuning).digest(), process_cores()};
    if (const int next = (rank() + 1) % transport_.n; next != rank()) {
        uint64_t theirs[2];
        transport_.steps.await(next, probed);
        std::memcpy(theirs, transport_.steps.payload(next, probed), sizeof theirs);
        if (!transport_.memory.can_access(next, theirs[0], word)) own.single_copy = false;
        own.slow_single_copies = own.single_copy && transport_.memory.copies_slowly(next);
        if (theirs[1] != mine[1]) own.yields = false;
    }
    const uint64_t step = transport_.steps.post(&own, sizeof own);
    Conditions agreed{transport_.n,
                      false,
                      own.yields,
                      own.single_copy,
                      own.slow_single_copies,
                      transport_.n > 1 ? own.forced : Forced{},
                      settings_.backend};
    std::string difference;
    std::vector<ProcessCores> cores{own.cores};
    for (int p = 0; p < transport_.n; ++p) {
        Proposal theirs;
        if (p == rank()) continue;
        transport_.steps.await(p, step);
        std::memcpy(&theirs, transport_.steps.payload(p, step), sizeof theirs);
        agreed.single_copy &= theirs.single_copy;
        agreed.slow_single_copies |= theirs.slow_single_copies;
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
    transport_.steps.await_all(transport_.steps.post());  // all ranks have read the words
    if (!difference.empty()) return difference;
    agreed.oversubscribed = settings_.oversubscribed.value_or(share_cores(cores));
    agreed.yields &= agreed.oversubscribed;
    agreed.thresholds = tuning::parse_tuning(settings_.tuning, agreed.slow_single_copies).*
                        tuning::kCores[tuning::cores_of(agreed.oversubscribed, agreed.yields)].second;
    transport_.set_conditions(agreed);
    if (transport_.n > 1 && !agreed.oversubscribed) set_peers_far(time_of_step() > kFarStep);
    transport_.log.restart_numbering();
    return {};
}

// The lower quartile of the times in which this rank posts a step and sees one of the rank furthest from it.
std::chrono::nanoseconds Comm::time_of_step() {
    std::array<std::chrono::nanoseconds, kStepsTimed> times;
    for (auto& time : times) {
        const auto begin = Clock::now();
        transport_.steps.await((rank() + transport_.n / 2) % transport_.n, transport_.steps.post());
        time = Clock::now() - begin;
    }
    std::nth_element(times.begin(), times.begin() + kStepsTimed / 4, times.end());
    return times[kStepsTimed / 4];
}

Comm::Comm(std::shared_ptr<BufferCache> buffers, uint64_t group, int rank, double timeout, const Settings& settings)
    : buffers_(std::move(buffers)), segment_(buffers_->segment().shared_from_this()),
      memory_(std::make_shared<GroupMemory>(segment_, group, rank)), group_(memory_->group()),
      members_(group_.member(), group_.member() + group_.nranks), process_(group_.peers[rank].process),
      settings_(settings), failures_(transport_), transport_(*segment_, *memory_, rank, settings, failures_),
      messages_(Messages::make(segment_, memory_, transport_, failures_, settings.unexpected_bytes)),
      stream_(transport_.program), stand_in_(*this), excluded_(size_t(group_.nranks)) {
    set_timeout(timeout);
    transport_.steps.first_timeout = this->timeout();
    group_.peers[rank].pid = segment_->record(members_[size_t(rank)]).pid.load();
    buffers_->join();
}

Comm::~Comm() {
    close(0);
    Waiter(kForever).check_every(std::chrono::microseconds(500),
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
    transport_.steps.timeout = std::min(seconds, 1e9);
}

void Comm::check_open() const {
    const auto in_progress = [this] { return stream_.on_own_thread() || memory_->used_by_caller(); };
    if (closing_ && (memory_->closed() || !in_progress())) throw_closed();
    if (fork_.is_child())  // a child shares the segment with its parent, and peers would take it for the parent
        throw Closed("this communicator belongs to the parent of this forked process; a forked child is not a rank");
}

void Comm::throw_closed() { throw Closed("this communicator is closed"); }

Comm::OpenLease::OpenLease(const Comm& comm) : lease(comm.open_memory().lease()) {
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

std::shared_ptr<Registered> Comm::allocate(size_t bytes, Contents contents) {
    check_open();
    return std::make_shared<Registered>(buffers_, bytes, contents);
}

std::shared_ptr<SharedBlock> Comm::shared_block(size_t bytes, const std::optional<SharedBlock::Ticket>& ticket,
                                                bool filled) {
    check_open();
    return std::make_shared<SharedBlock>(buffers_, Member{members_[size_t(rank())], process_}, bytes, ticket, filled);
}

uint64_t Comm::make_subgroup(const std::vector<int>& ranks) {
    const OpenLease lease(*this);
    return create_subgroup(ranks);
}

uint64_t Comm::create_subgroup(const std::vector<int>& ranks) {
    std::vector<Member> members;
    for (int r : ranks) {
        check_root(r, "ranks");
        members.push_back(transport_.members[size_t(r)]);
    }
    return create_group_segment(*segment_, members);
}

std::shared_ptr<Comm> Comm::join_subgroup(uint64_t subgroup) {
    const OpenLease lease(*this);
    return enter_subgroup(subgroup);
}

std::shared_ptr<Comm> Comm::enter_subgroup(uint64_t subgroup) {
    GroupSegment* const group = find_group(*segment_, subgroup);
    const int32_t* members = group ? group->member() : nullptr;
    const int n = group ? group->nranks : 0;
    const int index = int(std::find(members, members + n, members_[size_t(rank())]) - members);
    if (index == n)
        throw BadArgument("subgroup: " + std::to_string(subgroup) + " given, expected a group that contains this rank");
    Conditions conditions = transport_.conditions();
    conditions.ranks = n;
    if (n == 1) {
        conditions.single_copy = false;
        conditions.forced = {};
    }
    std::shared_ptr<Comm> comm;
    try {
        comm = std::make_shared<Comm>(buffers_, subgroup, index, timeout(), settings_);
    } catch (const std::exception&) {
        leave_unjoined(*group, subgroup, index);
        throw;
    }
    comm->transport_.set_conditions(conditions);
    return comm;
}

// This rank has no memory for its end of a new group, whose other ranks need not wait for it.
void Comm::leave_unjoined(GroupSegment& group, uint64_t subgroup, int index) {
    fail_group(group, Cause::PeerLost, index, 0, "had no memory for its end of the group");
    group.peers[index].has_left = 1;
    GroupMemory memory(segment_, subgroup, index);
    const GroupMemory::Use last = memory.lease();  // whose end releases the memory
    memory.close();
}

std::shared_ptr<Comm> Comm::split(int64_t color, int64_t key) {
    std::string trouble;
    std::shared_ptr<Comm> subgroup;
    const CallGuard call(*this, make_call(Op::Split));
    call.run([&] { subgroup = split_off(color, key, trouble); });
    if (!trouble.empty()) throw OutOfMemory("split: " + trouble);
    return subgroup;
}

// The steps of a split. Returns null if this rank takes no part, or there was no room for its group; trouble: why not.
std::shared_ptr<Comm> Comm::split_off(int64_t color, int64_t key, std::string& trouble) {
    struct Entry {
        int64_t color, key;
        bool operator<(const Entry& other) const { return key < other.key; }
    };
    const int n = transport_.n;
    std::vector<Entry> entries(n);
    std::vector<uint64_t> offsets(n);
    std::vector<int> ranks;  // of this group, in the order of the new one
    const Entry mine{color, key};
    collectives::all_gather(transport_, bytes(&mine), bytes(entries.data()), Blocks(n, 1, sizeof(Entry)));
    for (int r = 0; r < n; ++r)
        if (entries[r].color == color) ranks.push_back(r);
    std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return entries[a] < entries[b]; });

    constexpr uint64_t kNotCreated = 1;
    uint64_t created = 0;  // the offset of the new group's segment, on its first rank
    if (color >= 0 && ranks[0] == rank()) {
        try {
            created = create_subgroup(ranks);
            group_.peers[rank()].subgroup = segment_->at<GroupSegment>(created)->number;
        } catch (const Error& e) {
            created = kNotCreated;
            trouble = e.what();
        }
    }
    collectives::all_gather(transport_, bytes(&created), bytes(offsets.data()), Blocks(n, 1, sizeof created));
    const uint64_t offset = color >= 0 ? offsets[ranks[0]] : kNotCreated;
    const auto subgroup = offset == kNotCreated ? nullptr : enter_subgroup(offset);
    try {
        // No rank returns with its new group until all ranks are in theirs. One that does not come so far leaves it.
        collectives::barrier(transport_);
    } catch (...) {
        if (subgroup) subgroup->abort("gave up split");
        throw;
    }
    if (subgroup) group_.peers[ranks[0]].subgroup = 0;
    if (subgroup || color < 0) return subgroup;
    if (trouble.empty())
        trouble = "shared memory: " + mib(group_segment_bytes(ranks.size())) + " needed, which rank " +
                  std::to_string(ranks[0]) + " could not allocate";
    return nullptr;
}

void Comm::abort(const std::string& why) {
    if (fork_.is_child()) return;
    if (const GroupMemory::Use lease = memory_->lease())
        fail_group(group_, Cause::PeerLost, rank(), transport_.log.begun(), why);
}

}  // namespace rankwise
