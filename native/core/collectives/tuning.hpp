// The tuning table: decides which algorithm a collective runs. The decision depends only on the operation, the
// group's conditions and the sizes, which are the same on every rank. The sizes at which it changes are in
// base/policy.hpp; a tuning file may set others.
#pragma once
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "transport/conditions.hpp"
#include "transport/exposure.hpp"

namespace rankwise::tuning {

// The bytes of a call: of its largest block (one rank's part), and of all blocks together. An operation without blocks
// counts as one block.
struct Extent {
    size_t largest, total;
    Extent(size_t bytes) : largest(bytes), total(bytes) {}
    Extent(size_t largest, size_t total) : largest(largest), total(total) {}
};

// The memory of the ranks in which the algorithm works; None for one that uses the slots.
constexpr Exposure memory_of(Algorithm algorithm) {
    switch (algorithm) {
    case Algorithm::SingleCopy:
    case Algorithm::SingleCopyPut:
    case Algorithm::SingleCopySplit: return Exposure::Private;
    case Algorithm::Registered:
    case Algorithm::RegisteredPut:
    case Algorithm::RegisteredSplit: return Exposure::Registered;
    default: return Exposure::None;
    }
}

// The algorithms of a call, in the order in which they are tried. Those that use the ranks' own memory come first. The
// ranks then agree on what memory they have, and all run the first algorithm that can work in it.
class Choice {
public:
    constexpr Choice(Algorithm first, Algorithm second = Algorithm::None, Algorithm third = Algorithm::None)
        : packed_(uint32_t(first) | uint32_t(second) << 8 | uint32_t(third) << 16) {}
    constexpr Algorithm first() const { return Algorithm(packed_ & 0xff); }
    constexpr Choice rest() const { return Choice(packed_ >> 8); }
    // The least memory that suffices for one of those that use the ranks' own memory.
    constexpr Exposure memory() const {
        const Exposure next = memory_of(rest().first());
        return next == Exposure::None ? memory_of(first()) : next;
    }
    // The choice that is left if the ranks expose such memory.
    constexpr Choice in(Exposure exposure) const { return memory_of(first()) > exposure ? rest().in(exposure) : *this; }

private:
    explicit constexpr Choice(uint32_t packed) : packed_(packed) {}
    uint32_t packed_;
};

// Returns the forced algorithm. If it cannot run, throws Unsupported, which says what it needs.
Choice forced(const Conditions& c, Op op, const Extent& e, Algorithm algorithm);

// All ranks have found that the algorithm that is forced on this call cannot run. Throws Unsupported.
[[noreturn]] void none_can_run(const Conditions& c, Op op);

inline bool splits(Algorithm algorithm) {
    return algorithm == Algorithm::SingleCopySplit || algorithm == Algorithm::RegisteredSplit;
}

// How many bytes a rank puts into a step header with the inline algorithm: its own block, or all blocks.
constexpr size_t in_header(Op op, const Extent& e) {
    return op == Op::AllGather || op == Op::AllGatherV || op == Op::Gather || op == Op::GatherV ? e.largest : e.total;
}

// For operations that copy whole blocks.
inline Choice choice_for_blocks(const Conditions& c, size_t largest, size_t single_copy_from) {
    using enum Algorithm;
    if (c.single_copy && largest >= single_copy_from) return {SingleCopy, Staged};
    return largest >= c.thresholds.registered_block ? Choice(Registered, Staged) : Choice(Staged);
}

inline Choice choice_for_reduction(const Conditions& c, size_t bytes, size_t single_copy_from, Algorithm slots) {
    using enum Algorithm;
    if (bytes < c.thresholds.registered_reduction) return slots;
    return c.single_copy && bytes >= single_copy_from ? Choice(Registered, SingleCopy, slots)
                                                      : Choice(Registered, slots);
}

// Between two ranks, both copy. Arrays that are in no cache: 24 KiB 11.9 to 8.4 us, 256 KiB 72 to 39, 1 MiB 323 to 147,
// 16 MiB 3900 to 1900.
inline Choice broadcast(const Conditions& c, size_t bytes) {
    using enum Algorithm;
    const Choice choice = choice_for_blocks(c, bytes, c.thresholds.single_copy_broadcast);
    if (c.ranks != 2 || choice.first() == Staged) return choice;
    return {choice.first() == SingleCopy ? SingleCopySplit : RegisteredSplit, Staged};
}

inline Choice all_gather(const Conditions& c, size_t largest, bool non_temporal) {
    using enum Algorithm;
    if (largest >= c.thresholds.put_all_gather && !(c.yields && non_temporal))
        return {c.single_copy ? SingleCopyPut : RegisteredPut, Staged};
    return choice_for_blocks(c, largest, c.thresholds.single_copy_all_gather);
}

// The table. non_temporal: the results of all ranks of an all_gather are written with non-temporal stores, which only
// the slots allow. Inlined, because an operation knows its `op` when it is compiled.
[[gnu::always_inline]] inline Choice choose(const Conditions& c, Op op, const Extent& e, bool non_temporal) {
    using enum Algorithm;
    const Thresholds& t = c.thresholds;
    if (in_header(op, e) <= kInline) return Inline;
    switch (op) {
    case Op::AllReduce: {
        const size_t flat = std::min(t.flat_all_reduce / size_t(c.ranks), kFlatLimit);
        return choice_for_reduction(c, e.total, t.single_copy_all_reduce, e.total > flat ? Staged : Flat);
    }
    case Op::Reduce:
        return choice_for_reduction(c, e.total, t.single_copy_reduce,
                                    c.ranks > 2 && e.total > t.flat_reduce ? Staged : Flat);
    case Op::ReduceScatter: return choice_for_reduction(c, e.total, t.single_copy_reduce_scatter, Staged);
    case Op::Broadcast: return broadcast(c, e.total);
    case Op::AllGather: return all_gather(c, e.largest, non_temporal);
    case Op::Gather: return choice_for_blocks(c, e.largest, t.single_copy_gather);
    case Op::Scatter: return choice_for_blocks(c, e.largest, t.single_copy_scatter);
    case Op::AllToAll: return choice_for_blocks(c, e.largest, t.single_copy_all_to_all);
    default: return None;
    }
}

// The longest block, in bytes, that travels with its size where only the ranks themselves know the sizes of blocks; and
// the most bytes of such blocks, in an all_to_all.
inline constexpr size_t kShortBlock = 1024, kShortBlocks = 4096;

// In a scatter or gather of two ranks, each rank copies one block: root its own within its memory, the other rank its
// own from or to root's memory. Where results do not stay in the cache (non_temporal), root uses non-temporal stores,
// which the system's copies between processes never do, and finishes first. So root also copies this much of the other
// block. Arrays that are in no cache: scatter of 24 MiB 2.5 to 1.8 ms, of 64 MiB 5.9 to 4.1; gather of 24 MiB from each
// rank 4.8 to 3.3.
inline size_t copied_by_root(const Conditions& c, size_t block, bool non_temporal) {
    return c.ranks == 2 && non_temporal ? block / 4 / 64 * 64 : 0;
}

// In a gather root also copies half of a small block: just written, 64 KiB 12.3 to 7.5 us, 512 KiB 51 to 37. Blocks
// that are in no cache gain nothing.
inline size_t gathered_by_root(const Conditions& c, size_t block, bool non_temporal) {
    return c.ranks == 2 && block < kSmallGather ? block - block / 2 : copied_by_root(c, block, non_temporal);
}

// ---- the table by names ----

const char* name(Algorithm algorithm);
// The operations that have several algorithms, with their algorithms.
const std::vector<std::pair<Op, std::vector<Algorithm>>>& algorithms();
// Throws BadArgument for a name that is not among them.
Op op_named(const std::string& name);
// {("all_reduce", "staged"), ("gather", "inline")}. Throws BadArgument, which lists the names that `backend` has.
Forced parse_forced(const std::vector<std::pair<std::string, std::string>>& names, const std::string& backend);
std::string text_of(const Forced& forced);
// The algorithms that a call tries if each rank's array has `bytes`, counted as rankwise bench does; empty if the
// forced algorithm cannot run.
std::vector<Algorithm> choices(const Conditions& c, Op op, size_t bytes, size_t non_temporal_from);

}  // namespace rankwise::tuning
