// Threads that the engine starts: they receive no signals, and nothing interrupts them.
#pragma once
#include <functional>
#include <thread>

namespace rankwise {

inline thread_local bool is_engine_thread = false;
std::thread engine_thread(std::function<void()> body);

}  // namespace rankwise
