// The stacks of the ranks' programs, as the embedding shows them, asked for by other ranks.
//
// A rank that can answer says so and has a thread wait for questions; nothing else of it is
// disturbed. Its answer stands in a block of the segment.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "memory/segment.hpp"

namespace rankwise {

// For the answering rank: take part; asleep until somebody asks, false once stop_stacks was called;
// the answer, of which the last 32 KiB count.
void offer_stacks(Segment& segment, int rank);
bool await_question(Segment& segment, int rank);
void tell_stacks(Segment& segment, int rank, const std::string& text);
void stop_stacks(Segment& segment, int rank);

// Ask those of these (world) ranks that take part, and give them a second altogether.
void ask_for_stacks(Segment& segment, const std::vector<int>& ranks);
// What the rank answered when it was asked last, or that it did not; nothing where it takes no part.
std::optional<std::string> stacks_told(Segment& segment, int rank);

}  // namespace rankwise
