// The threads that run streams: a stream has one only while it has tasks, so many groups need few threads.
#pragma once
#include <functional>

namespace rankwise::thread_pool {

// Runs `body` in an engine thread: in one that has nothing to do, else in a new one. A thread that had nothing to do
// for a while ends. Throws Error if none can be started.
void run(std::function<void()> body);

}  // namespace rankwise::thread_pool
