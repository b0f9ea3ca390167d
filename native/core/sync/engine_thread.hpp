// Threads that the engine starts.
#pragma once
#include <functional>
#include <thread>

namespace rankwise {

extern thread_local constinit bool is_engine_thread;  // nothing interrupts its waits
// Starts one that receives no signals, except in user code (FunctionTask::Signals). Throws Error if the system refuses
// it, as at the limit of a container.
std::thread engine_thread(std::function<void()> body);

}  // namespace rankwise
