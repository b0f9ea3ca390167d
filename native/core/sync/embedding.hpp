// What the engine needs of the program that embeds it: of its language's interpreter, and of the code that makes a
// call.
#pragma once
#include <string>

#include "base/clock.hpp"
#include "base/operations.hpp"

namespace rankwise {

// Where in the program a call was made, to be described only if somebody asks: a part of the program, which lives as
// long as the operation, and a position in it; and the same of the library that the program called for it, if any.
struct CodePlace {
    void* code = nullptr;  // null for none
    int position = 0;
    void* library = nullptr;
    int library_position = 0;
};

// The program around the engine, such as a Python interpreter. Each rank names its own when it joins (Settings); it
// must outlive the rank's communicators. These defaults suit a program without an interpreter.
struct Embedding {
    // Called in a waiting thread of the program after a signal, and at least once per kLongestSleep of sleep. Returns
    // true to stop the wait (in Python: a signal handler raised).
    virtual bool interrupted() { return false; }
    // Where in the program the calling thread made its call, "train.py:12", or "". Called in a thread of the program
    // when it starts an operation, or when the group of its call has failed.
    virtual std::string call_site() { return ""; }
    virtual std::string describe(const CodePlace& /*place*/) { return ""; }
    // When a rank of this host was last stopped in a debugger. A wait that has lasted since then begins anew there, so
    // that no timeout runs meanwhile.
    virtual Clock::time_point debugged() { return {}; }
    // The stacks of this process's threads. Called in an engine thread; it may block forever.
    virtual std::string stacks() { return ""; }

    static Embedding none;
};
inline constinit Embedding Embedding::none;

// A lock of the embedding (in Python: the GIL) that the calling thread keeps during a short call, and releases before
// it waits for longer than a few polls.
struct ReleasedToWait {
    virtual void release() = 0;  // if it is not released yet

protected:
    ~ReleasedToWait() = default;
};

struct Started;

// What one call takes besides its operands.
struct CallOptions {
    Description description{};
    ReleasedToWait* program_lock = nullptr;  // null for none
    Started* started = nullptr;              // the call is only started (Comm::start); null for any other
    void before_waiting() const {
        if (program_lock) program_lock->release();
    }
};

}  // namespace rankwise
