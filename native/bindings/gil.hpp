// The GIL, let go of and taken back, also by threads that the interpreter's end overtakes.
//
// Up to Python 3.13 a thread that asks for the GIL while the interpreter shuts down is ended there and
// then, by unwinding its stack; a destructor does not let that pass, and the process aborts. Here
// such a thread sleeps until the process is gone, which is what it does from Python 3.14 on.
#pragma once
#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

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

class HoldGil {
public:
    HoldGil() : state_(ask_for_gil([] { return PyGILState_Ensure(); })) {}
    ~HoldGil() { PyGILState_Release(state_); }
    HoldGil(const HoldGil&) = delete;

private:
    PyGILState_STATE state_;
};
