// Where each rank of a host is: what is shown if a call lasts too long.
#pragma once
#include <optional>
#include <string>

#include "watch/watched_calls.hpp"

namespace rankwise {

// The call of this rank that is in progress for the longest time.
std::optional<WatchedCall> longest_call(const Segment& segment, int rank);
// "Barrier() #2 on COMM_WORLD at train.py:12".
std::string describe_call(const Segment& segment, const CallNames& names, const WatchedCall& call);
double seconds_since(const Segment& segment, uint64_t ticks);
// A line for each rank, then the stacks of all ranks.
std::string roll_call(Segment& segment, const CallNames& names, Embedding& program);

}  // namespace rankwise
