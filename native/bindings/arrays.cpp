// NumPy arrays at a glance: address, count, dtype, shape, layout, without a Python-level attribute
// look-up.
#include <algorithm>
#include <functional>
#include <numeric>

#include "bindings.hpp"
#include "kernels/kernels.hpp"
#include "numpy_arrays.hpp"

using namespace rankwise;

namespace {

uint64_t elements(PyArrayObject* a) {
    return std::accumulate(PyArray_DIMS(a), PyArray_DIMS(a) + PyArray_NDIM(a), uint64_t(1), std::multiplies<>());
}

nb::object describe(nb::handle array) {
    PyArrayObject* a = as_ndarray(array);
    if (!a) return nb::none();
    const int dtype = dtype_of(PyArray_DESCR(a));
    if (dtype < 0) return nb::none();
    const int ndim = PyArray_NDIM(a);
    PyObject* shape = PyTuple_New(ndim);
    if (!shape) nb::raise_python_error();
    for (int i = 0; i < ndim; ++i) PyTuple_SET_ITEM(shape, i, PyLong_FromSsize_t(PyArray_DIMS(a)[i]));
    const int flags = PyArray_FLAGS(a);
    return nb::make_tuple(Address(PyArray_DATA(a)), elements(a), dtype, nb::steal(shape), (flags & NPY_ARRAY_C_CONTIGUOUS) != 0 && (flags & NPY_ARRAY_ALIGNED) != 0,
                          (flags & NPY_ARRAY_WRITEABLE) != 0);
}

bool whole(PyArrayObject* a, int flags) { return (PyArray_FLAGS(a) & flags) == flags; }

constexpr int READ = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
constexpr int WRITE = READ | NPY_ARRAY_WRITEABLE;

nb::object describe_whole(nb::handle array) {
    PyArrayObject* a = as_ndarray(array);
    if (!a || !whole(a, WRITE)) return nb::none();
    const int dtype = dtype_of(PyArray_DESCR(a));
    if (dtype < 0) return nb::none();
    return nb::make_tuple(Address(PyArray_DATA(a)), elements(a), dtype);
}

nb::object describe_gather(nb::handle array, nb::handle out, int n) {
    PyArrayObject *a = as_ndarray(array), *b = as_ndarray(out);
    if (!a || !b || !whole(a, READ) || !whole(b, WRITE)) return nb::none();
    const int dtype = dtype_of(PyArray_DESCR(a)), ndim = PyArray_NDIM(a);
    if (dtype < 0 || dtype_of(PyArray_DESCR(b)) != dtype) return nb::none();
    if (PyArray_NDIM(b) != ndim + 1 || PyArray_DIMS(b)[0] != n) return nb::none();
    if (!std::equal(PyArray_DIMS(a), PyArray_DIMS(a) + ndim, PyArray_DIMS(b) + 1)) return nb::none();
    const Address from = Address(PyArray_DATA(a)), to = Address(PyArray_DATA(b));
    const uint64_t size = elements(a) * itemsize(static_cast<DType>(dtype));
    if (from < to + size * uint64_t(n) && to < from + size) return nb::none();  // they overlap
    return nb::make_tuple(from, to, elements(a), dtype);
}

void reduce_local(Address dst, const std::vector<Address>& sources, uint64_t count, int dtype, int op, int divisor) {
    ReduceKernel kernel = reduce_kernel(checked_dtype(dtype), checked_op(op));
    if (!kernel) throw BadArgument(std::string("op: ") + name(checked_op(op)) + " means nothing for " + name(checked_dtype(dtype)));
    if (sources.empty()) throw BadArgument("sources: none given, expected at least one");
    std::vector<const void*> from;
    for (Address a : sources) from.push_back(pointer(a));
    ReleaseGil released;
    kernel(pointer(dst), from.data(), int(from.size()), count, divisor);
}

void convert_local(Address dst, Address src, uint64_t count, int dtype, bool widen) {
    ConvertKernel kernel = widen ? widen_kernel(checked_dtype(dtype)) : narrow_kernel(checked_dtype(dtype));
    if (!kernel) throw BadArgument(std::string("dtype: expected float16, bfloat16 or an 8-bit float, got ") + name(checked_dtype(dtype)));
    nb::gil_scoped_release released;
    kernel(pointer(dst), pointer(src), count);
}

}  // namespace

void bind_arrays(nb::module_& m) {
    m.def("describe", &describe, nb::arg("array").none(),
          "(address, elements, dtype, shape, contiguous and aligned, writable) of a NumPy array of a dtype "
          "that ranks exchange, or None for anything else.");
    m.def("describe_whole", &describe_whole, nb::arg("array").none(),
          "(address, elements, dtype) of what describe knows, where it is contiguous, aligned and writable; else None.");
    m.def("describe_gather", &describe_gather, nb::arg("array").none(), nb::arg("out").none(), nb::arg("n"),
          "(address, out's address, elements, dtype) where `out` takes n such arrays as they are; else None.");
    m.def("kernel_isa", &kernel_isa, "The instruction set of the reduction kernels on this machine.");
    m.def("reduce_local", &reduce_local, nb::arg("dst"), nb::arg("sources"), nb::arg("count"), nb::arg("dtype"), nb::arg("op"),
          nb::arg("divisor"), "dst = sources[0] op sources[1] op ..., elementwise, by the engine's own kernels.");
    m.def("convert_local", &convert_local, nb::arg("dst"), nb::arg("src"), nb::arg("count"), nb::arg("dtype"), nb::arg("widen"),
          "widen: dst, float32, takes src of a narrow dtype; else dst of that dtype takes src, float32, rounded.");
}
