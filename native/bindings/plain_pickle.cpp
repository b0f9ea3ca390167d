#include "plain_pickle.hpp"

#include "once.hpp"
#include "pickle_check.hpp"

namespace {

constexpr int kMaxNested = 100;
constexpr int kMaxBasic = 1 << 16;  // values; a list that contains another twice at each level has no end of them

bool check(const nb::bytes& stream, size_t buffers, const nb::tuple& constructor) {
    return check_plain({stream.c_str(), stream.size()}, buffers, nb::cast<const char*>(constructor[0]),
                       nb::cast<const char*>(constructor[1]));
}

// ---- objects for which pickle needs no constructor ----

bool basic(PyObject* object, int depth, int& left);

// Without a GIL another thread may change the container meanwhile, so its values are kept while they are looked at.
bool basic_dict(PyObject* object, int depth, int& left) {
    const nb::ft_object_guard locked{nb::handle(object)};
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &value);) {
        const nb::object kept_key = nb::borrow(key), kept_value = nb::borrow(value);
        if (!basic(key, depth, left) || !basic(value, depth, left)) return false;
    }
    return true;
}
bool basic_list(PyObject* object, int depth, int& left) {
    const nb::ft_object_guard locked{nb::handle(object)};
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) {
        const nb::object kept = nb::borrow(PyList_GET_ITEM(object, i));
        if (!basic(kept.ptr(), depth, left)) return false;
    }
    return true;
}

// left: how many more values may be looked at.
bool basic(PyObject* object, int depth, int& left) {
    const PyTypeObject* type = Py_TYPE(object);
    if (--left < 0) return false;
    if (object == Py_None || type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type ||
        type == &PyBool_Type || type == &PyBytes_Type)
        return true;
    if (depth == kMaxNested) return false;
    if (type == &PyDict_Type) return basic_dict(object, depth + 1, left);
    if (type == &PyList_Type) return basic_list(object, depth + 1, left);
    if (type != &PyTuple_Type) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i)
        if (!basic(PyTuple_GET_ITEM(object, i), depth + 1, left)) return false;
    return true;
}

// pickle's functions.
struct Pickle {
    nb::object dumps, loads, protocol = nb::int_(5);
    static const Pickle& get() {
        static Once<Pickle> pickle;
        return pickle.get([] {
            const nb::module_ module = nb::module_::import_("pickle");
            return Pickle{module.attr("dumps"), module.attr("loads")};
        });
    }
};

}  // namespace

bool is_basic(nb::handle object) {
    int left = kMaxBasic;
    return basic(object.ptr(), 0, left);
}

nb::object not_taken() {
    static Once<nb::handle> sentinel;
    return nb::borrow(sentinel.get(
        [] { return nb::object(nb::module_::import_("rankwise.contract.shortcuts").attr("NOT_TAKEN")).release(); }));
}

nb::bytes dump(nb::handle object) {
    const Pickle& pickle = Pickle::get();
    PyObject* const args[] = {object.ptr(), pickle.protocol.ptr()};
    PyObject* const result = PyObject_Vectorcall(pickle.dumps.ptr(), args, 2, nullptr);
    if (!result) nb::raise_python_error();
    return nb::steal<nb::bytes>(result);
}

static PyObject* load_or_null(nb::handle stream) {
    PyObject* const args[] = {stream.ptr()};
    return PyObject_Vectorcall(Pickle::get().loads.ptr(), args, 1, nullptr);
}

nb::object load(nb::handle stream) {
    if (PyObject* const loaded = load_or_null(stream)) return nb::steal(loaded);
    PyErr_Clear();
    return not_taken();
}

nb::object load_allowed(nb::handle stream_, nb::handle constructor) {
    const auto stream = nb::borrow<nb::bytes>(stream_);
    if (constructor.is_none()) {
        if (!stream.size() || *stream.c_str() != kPickle) return not_taken();
        PyObject* const loaded = load_or_null(stream);
        if (!loaded) nb::raise_python_error();
        return nb::steal(loaded);
    }
    try {
        if (check(stream, 0, nb::borrow<nb::tuple>(constructor))) return not_taken();
    } catch (const std::exception&) {
        return not_taken();
    }
    return load(stream);
}

void bind_plain_pickle(nb::module_& m) {
    m.def(
        "check_plain",
        [](const nb::bytes& stream, size_t buffers, const nb::tuple& constructor) {
            try {
                return check(stream, buffers, constructor);
            } catch (const NotPlain& e) {
                throw nb::type_error(e.what());
            }
        },
        nb::arg("stream"), nb::arg("buffers"), nb::arg("constructor"),
        "Check that a pickle with this many buffers is plain data: that it can only make Python's basic types, and "
        "call "
        "one constructor, given as (module, name). Nothing is loaded. Returns whether it calls that. TypeError: it "
        "is not plain data. ValueError: it is invalid.");
    m.def("is_basic", &is_basic, nb::arg("object").none(),
          "Whether an object consists of at most 65,536 None, bool, int, float, str and bytes, in lists, tuples and "
          "dicts.");
    m.def("load_allowed", &load_allowed, nb::arg("stream"), nb::arg("constructor").none(),
          "The object of a pickle that makes only basic types, with no call of the constructor (see check_plain), else "
          "NOT_TAKEN. constructor: None if any pickle may be loaded.");
}
