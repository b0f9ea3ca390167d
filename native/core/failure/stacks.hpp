// The stacks of the ranks' programs, as the embedding formats them, asked for by other ranks.
//
// A rank that is a process has a pipe that its watcher (watchdog.cpp) polls beside all else. Another
// process of the same user writes a byte there; a thread that is started only then puts the answer
// into a block of the segment.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "failure/errors.hpp"
#include "memory/segment.hpp"

namespace rankwise {

// The stacks of this process's threads. Set once by the embedding, called in an engine thread; it may
// block for ever.
extern std::string (*program_stacks)();

// For the answering rank: the descriptor to poll, the caller's to close, -1 where there can be none;
// what to do when it is readable.
int open_doorbell(Segment& segment, int rank);
void answer_doorbell(const std::shared_ptr<Segment>& segment, int rank, int doorbell);

// Ask these (world) ranks and give them a second altogether. What each answered, of which the last
// 32 KiB count, or why it did not; nothing of a rank that has ended or cannot be asked.
Calls ask_for_stacks(Segment& segment, const std::vector<int>& ranks);

}  // namespace rankwise
