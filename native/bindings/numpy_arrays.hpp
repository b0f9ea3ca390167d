// Reads the fields of a NumPy array through NumPy's header. NumPy is never imported here, so that programs
// without it (the launcher) stay without it.
#pragma once
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/ndarraytypes.h>

#include "bindings.hpp"

bool is_ndarray(nb::handle object);  // or of a subclass
// The array, or nullptr for anything else, including subclasses: they may have state besides their memory.
PyArrayObject* as_ndarray(nb::handle object);
// The DType of an array's elements as an int, or -1 for types and byte orders that ranks cannot exchange.
int dtype_of(PyArray_Descr* descr);

// The array in a call, if it is plain: contiguous, aligned, and of a dtype that ranks can exchange.
struct PlainArray {
    PyArrayObject* array = nullptr;
    uint8_t* data = nullptr;
    uint64_t count = 1;
    int dtype = -1;

    PlainArray(nb::handle object, bool writable) {
        PyArrayObject* a = as_ndarray(object);
        const int wanted = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (writable ? NPY_ARRAY_WRITEABLE : 0);
        if (!a || (PyArray_FLAGS(a) & wanted) != wanted) return;
        dtype = dtype_of(PyArray_DESCR(a));
        if (dtype < 0) return;
        array = a;
        data = static_cast<uint8_t*>(PyArray_DATA(a));
        for (int i = 0; i < dims(); ++i) count *= uint64_t(dim(i));
    }
    explicit operator bool() const { return array; }
    int dims() const { return PyArray_NDIM(array); }
    npy_intp dim(int i) const { return PyArray_DIMS(array)[i]; }
    rankwise::Description description() const { return {rankwise::Op::None, dims(), PyArray_DIMS(array)}; }
    size_t bytes() const { return count * rankwise::itemsize(rankwise::DType(dtype)); }
    bool apart_from(const PlainArray& other) const {
        return data + bytes() <= other.data || other.data + other.bytes() <= data;
    }
    // Whether the shapes are equal without the first `skip` axes of this array and the first `other_skip` axes of
    // `other`.
    bool same_shape(const PlainArray& other, int skip, int other_skip) const {
        if (dims() - skip != other.dims() - other_skip) return false;
        for (int i = skip; i < dims(); ++i)
            if (dim(i) != other.dim(i - skip + other_skip)) return false;
        return true;
    }
};
