// Describes NumPy arrays (address, count, dtype, shape, layout) without Python attribute look-ups, and applies the
// engine's kernels to local memory.
#include <functional>
#include <numeric>

#include "bindings.hpp"
#include "kernels/non_temporal.hpp"
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
    return nb::make_tuple(Address(PyArray_DATA(a)), elements(a), dtype, nb::steal(shape),
                          (flags & NPY_ARRAY_C_CONTIGUOUS) != 0 && (flags & NPY_ARRAY_ALIGNED) != 0,
                          (flags & NPY_ARRAY_WRITEABLE) != 0);
}

Address address(nb::handle array) {
    if (!is_ndarray(array)) throw nb::type_error("array: expected a NumPy array");
    return Address(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr())));
}

void reduce_local(Address dst, const std::vector<Address>& sources, uint64_t count, int dtype, int op, int divisor) {
    ReduceKernel kernel = reduce_kernel(checked_dtype(dtype), checked_op(op));
    if (!kernel)
        throw BadArgument(std::string("op: ") + name(checked_op(op)) + " is not defined for " +
                          name(checked_dtype(dtype)));
    if (sources.empty()) throw BadArgument("sources: none given, expected at least one");
    std::vector<const void*> from;
    for (Address a : sources) from.push_back(pointer(a));
    ReleaseGil released;
    kernel(pointer(dst), from.data(), int(from.size()), count, divisor);
}

constexpr size_t kWithGil = 64 << 10;  // bytes that are copied before another thread could have used the GIL

void copy_blocks(const std::vector<Address>& dst, const std::vector<Address>& src, const std::vector<size_t>& bytes) {
    if (dst.size() != bytes.size() || src.size() != bytes.size())
        throw BadArgument("dst, src and bytes: expected lists of one length");
    const size_t total = std::accumulate(bytes.begin(), bytes.end(), size_t(0));
    const Copy copy = copy_for(total >= non_temporal_from());
    const auto all = [&] {
        for (size_t i = 0; i < bytes.size(); ++i) copy(pointer(dst[i]), pointer(src[i]), bytes[i]);
    };
    if (total <= kWithGil) return all();
    ReleaseGil released;
    all();
}

template <ConvertKernel kernel_for(DType)> void convert_local(Address dst, Address src, uint64_t count, int dtype) {
    const ConvertKernel kernel = kernel_for(checked_dtype(dtype));
    if (!kernel)
        throw BadArgument(std::string("dtype: expected float16, bfloat16 or an 8-bit float, got ") +
                          name(checked_dtype(dtype)));
    nb::gil_scoped_release released;
    kernel(pointer(dst), pointer(src), count);
}

}  // namespace

void bind_arrays(nb::module_& m) {
    m.def("describe", &describe, nb::arg("array").none(),
          "(address, elements, dtype, shape, contiguous and aligned, writable) of a NumPy array whose dtype "
          "ranks can exchange, or None for anything else.");
    m.def("address", &address, nb::arg("array"), "Where the first element of a NumPy array is.");
    m.def("reduce_local", &reduce_local, nb::arg("dst"), nb::arg("sources"), nb::arg("count"), nb::arg("dtype"),
          nb::arg("op"), nb::arg("divisor"),
          "dst = sources[0] op sources[1] op ..., elementwise, by the engine's own kernels.");
    m.def("copy_blocks", &copy_blocks, nb::arg("dst"), nb::arg("src"), nb::arg("bytes"),
          "Copy blocks of memory: bytes[i] bytes from src[i] to dst[i].");
    m.def("widen_local", &convert_local<widen_kernel>, nb::arg("dst"), nb::arg("src"), nb::arg("count"),
          nb::arg("dtype"), "Convert src, of a narrow dtype, to float32 in dst.");
    m.def("narrow_local", &convert_local<narrow_kernel>, nb::arg("dst"), nb::arg("src"), nb::arg("count"),
          nb::arg("dtype"), "Convert src, float32, to a narrow dtype in dst, rounded.");
}
