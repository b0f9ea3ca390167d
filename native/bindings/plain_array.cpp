#include "plain_array.hpp"

nb::object tuple_of(const std::vector<uint64_t>& shape) {
    nb::object made = nb::steal(PyTuple_New(Py_ssize_t(shape.size())));
    if (!made.is_valid()) nb::raise_python_error();
    for (size_t i = 0; i < shape.size(); ++i)
        PyTuple_SET_ITEM(made.ptr(), Py_ssize_t(i), PyLong_FromUnsignedLongLong(shape[i]));
    return made;
}

nb::object new_like(nb::handle array, const std::vector<uint64_t>& shape) {
    static PyObject* const empty = nb::object(nb::module_::import_("numpy").attr("empty")).release().ptr();
    const nb::object dims = tuple_of(shape);
    PyArrayObject* const a = as_ndarray(array);
    if (!a) return array.attr("new_empty")(dims);
    PyObject* const arguments[] = {dims.ptr(), reinterpret_cast<PyObject*>(PyArray_DESCR(a))};
    nb::object made = nb::steal(PyObject_Vectorcall(empty, arguments, 2, nullptr));
    if (!made.is_valid()) nb::raise_python_error();
    return made;
}

std::vector<uint64_t> rows_like(uint64_t rows, const PlainArray& x) {
    std::vector<uint64_t> shape{rows};
    for (int i = 1; i < x.dims(); ++i) shape.push_back(uint64_t(x.dim(i)));
    return shape;
}

uint8_t* memory_of(nb::handle array, size_t bytes) {
    const PlainArray made(array, Access::Write);
    if (!made || made.bytes() < bytes) throw rankwise::BadArgument("out: expected memory for the result");
    return made.data;
}
