// Threads that the engine starts: they receive no signals, and nothing interrupts them.
#pragma once
#include <functional>
#include <thread>

namespace rankwise {

extern thread_local constinit bool is_engine_thread;
std::thread engine_thread(std::function<void()> body);

}  // namespace rankwise
