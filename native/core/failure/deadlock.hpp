// Ranks that wait for each other in a cycle, so that none of them can go on.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "memory/group_segment.hpp"

namespace rankwise {

// What a rank waits for.
struct Awaited {
    int peer;        // the rank without which it cannot go on
    std::string in;  // its operation: "recv, tag 0", "barrier #1"
    bool receives;   // that operation is a receive
};

// By rank: the rank without which each one cannot go on, if it has waited long enough for a deadlock; limit: seconds
// that the caller has waited.
std::vector<std::optional<Awaited>> awaited_ranks(const Segment& segment, const GroupSegment& group,
                                                  const std::vector<Member>& members, double limit);

// Continues a sentence by who waits for whom in the cycle to which `from` leads: "; a deadlock: rank 0 waits for rank 1
// (recv, tag 0), and rank 1 waits for rank 0 (barrier #1)". Returns "" if there is none. waits: by rank.
std::string describe_deadlock(const std::vector<std::optional<Awaited>>& waits, int from);

// The same for `from`, if the ranks of the cycle can never go on (p2p/vain_wait.hpp); else "".
std::string certain_deadlock(const Segment& segment, const GroupSegment& group, const std::vector<Member>& members,
                             int from);

}  // namespace rankwise
