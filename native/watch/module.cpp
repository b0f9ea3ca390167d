// Watching the calls that a program makes to another library: functions that record a call before they pass it on.
#include <pthread.h>

#include <unordered_map>

#include "bindings.hpp"
#include "embedding.hpp"
#include "failure/watchdog.hpp"
#include "numpy_arrays.hpp"
#include "watch/call_checker.hpp"
#include "watch/watched_stacks.hpp"

using namespace rankwise;

namespace {

// The lines of the program that make calls, found by the place in the code so that their text is made only once.
class CallSites {
public:
    uint32_t find(CallWriter& writer) {
        uint32_t site = kPassesOn;
        walk_frames([&](PyFrameObject* frame, PyCodeObject* code) {
            site = look_up(writer, frame, code);
            return site != kPassesOn;
        });
        return site == kPassesOn ? 0 : site;
    }

private:
    static constexpr uint32_t kPassesOn = UINT32_MAX;
    struct Place {
        PyCodeObject* code;
        int at;
        bool operator==(const Place&) const = default;
    };
    struct Hash {
        size_t operator()(const Place& p) const { return (reinterpret_cast<size_t>(p.code) >> 4) * 31 + size_t(p.at); }
    };

    uint32_t look_up(CallWriter& writer, PyFrameObject* frame, PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030b0000
        const Place place{code, PyFrame_GetLasti(frame)};
#else
        const Place place{code, PyFrame_GetLineNumber(frame)};
#endif
        if (const auto known = sites_.find(place); known != sites_.end()) return known->second;
        if (sites_.size() >= 2 * kCallSites) return 0;  // a program that makes code without end
        const std::string line = program_line(frame, code);
        const uint32_t site = line.empty() ? kPassesOn : writer.add_site(line);
        Py_INCREF(code);  // no other code may take its address
        sites_.emplace(place, site);
        return site;
    }
    std::unordered_map<Place, uint32_t, Hash> sites_;
};

// What this process records. It is never deleted: threads use it until the process has ended.
struct Watch {
    nb::ft_mutex mutex;  // held to use the writer and the sites, as the GIL is where there is one
    std::unique_ptr<CallWriter> writer;
    CallSites sites;
    PyObject* in_place = nullptr;                           // MPI.IN_PLACE
    std::vector<std::pair<PyObject*, uint8_t>> reductions;  // objects that name a reduction, and its index
    uint8_t other_reduction = kNone;
    CheckerOptions options;
};
Watch* watch = nullptr;  // also in a forked child, which is no rank

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

struct Size {
    uint64_t amount = kUnknownAmount, bytes = 0;
    uint8_t dtype = kNone;
};

Size size_of(PyObject* buffer) {
    if (PyArrayObject* const array = as_ndarray(buffer)) {
        uint64_t count = 1;
        for (int i = 0; i < PyArray_NDIM(array); ++i) count *= uint64_t(PyArray_DIMS(array)[i]);
        const int dtype = dtype_of(PyArray_DESCR(array));
        if (dtype < 0) return {};
        return {count, count * itemsize(DType(dtype)), uint8_t(dtype)};
    }
    return {};
}

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
    PyObject* convert;  // called with the result, or null
    uint16_t operation;
    bool takes_self;  // whether its first argument is passed on
    Argument buffer, other, root, reduction, tag;
};

struct Recorded {
    CallWriter::Begun begun;
    bool active = false;
};

Recorded record(const Function& f, PyObject* const* args, size_t n, PyObject* keywords) {
    if (!watch || n == 0) return {};
    uint32_t comm = 0;
    const CallNames::Operation& operation = watch->writer->names().operations[f.operation];
    PyObject* const index = PyObject_GetAttr(args[0], comm_attribute);
    if (index) {
        comm = uint32_t(PyLong_AsUnsignedLong(index));
        Py_DECREF(index);
    } else {
        PyErr_Clear();
        if (!operation.message) return {};  // a communicator that another library has made
    }
    ++args, --n;
    CallKind kind{f.operation, kNone, kNone, 0};
    Size size;
    PyObject* buffer = f.buffer.in(args, n, keywords);
    if (buffer && buffer == watch->in_place) buffer = f.other.in(args, n, keywords);
    if (buffer) size = size_of(buffer);
    kind.dtype = size.dtype;
    const bool any = operation.traced == Op::Recv;
    if (f.root.position >= 0) kind.root = number_of(f.root.in(args, n, keywords), any ? -1 : 0);
    if (f.reduction.position >= 0) {
        PyObject* const given = f.reduction.in(args, n, keywords);
        kind.reduction = given ? watch->other_reduction : uint8_t(ReduceOp::SUM);
        for (const auto& [object, reduction] : watch->reductions)
            if (object == given) kind.reduction = reduction;
    }
    if (operation.message) size.amount = kUnknownAmount;
    if (f.tag.position >= 0) size.amount = uint64_t(int64_t(number_of(f.tag.in(args, n, keywords), any ? -1 : 0)));
    const nb::ft_lock_guard lock(watch->mutex);
    const uint32_t site = watch->sites.find(*watch->writer);
    return {watch->writer->begin(comm, kind, size.amount, site, size.bytes), true};
}

void end(const CallWriter::Begun& begun, bool failed) {
    if (!watch) return;
    const nb::ft_lock_guard lock(watch->mutex);
    watch->writer->end(begun, failed);
}

PyObject* call_function(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
    const auto& f = *reinterpret_cast<Function*>(self);
    const size_t n = size_t(PyVectorcall_NARGS(flags));
    const Recorded recorded = record(f, args, n, keywords);
    const bool drop = !f.takes_self && n > 0;
    PyObject* result = PyObject_Vectorcall(f.function, args + drop, n - drop, keywords);
    if (recorded.active) end(recorded.begun, !result);
    if (result && f.convert) {
        PyObject* const converted = PyObject_CallOneArg(f.convert, result);
        Py_DECREF(result);
        result = converted;
    }
    return result;
}

PyObject* bind_function(PyObject* self, PyObject* object, PyObject*) {
    return object && object != Py_None ? PyMethod_New(self, object) : Py_NewRef(self);
}

PyObject* attribute_of_function(PyObject* self, PyObject* name) {  // __name__, __signature__
    if (PyUnicode_CompareWithASCIIString(name, "__doc__") == 0)
        return PyObject_GetAttr(reinterpret_cast<Function*>(self)->function, name);
    PyObject* const own = PyObject_GenericGetAttr(self, name);
    if (own || !PyErr_ExceptionMatches(PyExc_AttributeError)) return own;
    PyErr_Clear();
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

using Place = std::optional<std::pair<int, std::string>>;

Argument argument(const Place& place) {
    if (!place) return {};
    return {place->first, PyUnicode_InternFromString(place->second.c_str())};
}

nb::object watched_function(nb::object function, int operation, const Place& buffer, const Place& other,
                            const Place& root, const Place& reduction, const Place& tag, bool takes_self,
                            nb::object convert) {
    Function* const f = PyObject_New(Function, function_type());
    if (!f) throw nb::python_error();
    f->call = call_function;
    f->function = function.release().ptr();  // it lives as long as the process
    f->convert = convert.is_none() ? nullptr : convert.release().ptr();
    f->operation = uint16_t(operation);
    f->takes_self = takes_self;
    f->buffer = argument(buffer);
    f->other = argument(other);
    f->root = argument(root);
    f->reduction = argument(reduction);
    f->tag = argument(tag);
    return nb::steal(reinterpret_cast<PyObject*>(f));
}

void start(std::shared_ptr<Segment> segment, int rank, int number, int world_size,
           const std::vector<std::tuple<std::string, std::string, bool, bool>>& operations,
           const std::vector<std::string>& reductions, double timeout, bool abort) {
    if (watch) throw BadArgument("this process already watches its calls");
    CallNames names;
    for (const auto& [name, traced, message, rooted] : operations)
        names.operations.push_back({name, traced.empty() ? Op::None : op_named(traced), message, rooted});
    names.reductions = reductions;
    segment->set_owner(rank, 0);
    RankRecord& record = segment->record(rank);
    record.pid.store(QualifiedPid::own());
    auto* const started = new Watch;
    started->writer = std::make_unique<CallWriter>(segment, rank, number, std::move(names));
    started->other_reduction = uint8_t(reductions.size() - 1);
    record.joined.store(1);
    segment->announce_roster();
    Embedding& program = watched_python();
    watch_peers(segment, rank, program);
    started->options = {world_size, timeout, abort};
    start_checker(*started->writer, started->options, program);
    watch = started;
    pthread_atfork(nullptr, nullptr, [] { watch = nullptr; });  // a child is no rank
}

}  // namespace

NB_MODULE(_watch, w) {
    w.doc() = "Watching the calls that a program makes to another library.";
    nb::set_leak_warnings(false);
    nb::module_::import_("rankwise._native");  // makes its types known
    comm_attribute = PyUnicode_InternFromString("_watched");
    function_type();
    w.def("start", &start, nb::arg("segment"), nb::arg("rank"), nb::arg("number"), nb::arg("world_size"),
          nb::arg("operations"), nb::arg("reductions"), nb::arg("timeout"), nb::arg("abort"));
    w.def("function", &watched_function, nb::arg("function"), nb::arg("operation"), nb::arg("buffer") = nb::none(),
          nb::arg("other") = nb::none(), nb::arg("root") = nb::none(), nb::arg("reduction") = nb::none(),
          nb::arg("tag") = nb::none(), nb::arg("takes_self") = true, nb::arg("convert") = nb::none());
    w.def(
        "add_comm",
        [](uint64_t id, const std::string& name, bool deferred) {
            if (!watch) return uint32_t(0);
            const nb::ft_lock_guard lock(watch->mutex);
            return watch->writer->add_comm(id, name, deferred);
        },
        nb::arg("id"), nb::arg("name"), nb::arg("deferred") = false);
    w.def("failure", [](const Segment& segment) { return why_ended(segment); }, nb::arg("segment"));
    w.def("remove_comm", [](uint32_t index) {
        if (!watch) return;
        const nb::ft_lock_guard lock(watch->mutex);
        watch->writer->remove_comm(index);
    });
    w.def("check", [] {
        if (!watch) return;
        const ReleaseGil released;
        check_at_end(*watch->writer, watch->options, watched_python());
    });
    w.def("calls", [](uint32_t comm) { return watch ? watch->writer->calls(comm) : 0; });
    w.def(
        "set_objects",
        [](nb::object in_place, const std::vector<std::pair<nb::object, int>>& reductions) {
            if (!watch) return;
            watch->in_place = in_place.release().ptr();
            for (auto [object, index] : reductions)
                watch->reductions.emplace_back(object.release().ptr(), uint8_t(index));
        },
        nb::arg("in_place"), nb::arg("reductions"));
    w.def(
        "begin",
        [](uint32_t comm, int operation, int root, int reduction, int dtype, std::optional<uint64_t> amount,
           const std::string& site) -> std::pair<uint64_t, uint64_t> {
            if (!watch) return {0, 0};
            const CallKind kind{uint16_t(operation), uint8_t(dtype), uint8_t(reduction), root};
            const uint64_t bytes = amount && dtype < kDTypes ? *amount * itemsize(DType(dtype)) : 0;
            const nb::ft_lock_guard lock(watch->mutex);
            const uint32_t line = site.empty() ? watch->sites.find(*watch->writer) : watch->writer->add_site(site);
            const auto begun = watch->writer->begin(comm, kind, amount.value_or(kUnknownAmount), line, bytes);
            return {reinterpret_cast<uint64_t>(begun.call), reinterpret_cast<uint64_t>(begun.entry)};
        },
        nb::arg("comm"), nb::arg("operation"), nb::arg("root") = 0, nb::arg("reduction") = kNone,
        nb::arg("dtype") = kNone, nb::arg("amount").none() = nb::none(), nb::arg("site") = "");
    w.def("end", [](std::pair<uint64_t, uint64_t> begun, bool failed) {
        end({reinterpret_cast<WatchedCall*>(begun.first), reinterpret_cast<TraceEntry*>(begun.second)}, failed);
    });
}
