// The stacks of other ranks' programs, as the embedding formats them.
//
// A rank that is a process has a doorbell: a pipe that its watcher thread (watcher.cpp) polls. Another process of the
// same user writes a byte to it; then the rank starts a thread that writes the answer into a block of the segment.
#pragma once
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.hpp"
#include "base/errors.hpp"
#include "memory/segment.hpp"

namespace rankwise {

// For the answering rank: returns the descriptor to poll, or none if it cannot be opened.
Descriptor open_doorbell(Segment& segment, int rank);
// To be called when the descriptor is readable. answering: the rank's own; whether a thread answers.
void answer_doorbell(const std::shared_ptr<Segment>& segment, int rank, int doorbell, Embedding& program,
                     const std::shared_ptr<std::atomic<bool>>& answering);

// Request the stacks of these (world) ranks, and wait at most so long in all. Returns the last 32 KiB of each answer,
// or why a rank did not answer; nothing for a rank that has ended or has no doorbell.
RankTexts request_stacks(Segment& segment, const std::vector<int>& ranks,
                         std::chrono::seconds timeout = kStacksTimeout);

// Whether this process, of the same PID namespace, is stopped by a signal or a debugger.
bool is_stopped(int pid);

}  // namespace rankwise
