// Notices at once when a process ends: a peer, whose groups then fail, or the launcher.
#pragma once
#include <memory>

#include "memory/segment.hpp"

namespace rankwise {

// Watch the processes of all other ranks of `segment`, for as long as this process holds it.
void watch_peers(std::shared_ptr<Segment> segment, int rank);
// End this process when the process `pid` ends: SIGTERM, and a second later SIGKILL.
void end_with(int pid);

}  // namespace rankwise
