// The thresholds of the tuning table: the sizes in bytes at which a collective changes its algorithm.
//
// Beside each number is its source: the commit that measured it, on two cores of a virtual machine
// (docs/explanation/results.md). `rankwise tune` measures them on another machine and writes a tuning file, which
// replaces them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace rankwise {

inline constexpr size_t KiB = 1 << 10, MiB = 1 << 20;

// A block is one rank's part of an array; the array of a broadcast is one block.
struct Thresholds {
    static constexpr size_t kNever = ~size_t(0);

    // Up to this size, divided by the number of ranks, every rank reduces everything: one step instead of two
    // (7196b1c).
    size_t flat_all_reduce = 16 * KiB;
    // Up to this size root alone reduces everything; above, with more than two ranks, each rank reduces a share
    // (dfdcd02).
    size_t flat_reduce = 16 * KiB;
    // From this size on, reductions use registered buffers; agreeing on them takes one more step (5be98cc).
    size_t registered_reduction = 8 * KiB;
    // From these sizes on, reductions use the peers' private memory. Measured with arrays that the ranks had just
    // written; with reused arrays, single copy would already pay at smaller sizes (ec68fc1, e3f0ba2).
    size_t single_copy_all_reduce = 256 * KiB;
    size_t single_copy_reduce = kNever;
    size_t single_copy_reduce_scatter = 4 * MiB;
    // From these sizes on, a block is copied from the peer's memory, registered or private (2bc7955).
    size_t registered_block = 24 * KiB;
    size_t single_copy_broadcast = 24 * KiB;
    size_t single_copy_all_gather = 24 * KiB;
    size_t single_copy_gather = 24 * KiB;
    size_t single_copy_scatter = 24 * KiB;
    size_t single_copy_all_to_all = 24 * KiB;
    // all_gather: from this size on, a rank writes its block into the receivers' memory. It reads the block once
    // for all of them, and large results are not yet in their caches (b3536a0).
    size_t put_all_gather = 1 * MiB;

    // From these sizes on, an operation goes node by node if NumaNodes::divide allows it. Not measured, for lack of a
    // machine with several nodes. With n ranks on k nodes, the other algorithms of an all_reduce move the array up to 2
    // (n - n/k) times between the nodes. by_node moves it 2 (k - 1) times, but copies it once more within each node and
    // waits twice more for each piece. At these sizes the copies take far longer than the waits.
    size_t by_node_all_reduce = 1 * MiB;
    size_t by_node_reduce = 1 * MiB;
    size_t by_node_broadcast = 1 * MiB;

    bool operator==(const Thresholds&) const = default;
};

// Thresholds by how the ranks of the host share its cores.
struct Tuning {
    Thresholds own_cores;  // every rank has a core
    Thresholds shared_cores =
        [] {  // there are more ranks than cores: waiting costs more than copying (04e7b78, e3f0ba2)
            Thresholds t;
            t.single_copy_all_reduce = t.single_copy_reduce = t.single_copy_reduce_scatter = 1 * MiB;
            return t;
        }();
    // ... and the ranks yield their cores to each other. Then what all of them read goes through the slots: the second
    // rank of a core finds it in the cache, since the first has just read it (04e7b78, e3f0ba2).
    Thresholds yielded_cores = [] {
        Thresholds t;
        t.single_copy_all_reduce = t.single_copy_reduce = 1 * MiB;
        t.single_copy_broadcast = t.single_copy_all_gather = Thresholds::kNever;
        t.put_all_gather = 256 * KiB;
        return t;
    }();

    bool operator==(const Tuning&) const = default;
    uint64_t digest() const;
};

namespace tuning {

// The members of Tuning and of Thresholds by their names, which a tuning file uses.
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
    {"by_node_all_reduce", &Thresholds::by_node_all_reduce},
    {"by_node_reduce", &Thresholds::by_node_reduce},
    {"by_node_broadcast", &Thresholds::by_node_broadcast},
};
static_assert(sizeof(Thresholds) == std::size(kThresholds) * sizeof(size_t));
static_assert(sizeof(Tuning) == std::size(kCores) * sizeof(Thresholds));

// The index in kCores of the entry for a group.
inline size_t cores_of(bool oversubscribed, bool yields) { return oversubscribed + (oversubscribed && yields); }

using NamedValue = std::tuple<std::string, std::string, uint64_t>;  // ("own_cores", "flat_reduce", 4096)
// The defaults, with these values in their places. Throws BadArgument for a name that does not exist.
Tuning parse_tuning(const std::vector<NamedValue>& values);

}  // namespace tuning
}  // namespace rankwise
