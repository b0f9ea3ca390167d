// Notices at once when the process of a peer, whose groups then fail, or of the launcher ends.
#pragma once
#include <memory>

#include "memory/segment.hpp"

namespace rankwise {

// Watch the processes of all other ranks of `segment`, until this process unmaps it.
void watch_peers(std::shared_ptr<Segment> segment, int rank);
// End this process when the process `pid` ends: with SIGTERM, and a second later with SIGKILL.
void end_with(int pid);

}  // namespace rankwise
