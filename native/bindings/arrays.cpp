// NumPy arrays at a glance: address, count, dtype, shape, layout, without a Python-level attribute
// look-up. The array's fields are read through NumPy's own header; NumPy itself is never imported
// here, so what runs without it (the launcher) stays without it.
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/ndarraytypes.h>

#include <cstring>

#include "bindings.hpp"
#include "kernels/kernels.hpp"

using namespace rankwise;

namespace {

PyTypeObject* ndarray_type() {
    static PyTypeObject* type = nullptr;
    if (!type) {
        nb::object numpy = nb::borrow(PyDict_GetItemString(PyImport_GetModuleDict(), "numpy"));
        if (numpy.is_valid() && nb::hasattr(numpy, "ndarray"))
            type = reinterpret_cast<PyTypeObject*>(nb::object(numpy.attr("ndarray")).release().ptr());
    }
    return type;
}

// ml_dtypes registers its types with NumPy at run time, so they are known by name.
int registered_dtype(const char* type_name) {
    const char* bare = std::strrchr(type_name, '.');
    bare = bare ? bare + 1 : type_name;
    for (DType d : {DType::BF16, DType::FP8E4M3, DType::FP8E5M2})
        if (!std::strcmp(bare, name(d))) return int(d);
    return -1;
}

int dtype_of(PyArray_Descr* descr) {
    if (descr->byteorder == (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '>' : '<')) return -1;
    switch (descr->type_num) {
    case NPY_DOUBLE: return int(DType::F64);
    case NPY_FLOAT: return int(DType::F32);
    case NPY_HALF: return int(DType::F16);
    case NPY_BYTE: return int(DType::I8);
    case NPY_UBYTE: return int(DType::U8);
    case NPY_SHORT: return int(DType::I16);
    case NPY_USHORT: return int(DType::U16);
    case NPY_INT: return int(DType::I32);
    case NPY_UINT: return int(DType::U32);
    case NPY_LONG: return int(sizeof(long) == 8 ? DType::I64 : DType::I32);
    case NPY_ULONG: return int(sizeof(long) == 8 ? DType::U64 : DType::U32);
    case NPY_LONGLONG: return int(DType::I64);
    case NPY_ULONGLONG: return int(DType::U64);
    case NPY_BOOL: return int(DType::BOOL);
    case NPY_CFLOAT: return int(DType::C64);
    case NPY_CDOUBLE: return int(DType::C128);
    default: return descr->type_num >= NPY_USERDEF ? registered_dtype(descr->typeobj->tp_name) : -1;
    }
}

nb::object describe(nb::handle array) {
    PyTypeObject* type = ndarray_type();
    if (!type || Py_TYPE(array.ptr()) != type) return nb::none();  // subclasses may mean more than their memory
    auto* a = reinterpret_cast<PyArrayObject*>(array.ptr());
    const int dtype = dtype_of(PyArray_DESCR(a));
    if (dtype < 0) return nb::none();
    const int ndim = PyArray_NDIM(a);
    PyObject* shape = PyTuple_New(ndim);
    if (!shape) nb::raise_python_error();
    uint64_t count = 1;
    for (int i = 0; i < ndim; ++i) {
        count *= uint64_t(PyArray_DIMS(a)[i]);
        PyTuple_SET_ITEM(shape, i, PyLong_FromSsize_t(PyArray_DIMS(a)[i]));
    }
    const int flags = PyArray_FLAGS(a);
    return nb::make_tuple(Address(PyArray_DATA(a)), count, dtype, nb::steal(shape), (flags & NPY_ARRAY_C_CONTIGUOUS) != 0 && (flags & NPY_ARRAY_ALIGNED) != 0,
                          (flags & NPY_ARRAY_WRITEABLE) != 0);
}

// The common names of operations, mostly known by the identity of the interned string.
struct OpName {
    PyObject* text;
    ReduceOp op;
};
std::vector<OpName>& op_names() {
    static std::vector<OpName> names = [] {
        std::vector<OpName> result;
        for (auto op : {ReduceOp::SUM, ReduceOp::MEAN, ReduceOp::MAX, ReduceOp::MIN, ReduceOp::PROD})
            result.push_back({PyUnicode_InternFromString(name(op)), op});
        return result;
    }();
    return names;
}

void reduce_local(Address dst, const std::vector<Address>& sources, uint64_t count, int dtype, int op, int divisor) {
    ReduceKernel kernel = reduce_kernel(checked_dtype(dtype), checked_op(op));
    if (!kernel) throw BadArgument(std::string("op: ") + name(checked_op(op)) + " means nothing for " + name(checked_dtype(dtype)));
    if (sources.empty()) throw BadArgument("sources: none given, expected at least one");
    std::vector<const void*> from;
    for (Address a : sources) from.push_back(pointer(a));
    nb::gil_scoped_release released;
    kernel(pointer(dst), from.data(), int(from.size()), count, divisor);
}

}  // namespace

// all_reduce of a plain NumPy array by a common operation, in the one call from Python that this
// takes; False, and nothing done, for anything that needs a closer look.
bool all_reduce_array(Comm& comm, nb::handle array, nb::handle op) {
    PyTypeObject* type = ndarray_type();
    if (!type || Py_TYPE(array.ptr()) != type) return false;
    auto* a = reinterpret_cast<PyArrayObject*>(array.ptr());
    constexpr int wanted = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | NPY_ARRAY_WRITEABLE;
    if ((PyArray_FLAGS(a) & wanted) != wanted) return false;
    const int dtype = dtype_of(PyArray_DESCR(a));
    if (dtype < 0) return false;
    if (!PyUnicode_CheckExact(op.ptr())) return false;
    for (const OpName& known : op_names()) {
        if (known.text != op.ptr() && PyUnicode_Compare(known.text, op.ptr()) != 0) continue;
        if (!reduce_kernel(DType(dtype), known.op)) return false;
        uint64_t count = 1;
        for (int i = 0; i < PyArray_NDIM(a); ++i) count *= uint64_t(PyArray_DIMS(a)[i]);
        void* data = PyArray_DATA(a);
        nb::gil_scoped_release released;
        comm.all_reduce(data, count, DType(dtype), known.op);
        return true;
    }
    return false;
}

void bind_arrays(nb::module_& m) {
    m.def("describe", &describe, nb::arg("array").none(),
          "(address, elements, dtype, shape, contiguous and aligned, writable) of a NumPy array of a dtype "
          "that ranks exchange, or None for anything else.");
    m.def("kernel_isa", &kernel_isa, "The instruction set of the reduction kernels on this machine.");
    m.def("reduce_local", &reduce_local, nb::arg("dst"), nb::arg("sources"), nb::arg("count"), nb::arg("dtype"), nb::arg("op"),
          nb::arg("divisor"), "dst = sources[0] op sources[1] op ..., elementwise, by the engine's own kernels.");
}
