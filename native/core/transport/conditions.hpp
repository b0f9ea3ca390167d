// What the ranks of a group agreed on when it was made. Every rank chooses its algorithms by this, so that
// all choose alike and choosing communicates nothing.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "memory/group_segment.hpp"

namespace rankwise {

enum class Algorithm : uint8_t {
    None,
    Inline,         // the data travels in the slot header that announces the step
    Flat,           // through the slots, and whoever needs a result reduces all of it
    Staged,         // through the slots, in pieces; a reduction gives each rank a share of every piece
    SingleCopy,     // ranks read their peers' private memory (get); a reduction also writes its share there
    SingleCopyPut,  // ranks write their block into their peers' private memory
    Registered,     // as SingleCopy, in memory of the segment, which all ranks reach
    RegisteredPut,  // as SingleCopyPut, likewise
    Separate,       // of a scatter whose array only root knows: the header first, the parts in a scatter of their own
};
inline constexpr int kAlgorithms = 9;

inline constexpr int kOps = int(Op::Exscan) + 1;
using Forced = std::array<Algorithm, kOps>;  // the algorithm of each operation, None where it is not forced

// What the program asks of its groups, the same on all ranks.
struct Settings {
    Forced forced{};
    std::optional<bool> oversubscribed;  // instead of what the cores say
    bool single_copy = true;             // false: ranks leave each other's private memory alone
    std::string backend = "shm";         // the name by which the program opened it, for errors
};

struct Conditions {
    int ranks = 1;
    bool oversubscribed = false;  // the host runs more ranks than this process may use cores
    bool yields = false;          // so it is, and a rank that waits can yield its core to any other
    bool single_copy = false;     // ranks may read and write each other's private memory
    Forced forced{};
    std::string backend;  // as in Settings
};

}  // namespace rankwise
