// Python whose stacks can be read even while a thread keeps the interpreter's lock, as some libraries do during a call.
#pragma once
#include "sync/embedding.hpp"

// To be called with the GIL, once.
rankwise::Embedding& watched_python();
