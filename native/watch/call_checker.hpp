// The thread of a watched process that compares the ranks' calls and looks for calls that last too long. It needs
// nothing of the program: the program may never release its interpreter.
#pragma once
#include "watch/watched_calls.hpp"

namespace rankwise {

struct CheckerOptions {
    int world_size = 0;   // of the job
    double timeout = 60;  // seconds after which a call lasts too long
    bool abort = false;   // whether a call that lasts too long ends the job
};

// Starts the thread, which ends with the process, as do the arguments. It writes its reports to standard error.
void start_checker(const CallWriter& writer, const CheckerOptions& options, Embedding& program);
// The last comparison, when the program has ended: whichever of two ranks ends later sees the calls of both.
void check_at_end(const CallWriter& writer, const CheckerOptions& options, Embedding& program);

// Why the calls of the segment's ranks ended the job; "" if they did not.
std::string why_ended(const Segment& segment);

}  // namespace rankwise
