// How ranks agree on one outcome, although any of them may die or stop at any moment: the protocol under shrink, agree
// and restore.
//
// Shared memory survives the ranks that write to it, so this needs no messages. The agreements of a group are numbered.
// In each, a rank announces that it has arrived, and waits until every other rank has arrived or will not come. Then
// the first rank that has arrived writes down an outcome, its proposal, and adopts it by one compare-and-swap of the
// decision. If it dies or stops before that, the next rank does the same a moment later. Whoever loses the
// compare-and-swap discards its own proposal: all ranks take the one that the decision names.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "memory/agreements.hpp"
#include "memory/group_memory.hpp"

namespace rankwise {

// One rank's part in the agreements of some ranks. What these are, a group or the whole job, says who can still come,
// and how they wait.
class Agreement {
public:
    // memory: of the communicator that takes part, or null; the rank stops waiting when it is closed.
    Agreement(Segment& segment, Agreements& shared, int rank, int n, uint32_t process, Op op, const GroupMemory* memory,
              Embedding& program)
        : segment_(segment), rank_(rank), n_(n), process_(process), op_(op), program_(program), shared_(shared),
          memory_(memory) {}
    // Takes part in the next agreement, and returns its outcome; at the latest `timeout` seconds after this rank has
    // arrived, the others decide without the ranks that are missing. If they have decided without this rank, it is not
    // in `present`. Throws Interrupted; then the rank may take part again. Throws Closed.
    Outcome decide(int64_t flags, double timeout);
    const std::string& trouble() const { return trouble_; }  // why this rank could not create a group

protected:
    ~Agreement() = default;
    // The process that takes part as `rank`, or -1 if that rank does not take part (any more).
    virtual int64_t process_of(int rank) const = 0;
    // Whether it is certain, although the rank has not arrived, that it will not: then nobody waits for it.
    virtual bool absent(int rank) const = 0;
    // Whether it is certain that the agreement cannot succeed, so that there is nothing to wait for.
    virtual bool futile() const { return false; }
    // Fills in the rest of a proposal whose status is Agreed so far, and whose `present` and `flags` are set.
    virtual void complete(Outcome& proposal) = 0;
    // The outcome includes a new group, which is released if the proposal is not adopted.
    void create_group(Outcome& proposal, const std::vector<Member>& members);
    // The futex on which this rank sleeps, and how it wakes all.
    virtual std::atomic<uint32_t>& notifications() = 0;
    virtual void wake() = 0;
    Segment& segment_;
    const int rank_, n_;
    const uint32_t process_;
    const Op op_;
    Embedding& program_;  // this rank's

private:
    struct Arrivals {
        Outcome outcome{};
        int before = 0;        // ranks that have arrived and precede this one
        bool awaited = false;  // a rank is missing that may still come
    };
    Arrivals arrivals(uint32_t number) const;
    Agreements& shared_;
    const GroupMemory* const memory_;
    std::string trouble_;
};

}  // namespace rankwise
