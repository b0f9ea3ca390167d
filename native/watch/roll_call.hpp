// Where each rank of a host is: what is shown if a call lasts too long.
#pragma once
#include <string>

#include "watch/watched_calls.hpp"

namespace rankwise {

// The call of this rank that is in progress for the longest time, if it began before `before` (ticks).
std::optional<CallRecord> longest_call(const Segment& segment, int rank, const CallNames& names, uint64_t before);
// The call of this rank in a communicator with deferred calls that another rank of the segment has not followed, if it
// began before `before`.
std::optional<CallRecord> unfollowed_call(const Segment& segment, int rank, uint64_t before);
// "Barrier() #2 on COMM_WORLD at train.py:12".
std::string describe_call(const Segment& segment, int rank, const CallNames& names, const CallRecord& call);
// A line for each rank, then the stacks of all ranks.
std::string roll_call(Segment& segment, const CallNames& names, Embedding& program);

}  // namespace rankwise
