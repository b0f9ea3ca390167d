// The GIL, let go of and taken back, also by threads that the interpreter's end overtakes.
//
// Up to Python 3.13 a thread that asks for the GIL while the interpreter shuts down is ended there and
// then, by unwinding its stack; a destructor does not let that pass, and the process aborts. Here
// such a thread sleeps until the process is gone, which is what it does from Python 3.14 on.
#pragma once
#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include "sync/waiting.hpp"

template <class Ask> auto ask_for_gil(Ask&& ask) {
    try {
        return ask();
    } catch (abi::__forced_unwind&) {
        for (;;) pause();
    }
}

class ReleaseGil {
public:
    ReleaseGil() : state_(PyEval_SaveThread()) {}
    ~ReleaseGil() {
        ask_for_gil([this] { PyEval_RestoreThread(state_); });
    }
    ReleaseGil(const ReleaseGil&) = delete;

private:
    PyThreadState* state_;
};

// For collectives that move at most kQuick bytes: only from when they wait, if they do. To let the GIL
// go and take it back takes a fifth of the time of the shortest ones.
class ReleaseGilToWait : rankwise::Lendable {
public:
    explicit ReleaseGilToWait(size_t bytes = 0) {
        if (bytes > kQuick) let_go();
        else rankwise::held_here = this;
    }
    ~ReleaseGilToWait() {
        rankwise::held_here = nullptr;
        if (released_) ask_for_gil([this] { PyEval_RestoreThread(released_); });
    }
    ReleaseGilToWait(const ReleaseGilToWait&) = delete;

private:
    static constexpr size_t kQuick = 4096;
    void let_go() override {
        rankwise::held_here = nullptr;
        released_ = PyEval_SaveThread();
    }
    PyThreadState* released_ = nullptr;
};

class HoldGil {
public:
    HoldGil() : state_(ask_for_gil([] { return PyGILState_Ensure(); })) {}
    ~HoldGil() { PyGILState_Release(state_); }
    HoldGil(const HoldGil&) = delete;

private:
    PyGILState_STATE state_;
};

// A rank that waits runs Python's signal handlers, and stops waiting when one raises.
inline void check_signals_while_waiting() {
    rankwise::interrupt_check = [] {
        HoldGil gil;
        return PyErr_CheckSignals() != 0;
    };
}
