// Python as the program that embeds the engine.
#pragma once
#include <Python.h>
#include <nanobind/nanobind.h>

#include <string>
#include <utility>

#include "sync/embedding.hpp"

namespace nb = nanobind;

rankwise::Embedding& python();
// Where this frame is in its code, "train.py:12"; "" if it only passes a call on: in this package but its tools, in
// mpi4py or torch.distributed, or in Python's frozen modules.
std::string program_line(PyFrameObject* frame, PyCodeObject* code);

// Where the calling thread is in the program, and what owns the code that the CodePlace refers to; none if it is in C
// code, which call_site() describes.
std::pair<rankwise::CodePlace, nb::object> python_place();

// Calls look(frame, code) for the frames of the calling thread, the innermost one first, until it returns true.
template <class Look> void walk_frames(const Look& look) {
    PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame) {
        PyCodeObject* const code = PyFrame_GetCode(frame);
        PyFrameObject* const caller = look(frame, code) ? nullptr : PyFrame_GetBack(frame);
        Py_DECREF(code);
        Py_DECREF(frame);
        frame = caller;
    }
}
