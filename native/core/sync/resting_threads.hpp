// Whether this process can do anything while the calling thread only waits.
#pragma once
#include <optional>
#include <string>

namespace rankwise {

// The calling thread of the engine never runs the program's code: resting_threads() leaves it out.
void never_runs_the_program();

// The process's other threads, if each of them sleeps until another one wakes it, with how often each has gone to
// sleep; nothing if one of them may act, or if a signal may make the program act that does not end it. If two results
// are equal, none of these threads has run in between, and none will before the calling thread does something.
std::optional<std::string> resting_threads();

}  // namespace rankwise
