// Releasing and acquiring the GIL, safely even while the interpreter shuts down.
//
// Up to Python 3.13 a thread that requests the GIL during shutdown is terminated by unwinding its stack. A destructor
// does not let that unwinding pass, so the process would abort. Here such a thread sleeps until the process has ended,
// which is what Python itself does from 3.14 on.
#pragma once
#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include "sync/embedding.hpp"

template <class Acquire> auto acquiring_gil(Acquire&& acquire) {
    try {
        return acquire();
    } catch (abi::__forced_unwind&) {
        for (;;) pause();
    }
}

class ReleaseGil {
public:
    ReleaseGil() : state_(PyEval_SaveThread()) {}
    ~ReleaseGil() {
        acquiring_gil([this] { PyEval_RestoreThread(state_); });
    }
    ReleaseGil(const ReleaseGil&) = delete;

private:
    PyThreadState* state_;
};

template <class F> auto without_gil(F&& f) {
    const ReleaseGil released;
    return f();
}

// Releases the GIL at once for a collective of more than kQuick bytes, else only when the collective waits: to release
// and acquire the GIL takes a fifth of the time of the shortest collectives.
class ReleaseGilToWait final : rankwise::ReleasedToWait {
public:
    explicit ReleaseGilToWait(size_t bytes = 0) {
        if (bytes > kQuick) release();
    }
    ~ReleaseGilToWait() {
        if (released_) acquiring_gil([this] { PyEval_RestoreThread(released_); });
    }
    ReleaseGilToWait(const ReleaseGilToWait&) = delete;
    // For the call during which the GIL is released.
    rankwise::CallOptions options(const rankwise::Description& description = {}) { return {description, this}; }

private:
    static constexpr size_t kQuick = 4096;
    void release() override {
        if (!released_) released_ = PyEval_SaveThread();
    }
    PyThreadState* released_ = nullptr;
};

// What a call on a plain array takes besides its operands.
class ArrayCall {
public:
    // bytes: how much data is moved.
    explicit ArrayCall(size_t bytes = 0, const rankwise::Description& description = {})
        : released_(bytes), options_(released_.options(description)) {}
    operator const rankwise::CallOptions&() const { return options_; }

private:
    ReleaseGilToWait released_;
    const rankwise::CallOptions options_;
};

// Python code that is called while the GIL is held so must be called within acquiring_gil, as it may release the GIL
// and request it again: the destructor would run while the stack is unwound, without the GIL.
//
// A thread without a thread state makes one that no fork interrupts. To make one, a thread holds Python's own lock of
// the list of thread states, without the GIL: up to Python 3.12, a child that another thread forks meanwhile may wait
// for that lock forever.
class HoldGil {
public:
    HoldGil() {
        if (PyGILState_GetThisThreadState()) acquiring_gil([this] { state_ = PyGILState_Ensure(); });
        else {
            made_ = new_thread_state();
            acquiring_gil([this] { PyEval_RestoreThread(made_); });
        }
    }
    ~HoldGil() {
        if (made_) {
            PyThreadState_Clear(made_);
            PyThreadState_DeleteCurrent();
        } else PyGILState_Release(state_);
    }
    HoldGil(const HoldGil&) = delete;

private:
    static PyThreadState* new_thread_state();
    PyGILState_STATE state_{};
    PyThreadState* made_ = nullptr;
};
