// How ranks agree on one outcome, although any of them may die or stop at any moment: the protocol under shrink, agree
// and restore.
//
// Shared memory survives the ranks that write to it, so this needs no messages. The agreements of a group are numbered.
// In each, a rank announces that it has arrived, and waits until every other rank has arrived or will not come. Then
// the first rank that has arrived writes down an outcome, its proposal, and adopts it by one compare-and-swap of the
// decision. If it dies or stops before that, the next rank does the same a moment later. Whoever loses the
// compare-and-swap discards its own proposal: all ranks take the one that the decision names.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "memory/group_memory.hpp"

namespace rankwise {

class RankSet {
public:
    bool contains(int rank) const { return words_[rank / 64] >> rank % 64 & 1; }
    void add(int rank) { words_[rank / 64] |= uint64_t(1) << rank % 64; }

private:
    uint64_t words_[kMaxRanks / 64] = {};
};

struct Outcome {
    // Mixed: the ranks that are present have not all called the same operation. Unequal: they exclude different ranks.
    enum class Status : uint32_t { Agreed, Late, GivenUp, NoMemory, Mixed, Unequal };
    RankSet present;  // the ranks that had arrived, and so take part in what follows
    int64_t flags;    // the AND of what these contributed
    uint64_t group;   // offset of the group segment that was created for them, or 0
    Status status;
};

// An Outcome that one rank may write while others read it. They may then read parts of two Outcomes, and discard them.
class SharedOutcome {
public:
    void store(const Outcome& outcome) {
        uint64_t words[kWords] = {};
        std::memcpy(words, &outcome, sizeof outcome);
        for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_relaxed);
    }
    Outcome load() const {
        uint64_t words[kWords];
        for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
        Outcome outcome;
        std::memcpy(&outcome, words, sizeof outcome);
        return outcome;
    }

private:
    static constexpr size_t kWords = (sizeof(Outcome) + 7) / 8;
    std::atomic<uint64_t> words_[kWords];
};

// A rank's part of a group's agreements, in shared memory.
struct alignas(kCacheLine) AgreementSlot {
    std::atomic<uint64_t>
        arrival;                 // the agreement in which the rank has arrived, and its process: number << 32 | process
    std::atomic<uint32_t> op;    // the operation for which it has arrived
    std::atomic<int64_t> flags;  // what it contributes
    std::atomic<uint32_t> taken;  // the latest agreement whose outcome it has taken
    // The latest proposals with an even and an odd number: while one is being written, ranks may still read the one
    // before. The number is written first, so that a reader notices that it came too late.
    std::atomic<uint32_t> proposed[2];
    SharedOutcome proposals[2];
};

struct Agreements {
    // The latest decisions with an even and an odd number: the number << 32 | the rank whose proposal was adopted.
    alignas(kCacheLine) std::atomic<uint64_t> decisions[2];
    AgreementSlot slots[];
    uint32_t latest() const { return uint32_t(std::max(decisions[0].load() >> 32, decisions[1].load() >> 32)); }
};
constexpr size_t agreements_bytes(size_t ranks) { return sizeof(Agreements) + ranks * sizeof(AgreementSlot); }

// One rank's part in the agreements of some ranks. What these are, a group or the whole job, says who can still come,
// and how they wait.
class Agreement {
public:
    // memory: of the communicator that takes part, or null; the rank stops waiting when it is closed.
    Agreement(Agreements& shared, int rank, int n, uint32_t process, Op op, const GroupMemory* memory)
        : rank_(rank), n_(n), process_(process), op_(op), shared_(shared), memory_(memory) {}
    // Takes part in the next agreement, and returns its outcome; at the latest `timeout` seconds after this rank has
    // arrived, the others decide without the ranks that are missing. If they have decided without this rank, it is not
    // in `present`. Throws Interrupted; then the rank may take part again. Throws Closed.
    Outcome decide(int64_t flags, double timeout);

protected:
    ~Agreement() = default;
    // The process that takes part as `rank`, or -1 if that rank does not take part (any more).
    virtual int64_t process_of(int rank) const = 0;
    // Whether it is certain, although the rank has not arrived, that it will not: then nobody waits for it.
    virtual bool absent(int rank) const = 0;
    // Whether it is certain that the agreement cannot succeed, so that there is nothing to wait for.
    virtual bool futile() const = 0;
    // `complete` fills in the rest of a proposal whose status is Agreed so far, and whose `present` and `flags` are
    // set. `discard` releases what `complete` has created, if the proposal was not adopted.
    virtual void complete(Outcome& proposal) = 0;
    virtual void discard(const Outcome& proposal) = 0;
    // The futex on which this rank sleeps, and how it wakes all.
    virtual std::atomic<uint32_t>& notifications() = 0;
    virtual void wake() = 0;
    const int rank_, n_;
    const uint32_t process_;
    const Op op_;

private:
    struct Arrivals {
        Outcome outcome{};
        int before = 0;        // ranks that have arrived and precede this one
        bool awaited = false;  // a rank is missing that may still come
    };
    Arrivals arrivals(uint32_t number) const;
    Agreements& shared_;
    const GroupMemory* const memory_;
};

}  // namespace rankwise
