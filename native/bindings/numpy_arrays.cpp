#include "numpy_arrays.hpp"

#include <atomic>
#include <cstring>

using namespace rankwise;

namespace {

PyTypeObject* ndarray_type() {
    static std::atomic<PyTypeObject*> known{nullptr};
    PyTypeObject* type = known.load(std::memory_order_relaxed);
    if (!type) {
        nb::object numpy = nb::borrow(PyDict_GetItemString(PyImport_GetModuleDict(), "numpy"));
        if (numpy.is_valid() && nb::hasattr(numpy, "ndarray"))
            type = reinterpret_cast<PyTypeObject*>(nb::object(numpy.attr("ndarray")).release().ptr());
        known.store(type, std::memory_order_relaxed);  // the same type in every thread
    }
    return type;
}

// ml_dtypes registers its types with NumPy at run time, so they are recognised by name.
int registered_dtype(const char* type_name) {
    const char* bare = std::strrchr(type_name, '.');
    bare = bare ? bare + 1 : type_name;
    for (DType d : {DType::BF16, DType::FP8E4M3, DType::FP8E5M2})
        if (!std::strcmp(bare, name(d))) return int(d);
    return -1;
}

}  // namespace

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

bool is_ndarray(nb::handle object) {
    PyTypeObject* type = ndarray_type();
    return type && PyObject_TypeCheck(object.ptr(), type);
}

PyArrayObject* as_ndarray(nb::handle object) {
    PyTypeObject* type = ndarray_type();
    if (!type || Py_TYPE(object.ptr()) != type) return nullptr;
    return reinterpret_cast<PyArrayObject*>(object.ptr());
}
