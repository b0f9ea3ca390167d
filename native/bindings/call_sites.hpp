// The call site of an operation: the file and line of the innermost Python frame outside this package.
#pragma once
#include <string>

// "train.py:12" for the calling thread, or "" if there is no such frame. Needs the GIL.
std::string python_call_site();

// The call site that started the operation which this thread is running on a stream, else nullptr.
extern thread_local const std::string* started_at;

void bind_call_sites();
