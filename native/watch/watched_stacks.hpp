// Python whose stacks can be read even while a thread keeps the interpreter's lock, as some libraries do during a call.
#pragma once
#include "sync/embedding.hpp"

// dump: a file that faulthandler writes the stacks of all threads to when the process gets this signal. Both are of the
// first call.
rankwise::Embedding& watched_python(int dump, int signal);
