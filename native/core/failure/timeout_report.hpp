// What a rank that waited too long finds out, written down in the segment so that all ranks of the
// group report the same.
#pragma once
#include <string>
#include <vector>

#include "failure/errors.hpp"
#include "memory/segment.hpp"

namespace rankwise {

struct TimeoutReport {
    std::string headline;      // "rank 3 did not come to all_reduce #12 within 3 s"
    std::vector<int> missing;  // ranks of the group
    Calls states;              // where each rank of the group is
    Calls stacks;              // the program's stacks of the missing ranks, where they can be had
};

// In a new block of the segment; its offset, 0 where there is no room.
uint64_t write_report(Segment& segment, const TimeoutReport& report);
TimeoutReport read_report(const Segment& segment, uint64_t offset);

std::string ranks_in_words(const std::vector<int>& ranks);  // "rank 3", "ranks 0-2, 5"
// A line for all ranks that are at the same place: "\n  ranks 0-2, 5: in all_reduce #12 for 2.9 to 3.0 s".
std::string states_in_words(const Calls& states);

}  // namespace rankwise
