// Going on after a loss: what the survivors of a group do together, and how a replacement of a lost rank meets them.
#include <algorithm>

#include "comm.hpp"
#include "failure/agreement.hpp"
#include "failure/timeout_report.hpp"
#include "failure/watcher.hpp"

namespace rankwise {

namespace {

// The flags with which a rank takes part in a shrink that excludes these ranks: a hash of them, and its complement. The
// AND of all ranks' flags is such a pair only if all ranks pass the same hash.
int64_t flags_of(const RankSet& excluded, int n) {
    uint32_t hash = 2166136261u;  // FNV-1a
    for (int r = 0; r < n; ++r)
        if (excluded.contains(r)) hash = (hash ^ uint32_t(r)) * 16777619u;
    return int64_t(uint64_t(~hash) << 32 | hash);
}
bool all_equal(int64_t flags) { return uint32_t(uint64_t(flags) >> 32) == ~uint32_t(flags); }

// An agreement of a group's ranks, with or without a new group of those that are present.
class GroupAgreement : public Agreement {
public:
    // excluded: the ranks that are left out, whether or not they come.
    GroupAgreement(Segment& segment, const GroupMemory& memory, int rank, const RankSet& excluded, Op op,
                   Embedding& program)
        : Agreement(segment, *reinterpret_cast<Agreements*>(memory.group().base() + memory.group().agreements), rank,
                    memory.group().nranks, memory.group().peers[rank].process, op, &memory, program),
          group_(memory.group()), excluded_(excluded) {
        group_.sleepers.fetch_add(1);  // so that a rank that dies while it leaves the group is noticed
    }
    ~GroupAgreement() {
        if (!fork_.is_child()) group_.sleepers.fetch_sub(1);
    }

private:
    bool absent(int r) const override {
        return excluded_.contains(r) || group_.peers[r].has_left.load() ||
               segment_.ended(group_.member()[r], group_.peers[r].process);
    }
    int64_t process_of(int r) const override { return absent(r) ? -1 : int64_t(group_.peers[r].process); }
    void complete(Outcome& proposal) override {
        if (op_ != Op::Shrink) return;
        if (!all_equal(proposal.flags)) {
            proposal.status = Outcome::Status::Unequal;
            return;
        }
        std::vector<Member> members;
        for (int r = 0; r < n_; ++r)
            if (proposal.present.contains(r)) members.push_back({group_.member()[r], group_.peers[r].process});
        create_group(proposal, members);
    }
    std::atomic<uint32_t>& notifications() override { return group_.peers[rank_].notifications; }
    void wake() override { wake_all(group_); }

    GroupSegment& group_;
    const RankSet excluded_;
    const ForkMark fork_;
};

// The agreement by which all ranks of the job meet in a new group: the survivors, and a replacement of each lost rank.
class JobAgreement : public Agreement {
public:
    JobAgreement(Segment& segment, int rank, uint32_t process, const GroupMemory* memory, Embedding& program)
        : Agreement(segment, *segment.at<Agreements>(SegmentLayout(segment.world_size()).restores), rank,
                    segment.world_size(), process, Op::Restore, memory, program) {}

private:
    int64_t process_of(int r) const override { return segment_.present_process(r); }
    bool absent(int) const override { return false; }
    // Also watches the processes that have joined meanwhile.
    bool futile() const override {
        watch_peers(segment_.shared_from_this(), rank_, program_);
        for (int r = 0; r < n_; ++r)
            if (segment_.record(r).given_up.load() && segment_.present_process(r) < 0) return true;
        return false;
    }
    void complete(Outcome& proposal) override {
        std::vector<Member> members;
        for (int r = 0; r < n_; ++r) {
            if (proposal.present.contains(r))
                members.push_back({r, uint32_t(std::max<int64_t>(0, segment_.present_process(r)))});
            else
                proposal.status =
                    std::max(proposal.status,
                             segment_.record(r).given_up.load() ? Outcome::Status::GivenUp : Outcome::Status::Late);
        }
        if (proposal.status != Outcome::Status::Agreed) return;
        create_group(proposal, members);
        if (proposal.group)
            segment_.at<GroupSegment>(proposal.group)->attached.fetch_add(1);  // the header refers to it too
    }
    std::atomic<uint32_t>& notifications() override { return segment_.header().roster; }
    void wake() override { segment_.announce_roster(); }
};

[[noreturn]] void throw_not_restored(Segment& segment, const Outcome& outcome, double timeout, Embedding& program) {
    std::vector<int> missing;
    for (int r = 0; r < segment.world_size(); ++r) {
        if (outcome.present.contains(r)) continue;
        missing.push_back(r);
        if (outcome.status != Outcome::Status::GivenUp || !segment.record(r).given_up.load()) continue;
        const std::string how =
            segment.await_how_it_ended(r, std::max(segment.record(r).ended.load(), 1u) - 1, program);
        throw PeerLost("rank " + std::to_string(r) + " " + how +
                           ", and the launcher does not start it again; the other ranks may go on without it by shrink",
                       r, how, name(Op::Restore), -1);
    }
    throw TimedOut("restore: " + list_ranks(missing) + " did not come within " + seconds(timeout), timeout, missing, {},
                   name(Op::Restore), -1);
}

[[noreturn]] void no_memory(Op op, const std::string& trouble) {
    throw OutOfMemory(
        std::string(name(op)) + ": " +
        (trouble.empty() ? "another rank could not allocate the shared memory of the new group" : trouble));
}

}  // namespace

std::map<int, std::string> Comm::failed() const {
    const OpenLease lease(*this);
    std::map<int, std::string> found;
    for (int r = 0; r < world_size(); ++r) {
        if (r == rank()) continue;
        if (transport_.ended(r)) found[r] = transport_.await_how_it_ended(r);
        else if (group_.peers[r].has_left.load()) found[r] = "left the group";
        else if (excluded_[size_t(r)]) found[r] = "was left out when the others agreed to go on";
    }
    return found;
}

// Takes part in an agreement of this group, without the ranks `exclude`. If a rank does not come in time, the group
// fails, and the others may go on without it. The late rank then takes part in no later agreement, so that it never
// goes on alone as if the others had been lost. If some ranks call agree while others, which have noticed a failure,
// shrink the group, agree throws the failure, so that all come to shrink.
Outcome Comm::decide(Op op, int64_t flags, std::string& trouble, const RankSet& exclude) {
    const TracedCall traced(*segment_, members_[size_t(rank())], op, group_.number, settings_.part);
    const auto throw_excluded = [&] {
        const std::string how = "was excluded from the group, by the others' call or because it did not come to " +
                                std::string(name(op)) + " before their timeout";
        throw PeerLost("rank " + std::to_string(rank()) + " " + how, rank(), how, name(op), -1);
    };
    if (excluded_[size_t(rank())]) throw_excluded();
    for (;;) {
        RankSet excluded = exclude;
        for (int r = 0; r < world_size(); ++r)
            if (excluded_[size_t(r)]) excluded.add(r);
        GroupAgreement agreement(*segment_, *memory_, rank(), excluded, op, transport_.program);
        const Outcome outcome = agreement.decide(flags, timeout());
        trouble = agreement.trouble();
        if (!outcome.present.contains(rank())) {
            excluded_[size_t(rank())] = outcome.status != Outcome::Status::Unequal;  // if Unequal, nobody has gone on
            throw_excluded();
        }
        if (outcome.status == Outcome::Status::Unequal) return outcome;
        exclude_all_but(outcome.present, exclude);
        if (outcome.status != Outcome::Status::Mixed) return outcome;
        fail_group(group_, Cause::Mismatch, rank(), transport_.log.number(), "some ranks called agree, others shrink");
        if (op == Op::Agree) failures_.throw_failure(name(op));
    }
}

// The ranks that have been lost, were `left_out`, or did not come, are not waited for any more.
void Comm::exclude_all_but(const RankSet& present, const RankSet& left_out) {
    std::string missing;
    for (int r = 0; r < world_size(); ++r) {
        if (present.contains(r) || excluded_[size_t(r)]) continue;
        excluded_[size_t(r)] = true;
        if (!left_out.contains(r) && !transport_.ended(r) && !group_.peers[r].has_left.load())
            add_to_list(missing, std::to_string(r), ",");
    }
    if (!missing.empty()) fail_group(group_, Cause::TimedOut, rank(), transport_.log.number(), missing);
}

int64_t Comm::agree(int64_t flags) {
    const GroupMemory::Use call = begin_call();
    std::string trouble;
    return decide(Op::Agree, flags, trouble, {}).flags;
}

std::shared_ptr<Comm> Comm::shrink(const std::vector<int>& exclude) {
    RankSet excluded;
    for (int r : exclude) {
        check_root(r, "exclude");
        if (r == rank())
            throw BadArgument("exclude: rank " + std::to_string(r) + " given, which is this rank; expected others");
        excluded.add(r);
    }
    const OpenLease lease(*this);
    // What is still pending after a second waits for a rank that is left out.
    if (!exclude.empty() && !stream_.drain(1))
        fail_group(group_, Cause::PeerLost, rank(), transport_.log.begun(), "went on without " + list_ranks(exclude));
    const GroupMemory::Use call = begin_call();
    std::string trouble;
    const Outcome outcome = decide(Op::Shrink, flags_of(excluded, world_size()), trouble, excluded);
    if (outcome.status == Outcome::Status::Unequal)
        throw Mismatch("shrink: the ranks do not all exclude the same ranks; rank " + std::to_string(rank()) +
                           " excludes " + (exclude.empty() ? "none" : list_ranks(exclude)),
                       {}, {}, {}, -1);
    if (outcome.status == Outcome::Status::NoMemory) no_memory(Op::Shrink, trouble);
    auto comm = enter_subgroup(outcome.group);
    if (comm->rank() == 0) free_memory_of_lost(*segment_);
    return comm;
}

std::vector<int> Comm::numbers_in(const Comm& former) const {
    std::vector<int> numbers;
    const auto& all = former.members_;
    for (int member : members_) numbers.push_back(int(std::find(all.begin(), all.end(), member) - all.begin()));
    return numbers;
}

std::shared_ptr<Comm> Comm::restore() {
    const GroupMemory::Use call = begin_call();
    if (!segment_->header().restarts_expected.load())
        throw Unsupported("restore", settings_.backend,
                          "the launcher does not start lost ranks again; start the program by `rankwise run --restarts "
                          "N`, or go on without the lost ranks by shrink");
    const int me = members_[size_t(rank())];
    const TracedCall traced(*segment_, me, Op::Restore, group_.number, settings_.part);
    return meet(buffers_, me, group_.peers[rank()].process, timeout(), settings_, memory_.get());
}

std::shared_ptr<Comm> Comm::meet(const std::shared_ptr<BufferCache>& buffers, int rank, uint32_t process,
                                 double timeout, const Settings& settings, const GroupMemory* memory) {
    const std::shared_ptr<Segment> segment = buffers->segment().shared_from_this();
    const Waiter waiter(timeout);
    for (;;) {
        JobAgreement agreement(*segment, rank, process, memory, *settings.program);
        const Outcome outcome = agreement.decide(-1, waiter.left().count());
        if (outcome.status == Outcome::Status::NoMemory) no_memory(Op::Restore, agreement.trouble());
        const bool present = outcome.present.contains(rank);
        GroupSegment* const group = outcome.group ? find_group(*segment, outcome.group) : nullptr;
        if (group && group->peers[rank].process != process) continue;  // with the process before this one
        if (!group && process > 0 && !present) continue;               // decided before this replacement came
        if (!group) throw_not_restored(*segment, outcome, timeout, *settings.program);
        const uint64_t former = segment->header().world_group.exchange(outcome.group);
        GroupSegment* const old = former != outcome.group ? find_group(*segment, former) : nullptr;
        if (old && old->attached.fetch_sub(1) == 1) release_group_segment(*segment, former);
        watch_peers(segment, rank, *settings.program);
        auto comm = std::make_shared<Comm>(buffers, outcome.group, rank, timeout, settings);
        try {
            comm->agree_on_conditions();
            if (rank == 0) free_memory_of_lost(*segment);
            return comm;
        } catch (const PeerLost&) {  // another rank was lost meanwhile: all meet again
            comm->close(0);
        }
    }
}

// Before the process with this number joins in place of the one before it, which its launcher has seen end.
void Comm::prepare_replacement(Segment& segment, int rank, uint32_t process) {
    if (!segment.ended(rank, process - 1)) segment.mark_ended(rank, kStatusUnknown, process - 1);
    end_operations(segment, rank);
    segment.record(rank).pending_messages = 0;
    Agreements& agreements = *segment.at<Agreements>(SegmentLayout(segment.world_size()).restores);
    agreements.slots[rank].taken.store(agreements.latest());
}

}  // namespace rankwise
