// What a rank finds out when its wait times out, stored in the segment so that all ranks of the group report the same.
#pragma once
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "memory/segment.hpp"

namespace rankwise {

struct TimeoutReport {
    std::string headline;      // "rank 3 did not reach all_reduce #12 within the timeout of 3 s"
    std::vector<int> missing;  // ranks of the group
    RankTexts states;          // what each rank of the group is doing
    RankTexts stacks;          // the program stacks of the missing ranks that could be obtained
};

// Writes the report to a new block of the segment; returns its offset, or 0 if there is no memory.
uint64_t write_report(Segment& segment, const TimeoutReport& report);
TimeoutReport read_report(const Segment& segment, uint64_t offset);

// One line for all ranks in the same state: "\n  ranks 0-2, 5: in all_reduce #12 for 2.9 to 3.0 s".
std::string list_states(const RankTexts& states);

}  // namespace rankwise
