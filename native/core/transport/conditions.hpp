// What the ranks of a group agreed on when it was created. Every rank chooses its algorithms by this alone, so all
// ranks choose the same one without communicating.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/policy.hpp"
#include "memory/group_segment.hpp"
#include "sync/embedding.hpp"

namespace rankwise {

enum class Algorithm : uint8_t {
    None,
    Inline,           // the data travels in the step header that announces the step
    Flat,             // through the slots; each rank that needs a result reduces all of it
    Staged,           // through the slots, in pieces; in a reduction each rank reduces a share of every piece
    SingleCopy,       // ranks read their peers' private memory (get); in a reduction they also write results there
    SingleCopyPut,    // ranks write their block into their peers' private memory
    SingleCopySplit,  // broadcast between two ranks: one reads half of the data, the other writes the rest, at the same
                      // time
    Registered,       // as SingleCopy, in memory of the segment, which all ranks can access
    RegisteredPut,    // as SingleCopyPut, in memory of the segment
    RegisteredSplit,  // as SingleCopySplit, in memory of the segment
};
inline constexpr int kAlgorithms = 10;

using Forced = std::array<Algorithm, kOps>;  // for each operation, the forced algorithm or None

// What the program sets for its groups. `forced`, `oversubscribed` and `tuning` (the values of parse_tuning) must be
// the same on all ranks; single copy needs the consent of all.
struct Settings {
    Forced forced{};
    std::optional<bool> oversubscribed;  // overrides the comparison of ranks with cores
    bool single_copy = true;             // false: ranks do not access each other's private memory
    std::string backend = "shm";         // the name under which the program opened it, for errors
    bool part = false;                   // its operations are parts of another communicator's, which traces them
    std::vector<tuning::NamedValue> tuning{};
    uint64_t unexpected_bytes = 64 << 20;   // limit on the unexpected messages that this rank keeps
    Embedding* program = &Embedding::none;  // this rank's
};

struct Conditions {
    int ranks = 1;
    bool oversubscribed = false;  // ranks of this host share cores
    bool yields = false;          // oversubscribed, and a waiting rank can yield its core to any other rank
    bool single_copy = false;     // ranks may read and write each other's private memory
    bool slow_single_copies = false;
    Forced forced{};
    std::string backend;  // as in Settings
    Thresholds thresholds{};
};

}  // namespace rankwise
