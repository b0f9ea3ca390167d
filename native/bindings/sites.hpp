// Where in a Python program a call stands: the file and line of the first frame outside this package.
#pragma once
#include <string>

// "train.py:12" for the calling thread, with the GIL; "" where there is no such frame.
std::string python_site();

// The site from which the work that this thread runs was started, while it runs; nullptr elsewhere.
extern thread_local const std::string* started_at;

void bind_sites();
