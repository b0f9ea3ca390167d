// The constants that somebody has chosen: sizes, counts and times, each with the reason for its value.
//
// What was measured was measured on two cores of a virtual machine; docs/reference/tuning.md names the commits, which
// have the figures. `rankwise tune` measures the Thresholds on another machine and writes a tuning file, which replaces
// them.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/sizes.hpp"

namespace rankwise {

inline constexpr int kMaxRanks = 1024;  // ranks of one host

// ---- shared memory ----

// Small enough that the slots that all ranks use stay in the cache; large enough that synchronising costs little
// compared with copying.
constexpr size_t slot_bytes_for(int ranks) { return ranks <= 16 ? 128 * KiB : 64 * KiB; }
inline constexpr int kTraced = 1024;  // entries of a rank in the trace
// The end of an operation on fewer bytes is not measured unless it waited: it takes less than about a microsecond.
inline constexpr uint64_t kTimedFrom = 4 * KiB;
inline constexpr uint32_t kNamedGroups = 256;
inline constexpr size_t kMostKeptBuffers = 64;  // registered ones; a search through them takes less than 0.1 us
// All ranks of the host together keep at most this part of the memory that was available.
inline constexpr size_t kKeptShareOfMemory = 8;
// Of the memory of closed groups, for the next groups: that of 32 groups of 2 ranks, or of one of 64.
inline constexpr size_t kKeptGroupMemory = 40 * MiB;
// From this size on, the system's free memory is read before memory is committed: a file that grows beyond what is free
// can end in the out-of-memory killer, and not in an error. Reading it takes as long as committing some 300 KiB.
inline constexpr size_t kCheckedMemory = 1 * MiB;

// ---- waiting ----

// The longest sleep between two checks of the deadline, the failure record and interrupts.
inline constexpr std::chrono::milliseconds kLongestSleep{100};
inline constexpr std::chrono::hours kForever{24 * 365};  // as good as no deadline
// How long the progress thread leaves everything to a thread that has waited, before others may wake it again. Round
// trips beside 10,000 pending receives: 9 us without it, where every fifth message woke a progress thread.
inline constexpr std::chrono::microseconds kStandAside{500};
// How many times more the idle progress thread polls, kStandAside apart. After that, the next message that nobody waits
// for has to wake it, which takes a core from a waiting rank: an exchange of 64 KiB took 30 us so, in place of 18.
inline constexpr int kIdlePolls = 20;
// An operation on so many bytes that takes several steps runs beside the program from its start; a shorter one once a
// peer or the program waits for it. To wake a thread takes some 5 us, or 15 in a virtual machine.
inline constexpr size_t kOverlapped = 512 * KiB;
// If ranks share cores, the thread takes one from them. 4 ranks on 2 cores: a broadcast of 1 MiB, started and waited
// for, takes 180 us without it and 410 with it, an all_to_all 310 and 480.
inline constexpr size_t kOverlappedOnSharedCores = 8 * MiB;
// A thread of the streams ends when it has had none to run for this long: a program that pauses for longer can wait for
// one to start.
inline constexpr std::chrono::seconds kIdleThread{1};

// ---- copying and reducing ----

inline constexpr size_t kBytesPerCheck = 512 * KiB;  // copied between two checks for a failure of the group
inline constexpr size_t kCacheBlock = 16 * KiB;      // reduced and copied at once, so that it stays in the L1 cache
inline constexpr size_t kScratch = 512 * KiB;        // private memory for data read from peers
inline constexpr size_t kKnownRanges = 8;            // of memory, recently found accessible to peers

// ---- failures ----

// A rank watches so many other ranks: enough that one of the watchers of a rank always runs.
inline constexpr int kWatched = 8;
// A process goes on for this long after SIGTERM, in which it may find a rank lost, and report that.
inline constexpr std::chrono::milliseconds kToFindLoss{200}, kToReportLoss{1000};
// How long an exit status is waited for: if it may be reported, and if it is sure to be.
inline constexpr std::chrono::milliseconds kLikelyStatus{400}, kSureStatus{5000};
inline constexpr std::chrono::milliseconds kExplanationTimeout{500};  // for a thread that is a few stores ahead
inline constexpr std::chrono::milliseconds kCallSiteTimeout{500};     // to wait for other ranks' call sites
inline constexpr std::chrono::seconds kStacksTimeout{1};              // to wait for other ranks' stacks
inline constexpr size_t kStacksText = 32 * KiB;                       // of one rank
// A rank waits this long for a decision, times the number of ranks before it, until it proposes an outcome itself.
inline constexpr std::chrono::milliseconds kPatience{50};
// How long a rank waits for a peer that may be stopped, while that peer may be writing to the rank's array or reading a
// message from it.
inline constexpr std::chrono::seconds kStoppedPeer{5};
// Closing waits this long for a function of the program that runs on the stream ...
inline constexpr double kUserCodeTimeout = 0.2;
// ... and so long for a call to notice that the group has failed, or is closed.
inline constexpr std::chrono::seconds kToNotice{5};

// ---- collectives ----

// A block is one rank's part of an array; the array of a broadcast is one block.
struct Thresholds {
    static constexpr size_t kNever = ~size_t(0);

    // Up to this size, divided by the number of ranks, every rank reduces everything: one step instead of two.
    size_t flat_all_reduce = 16 * KiB;
    // Up to this size root alone reduces everything; above, with more than two ranks, each rank reduces a share.
    size_t flat_reduce = 16 * KiB;
    // From this size on, reductions use registered buffers; agreeing on them takes one more step.
    size_t registered_reduction = 8 * KiB;
    // From these sizes on, reductions use the peers' private memory. Measured with arrays that the ranks had just
    // written; with reused arrays, single copy would already pay at smaller sizes.
    size_t single_copy_all_reduce = 256 * KiB;
    size_t single_copy_reduce = kNever;
    size_t single_copy_reduce_scatter = 4 * MiB;
    // From these sizes on, a block is copied from the peer's memory, registered or private.
    size_t registered_block = 24 * KiB;
    size_t single_copy_broadcast = 24 * KiB;
    size_t single_copy_all_gather = 24 * KiB;
    size_t single_copy_gather = 24 * KiB;
    size_t single_copy_scatter = 24 * KiB;
    size_t single_copy_all_to_all = 24 * KiB;
    // all_gather: from this size on, a rank writes its block into the receivers' memory. It reads the block once for
    // all of them, and large results are not yet in their caches. Arrays that are in no cache, 4 ranks on 2 cores: 256
    // KiB 1.15 to 1.06 ms, 1 MiB 4.1 to 2.6, 2 MiB 8.5 to 4.2; 2 ranks: 4 MiB 2.0 to 1.4 ms, 16 MiB 6.5 to 3.9.
    size_t put_all_gather = 1 * MiB;

    bool operator==(const Thresholds&) const = default;
};

// Thresholds by how the ranks of the host share its cores.
struct Tuning {
    Thresholds own_cores;           // every rank has a core
    Thresholds shared_cores = [] {  // there are more ranks than cores: waiting costs more than copying
        Thresholds t;
        t.single_copy_all_reduce = t.single_copy_reduce = t.single_copy_reduce_scatter = 1 * MiB;
        return t;
    }();
    // ... and the ranks yield their cores to each other. Then what all of them read goes through the slots: the second
    // rank of a core finds it in the cache, since the first has just read it.
    Thresholds yielded_cores = [] {
        Thresholds t;
        t.single_copy_all_reduce = t.single_copy_reduce = 1 * MiB;
        t.single_copy_broadcast = t.single_copy_all_gather = Thresholds::kNever;
        t.put_all_gather = 256 * KiB;
        // To agree on memory takes a turn of every rank on its core. 4 ranks on 2 cores, arrays just written: gather of
        // 64 KiB 45 to 26 us, all_to_all of 64 KiB for each rank 92 to 47.
        t.registered_block = t.single_copy_scatter = 128 * KiB;
        t.single_copy_all_to_all = 256 * KiB;
        t.single_copy_gather = 1 * MiB;
        return t;
    }();

    // Where the kernel copies slowly (kSlowSingleCopy), private memory is read from larger sizes on: below, two copies
    // by the ranks themselves take less time. An EPYC, 2 ranks, blocks of 32 KiB to 2 MiB: broadcast 0.7 of the time of
    // single_copy, all_gather 0.6, gather 0.8, all_to_all 0.8, all_reduce from 256 KiB on 0.7; scatter up to 128 KiB.
    void begin_single_copies_later();

    bool operator==(const Tuning&) const = default;
    uint64_t digest() const;
};

inline constexpr size_t kFlatLimit = 64 * KiB;  // fits any slot: a flat all_reduce cannot be larger
// all_gather into the peers' memory: a rank writes so much to each of them in turn, while it is in the cache.
inline constexpr size_t kPutPiece = 256 * KiB;
// From here on what a rank writes for far cores bypasses its caches. Between cores of an EPYC that share no cache (a
// step takes 450 ns and more), a message of 16 KiB takes 2.8 us one way in Python instead of 9.6, one of 64 KiB 6.3
// instead of 31. Between cores of a Xeon that share one (150 ns), it would take 10.5 us instead of 7.5 at 64 KiB.
inline constexpr size_t kThroughMemory = 16 * KiB;
// Cores are far from each other if a step between them takes longer than this: the lower quartile of kStepsTimed steps.
inline constexpr std::chrono::nanoseconds kFarStep{300};
inline constexpr int kStepsTimed = 16;
// In a gather of two ranks, root also copies half of a block smaller than this.
inline constexpr size_t kSmallGather = 1 * MiB;

// ---- messages ----

// The ring between two ranks. With more ranks it is smaller, since each pair that communicates has two: a bound on
// memory, not measured. A power of two (channel.hpp).
inline constexpr uint64_t ring_bytes(int ranks) { return ranks <= 8 ? 256 * KiB : 64 * KiB; }
// Failed requests that are kept for their errors; the first errors are the most informative.
inline constexpr size_t kMostFailed = 100;
// Up to here a message whose sender or receiver waits needs no request: 8 B 0.92 to 0.71 us, 4 KiB 1.09 to 0.66,
// 16 KiB 8.4 to 1.5. At most a piece of the ring.
inline constexpr uint64_t kShortMessage = 16 * KiB;
// The sender announces pieces of this size, so that from two pieces on both ranks copy at once.
inline constexpr uint64_t kRingPiece = 32 * KiB;
// The longest message that passes through the ring: between near cores, between ranks that share cores, and between far
// cores. Longer ones stay with their sender, and are copied once, by system calls; the ring copies shorter ones sooner,
// although twice, because both ranks copy at once. One way in Python, us, through the ring and copied once. Far cores:
// 64 KiB 3.6 and 9.2, 128 KiB 5.5 and 15.8. Near ones, arrays used again: 24 KiB 4.0 and 3.3, 64 KiB 6.6 and 3.9,
// 128 KiB 10.0 and 5.9; just written: 24 KiB 4.1 and 5.0, 32 KiB 4.8 and 5.1, 128 KiB 10.2 and 9.3. 4 ranks on 2 near
// cores, used again: 32 KiB 8.4 and 22, 64 KiB 14 and 24, 128 KiB 26 and 11.
inline constexpr uint64_t kInRingOfNear = 24 * KiB, kInRingOfShared = 64 * KiB;
// The kernel copies slowly if it takes so long for 32 KiB at best. Then near cores use the ring like far ones. An EPYC
// of Zen 3, 5.0 us: exchanges of 32 KiB 4.7 us through the ring and 9.8 copied once, 64 KiB 7.7 and 14.5.
inline constexpr std::chrono::nanoseconds kSlowSingleCopy{4000};
inline constexpr size_t kSingleCopyTimed = 32 * KiB;
inline constexpr int kSingleCopiesTimed = 8;
inline constexpr uint64_t in_ring_of_far(int ranks) { return ring_bytes(ranks) / 2; }
// If ranks share cores, a rank of an exchange yields this many times for room in the ring.
inline constexpr int kYieldsForRoom = 4;
// If ranks share cores, a rank that waits for a message yields its core this many times before it sleeps; to be woken
// takes some 50 us. Round trips of objects of 1 MiB between 2 of 4 ranks on 2 cores: 310 us with 50 yields, 180 with
// 150.
inline constexpr int kYieldsForMessage = 150;
// So long after another program has kept a rank's core, its waits do not yield it.
inline constexpr std::chrono::milliseconds kCoreLost{50};
// If ranks share cores, a rank spins this long for a message from another core before it yields its core. Round trips
// in Python between pairs of 4 ranks on 2 cores, best of three runs: 8 B from 6 to 1.2 us, a small dict from 10 to 4.
inline constexpr std::chrono::microseconds kSpinForAnswer{4};
// After a spin without an answer it spins 2^kDoublings times less often, down to one wait in 2^kMostDoublings;
// after an answer, twice as often. So it goes on if three spins in four are answered. A round trip after a barrier
// takes 10.5 us; with 20 us and kDoublings = 1 it took 11 to 13, and without spinning 10.
inline constexpr uint32_t kDoublings = 3, kMostDoublings = 6;
// The size of the pieces that both ranks copy: half the message, from 16 to 32 KiB; or a quarter of it, up to 256 KiB,
// if that is more. Each is a system call: 64 KiB take 6 us in one call, 10 in four.
inline constexpr uint64_t piece_of_job(uint64_t bytes) {
    return std::max(std::clamp<uint64_t>(round_up(bytes / 2, 4 * KiB), 16 * KiB, 32 * KiB),
                    std::min<uint64_t>(round_up(bytes / 4, 4 * KiB), 256 * KiB));
}

namespace tuning {

// ---- the thresholds by their names, which a tuning file uses ----

inline constexpr std::pair<const char*, Thresholds Tuning::*> kCores[] = {{"own_cores", &Tuning::own_cores},
                                                                          {"shared_cores", &Tuning::shared_cores},
                                                                          {"yielded_cores", &Tuning::yielded_cores}};
inline constexpr std::pair<const char*, size_t Thresholds::*> kThresholds[] = {
    {"flat_all_reduce", &Thresholds::flat_all_reduce},
    {"flat_reduce", &Thresholds::flat_reduce},
    {"registered_reduction", &Thresholds::registered_reduction},
    {"single_copy_all_reduce", &Thresholds::single_copy_all_reduce},
    {"single_copy_reduce", &Thresholds::single_copy_reduce},
    {"single_copy_reduce_scatter", &Thresholds::single_copy_reduce_scatter},
    {"registered_block", &Thresholds::registered_block},
    {"single_copy_broadcast", &Thresholds::single_copy_broadcast},
    {"single_copy_all_gather", &Thresholds::single_copy_all_gather},
    {"single_copy_gather", &Thresholds::single_copy_gather},
    {"single_copy_scatter", &Thresholds::single_copy_scatter},
    {"single_copy_all_to_all", &Thresholds::single_copy_all_to_all},
    {"put_all_gather", &Thresholds::put_all_gather},
};
static_assert(sizeof(Thresholds) == std::size(kThresholds) * sizeof(size_t));
static_assert(sizeof(Tuning) == std::size(kCores) * sizeof(Thresholds));

// The index in kCores of the entry for a group.
inline size_t cores_of(bool oversubscribed, bool yields) { return oversubscribed + (oversubscribed && yields); }

using NamedValue = std::tuple<std::string, std::string, uint64_t>;  // ("own_cores", "flat_reduce", 4096)
// The defaults, with these values in their places. Throws BadArgument for a name that does not exist.
Tuning parse_tuning(const std::vector<NamedValue>& values, bool slow_single_copies = false);

}  // namespace tuning
}  // namespace rankwise
