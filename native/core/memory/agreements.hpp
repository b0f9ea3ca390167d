// The shared memory of agreements (failure/agreement.hpp).
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/policy.hpp"
#include "base/sizes.hpp"

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

}  // namespace rankwise
