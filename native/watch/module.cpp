// rankwise._watch: functions that record a call to another library before they pass it on.
#include <pthread.h>

#include <array>
#include <unordered_map>

#include "bindings.hpp"
#include "embedding.hpp"
#include "failure/watcher.hpp"
#include "numpy_arrays.hpp"
#include "watch/call_checker.hpp"
#include "watch/watched_stacks.hpp"

using namespace rankwise;

namespace {

// The lines of the program that make calls, found by the place in the code so that their text is made only once.
class CallSites {
public:
    uint16_t find(CallWriter& writer) {
        std::optional<uint16_t> site;
        walk_frames([&](PyFrameObject* frame, PyCodeObject* code) {
            site = look_up(writer, frame, code);
            return site.has_value();
        });
        return site.value_or(0);
    }

private:
    static constexpr size_t kMost = 4096;

    // Nothing for a frame that passes a call on.
    std::optional<uint16_t> look_up(CallWriter& writer, PyFrameObject* frame, PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030b0000
        const int at = PyFrame_GetLasti(frame);
#else
        const int at = PyFrame_GetLineNumber(frame);
#endif
        if (sites_.size() >= kMost && !sites_.contains(code)) return 0;  // a program that makes code without end
        const auto [known, is_new] = sites_.try_emplace(code);
        if (is_new) Py_INCREF(code);  // no other code may take its address
        if (const auto site = known->second.find(at); site != known->second.end()) return site->second;
        const std::string line = program_line(frame, code);
        return known->second[at] = line.empty() ? std::nullopt : std::optional(writer.add_text(line));
    }
    std::unordered_map<PyCodeObject*, std::unordered_map<int, std::optional<uint16_t>>> sites_;
};

// What this process records. It is never deleted: threads use it until the process has ended.
struct Watch {
    nb::ft_mutex mutex;  // held to use the writer and the sites, as the GIL is where there is one
    CallWriter writer;
    CheckerOptions options;
    CallSites sites{};
    PyObject* in_place = nullptr;                             // MPI.IN_PLACE
    std::vector<std::pair<PyObject*, uint8_t>> reductions{};  // objects that name a reduction, and its index
};
Watch* watch = nullptr;  // also in a forked child, which is no rank

// What f(writer) returns; nothing is done where nothing is recorded.
template <class F> auto with_writer(const F& f) -> decltype(f(watch->writer)) {
    if (!watch) return decltype(f(watch->writer))();
    const nb::ft_lock_guard lock(watch->mutex);
    return f(watch->writer);
}

// Which arguments of a function are recorded.
enum Recorded { kBuffer, kOther, kRoot, kReduction, kTag, kRecorded };
using Place = std::optional<std::pair<int, std::string>>;

// An argument by its position after self, or by its name; position -1: the operation has none.
struct Argument {
    int position = -1;
    PyObject* name = nullptr;
    PyObject* in(PyObject* const* args, size_t n, PyObject* keywords) const {
        if (position < 0) return nullptr;
        if (size_t(position) < n) return args[position];
        const Py_ssize_t count = keywords ? PyTuple_GET_SIZE(keywords) : 0;
        for (Py_ssize_t i = 0; i < count; ++i)
            if (PyTuple_GET_ITEM(keywords, i) == name) return args[n + size_t(i)];  // names in code are interned
        return nullptr;
    }
};

int32_t number_of(PyObject* object, int32_t missing) {
    if (!object || !PyLong_Check(object)) return missing;
    const long value = PyLong_AsLong(object);
    if (value == -1 && PyErr_Occurred()) PyErr_Clear();
    return int32_t(value);
}

PyObject* comm_attribute = nullptr;  // "_watched"; made when the module is imported

// A function of another library that records its calls. It is a method descriptor: obj.method(x) calls it with obj and
// x without an object for the bound method.
struct Function {
    PyObject_HEAD vectorcallfunc call;
    PyObject* function;
    PyObject* convert;  // called with the first argument and the result, or null
    uint16_t operation;
    std::array<Argument, kRecorded> arguments;
};

// Returns what CallWriter::end takes.
uint32_t record(const Function& f, PyObject* const* args, size_t n, PyObject* keywords) {
    if (!watch || n == 0) return 0;
    uint16_t comm = 0;
    const CallNames::Operation& operation = watch->writer.names.operations[f.operation];
    if (PyObject* const index = PyObject_GetAttr(args[0], comm_attribute)) {
        comm = uint16_t(PyLong_AsUnsignedLong(index));
        Py_DECREF(index);
    } else {
        PyErr_Clear();
        if (!operation.message) return 0;  // a communicator that another library has made
    }
    const auto argument = [&](Recorded which) { return f.arguments[which].in(args + 1, n - 1, keywords); };
    const int missing = operation.traced == Op::Recv ? -1 : 0;  // any
    WatchedCall call;
    uint64_t bytes = 0;
    call.operation = f.operation;
    call.root = number_of(argument(kRoot), f.arguments[kRoot].position < 0 ? 0 : missing);
    if (f.arguments[kTag].position >= 0) call.amount = uint64_t(int64_t(number_of(argument(kTag), missing)));
    PyObject* const buffer = argument(argument(kBuffer) == watch->in_place ? kOther : kBuffer);
    PyArrayObject* const array = buffer ? as_ndarray(buffer) : nullptr;
    if (const int dtype = array ? dtype_of(PyArray_DESCR(array)) : -1; dtype >= 0) {
        call.dtype = uint8_t(dtype);
        call.amount = 1;
        for (int i = 0; i < PyArray_NDIM(array); ++i) call.amount *= uint64_t(PyArray_DIMS(array)[i]);
        bytes = call.amount * itemsize(DType(dtype));
    }
    if (f.arguments[kReduction].position >= 0) {
        PyObject* const given = argument(kReduction);
        call.reduction = uint8_t(given ? watch->writer.names.reductions.size() - 1 : size_t(ReduceOp::SUM));
        for (const auto& [object, reduction] : watch->reductions)
            if (object == given) call.reduction = reduction;
    }
    return with_writer([&](CallWriter& writer) {
        call.site = watch->sites.find(writer);
        return writer.begin(comm, call, bytes);
    });
}

void end(uint32_t begun, bool failed) {
    if (begun) with_writer([&](CallWriter& writer) { writer.end(begun, failed); });
}

PyObject* call_function(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
    const auto& f = *reinterpret_cast<Function*>(self);
    const auto n = size_t(PyVectorcall_NARGS(flags));
    const uint32_t begun = record(f, args, n, keywords);
    PyObject* const result = PyObject_Vectorcall(f.function, args, n, keywords);
    end(begun, !result);
    if (!result || !f.convert) return result;
    PyObject* const converted = PyObject_CallFunctionObjArgs(f.convert, args[0], result, nullptr);
    Py_DECREF(result);
    return converted;
}

PyObject* bind_function(PyObject* self, PyObject* object, PyObject*) {
    return object && object != Py_None ? PyMethod_New(self, object) : Py_NewRef(self);
}

PyObject* attribute_of_function(PyObject* self, PyObject* name) {  // __name__, __doc__
    return PyObject_GetAttr(reinterpret_cast<Function*>(self)->function, name);
}

PyTypeObject* function_type() {
    static PyTypeObject type = [] {
        PyTypeObject t{};
        t.ob_base = {PyObject_HEAD_INIT(nullptr) 0};
        t.tp_name = "rankwise._watch.Function";
        t.tp_basicsize = sizeof(Function);
        t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
        t.tp_vectorcall_offset = offsetof(Function, call);
        t.tp_call = PyVectorcall_Call;
        t.tp_descr_get = bind_function;
        t.tp_getattro = attribute_of_function;
        return t;
    }();
    static const bool ready = PyType_Ready(&type) == 0;
    if (!ready) throw nb::python_error();
    return &type;
}

nb::object watched_function(nb::object function, int operation, const std::vector<Place>& arguments,
                            nb::object convert) {
    Function* const f = PyObject_New(Function, function_type());
    if (!f) throw nb::python_error();
    f->call = call_function;
    f->function = function.release().ptr();  // it lives as long as the process
    f->convert = convert.is_none() ? nullptr : convert.release().ptr();
    f->operation = uint16_t(operation);
    f->arguments = {};
    for (size_t i = 0; i < std::min(arguments.size(), f->arguments.size()); ++i)
        if (const Place& place = arguments[i])
            f->arguments[i] = {place->first, PyUnicode_InternFromString(place->second.c_str())};
    return nb::steal(reinterpret_cast<PyObject*>(f));
}

void start(std::shared_ptr<Segment> segment, int rank, int number, int world_size,
           const std::vector<std::tuple<std::string, std::string, bool, std::string>>& operations,
           const std::vector<std::string>& reductions, double timeout, bool abort) {
    if (watch) throw BadArgument("this process already watches its calls");
    CallNames names{{}, reductions};
    for (const auto& [name, traced, message, root] : operations)
        names.operations.push_back({name, op_named(traced), message, root});
    segment->set_owner(rank, 0);
    RankRecord& record = segment->record(rank);
    record.pid.store(QualifiedPid::own());
    watch = new Watch{{}, {segment, rank, number, std::move(names)}, {world_size, timeout, abort}};
    record.joined.store(1);
    segment->announce_roster();
    watch_peers(segment, rank, watched_python());
    start_checker(watch->writer, watch->options, watched_python());
    pthread_atfork(nullptr, nullptr, [] { watch = nullptr; });  // a child is no rank
}

uint32_t begin(uint16_t comm, int operation, int root, int reduction, int dtype, std::optional<uint64_t> amount,
               const std::string& site) {
    return with_writer([&](CallWriter& writer) {
        WatchedCall call;
        call.operation = uint16_t(operation);
        call.root = root;
        call.reduction = uint8_t(reduction);
        call.dtype = uint8_t(dtype);
        call.amount = amount.value_or(kUnknownAmount);
        call.site = site.empty() ? watch->sites.find(writer) : writer.add_text(site);
        return writer.begin(comm, call, amount && dtype < kDTypes ? *amount * itemsize(DType(dtype)) : 0);
    });
}

}  // namespace

NB_MODULE(_watch, m) {
    m.doc() = "Records the calls that a program makes to another library.";
    nb::set_leak_warnings(false);
    nb::module_::import_("rankwise._native");  // makes its types known
    comm_attribute = PyUnicode_InternFromString("_watched");
    function_type();
    m.def("start", &start, nb::arg("segment"), nb::arg("rank"), nb::arg("number"), nb::arg("world_size"),
          nb::arg("operations"), nb::arg("reductions"), nb::arg("timeout"), nb::arg("abort"));
    m.def("function", &watched_function, nb::arg("function"), nb::arg("operation"),
          nb::arg("arguments") = std::vector<Place>(), nb::arg("convert") = nb::none());
    m.def(
        "add_comm",
        [](uint64_t id, const std::string& name, bool deferred) {
            return with_writer([&](CallWriter& writer) { return writer.add_comm(id, name, deferred); });
        },
        nb::arg("id"), nb::arg("name"), nb::arg("deferred") = false);
    m.def("remove_comm", [](uint16_t comm) { with_writer([&](CallWriter& writer) { writer.remove_comm(comm); }); });
    m.def("calls", [](uint16_t comm) { return with_writer([&](CallWriter& writer) { return writer.calls(comm); }); });
    m.def(
        "set_objects",
        [](nb::object in_place, const std::vector<std::pair<nb::object, uint8_t>>& reductions) {
            if (!watch) return;
            watch->in_place = in_place.release().ptr();
            for (auto [object, index] : reductions) watch->reductions.emplace_back(object.release().ptr(), index);
        },
        nb::arg("in_place"), nb::arg("reductions"));
    m.def("begin", &begin, nb::arg("comm"), nb::arg("operation"), nb::arg("root") = 0, nb::arg("reduction") = kNone,
          nb::arg("dtype") = kNone, nb::arg("amount").none() = nb::none(), nb::arg("site") = "");
    m.def("end", &end, nb::arg("begun"), nb::arg("failed"));
    m.def("check", [] {
        if (!watch) return;
        const ReleaseGil released;
        check_at_end(watch->writer, watch->options, watched_python());
    });
    m.def("failure", &why_ended, nb::arg("segment"));
}
