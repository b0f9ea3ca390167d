// Python objects: those of basic types in one call, and the first step of each collective on objects.
#include "collectives/tuning.hpp"
#include "messages.hpp"
#include "plain_pickle.hpp"

using namespace rankwise;

namespace {

// The message of a receive of any length, with Python's buffer protocol: writable bytes.
class ReceivedBytes {
public:
    ReceivedBytes(Memory memory, uint64_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}
    uint64_t bytes() const { return bytes_; }
    static int get(PyObject* self, Py_buffer* view, int flags) {
        const auto& received = *nb::inst_ptr<ReceivedBytes>(self);
        return PyBuffer_FillInfo(view, self, received.memory_.data(), Py_ssize_t(received.bytes_), 0, flags);
    }

private:
    Memory memory_;
    uint64_t bytes_;
};
PyType_Slot received_bytes_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&ReceivedBytes::get)}, {0, nullptr}};

// pickle's functions.
struct Pickle {
    nb::object dumps, loads, protocol = nb::int_(5);
    static const Pickle& get() {
        static const Pickle* const pickle = [] {
            const nb::module_ module = nb::module_::import_("pickle");
            return new Pickle{module.attr("dumps"), module.attr("loads")};
        }();
        return *pickle;
    }
    nb::object dump(nb::handle object) const {
        PyObject* const args[] = {object.ptr(), protocol.ptr()};
        PyObject* const result = PyObject_Vectorcall(dumps.ptr(), args, 2, nullptr);
        if (!result) nb::raise_python_error();
        return nb::steal(result);
    }
    // NotImplemented if that fails.
    nb::object load(nb::handle stream) const {
        PyObject* const args[] = {stream.ptr()};
        PyObject* const result = PyObject_Vectorcall(loads.ptr(), args, 1, nullptr);
        if (result) return nb::steal(result);
        PyErr_Clear();
        return nb::borrow(Py_NotImplemented);
    }
};

// The object of a pickle that makes only basic types; NotImplemented if it makes others, or is invalid.
nb::object load_basic(nb::handle stream, const nb::tuple& constructor) {
    return makes_basic(nb::borrow<nb::bytes>(stream), constructor) ? Pickle::get().load(stream) : nb::borrow(Py_NotImplemented);
}

constexpr long kTags = 1l << 31;
constexpr int kNone = -2;

// An int from 0 to limit - 1, or kAny for ANY, which is an int's subclass; kNone for anything else.
int number_or_any(nb::handle value, long limit) {
    if (!PyLong_Check(value.ptr())) return kNone;
    const long number = PyLong_AsLong(value.ptr());
    if (number == -1) {
        PyErr_Clear();
        return PyLong_CheckExact(value.ptr()) ? kNone : kAny;
    }
    return PyLong_CheckExact(value.ptr()) && number >= 0 && number < limit ? int(number) : kNone;
}

bool send_object_plain(Comm& c, nb::handle object, nb::handle dst, nb::handle label) {
    const int to = number_or_any(dst, c.world_size()), tag = number_or_any(label, kTags);
    if (to < 0 || tag < 0 || !is_basic(object)) return false;
    const nb::object stream = Pickle::get().dump(object);
    const Part part{reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(stream.ptr())), uint64_t(PyBytes_GET_SIZE(stream.ptr()))};
    const ReleaseGilToWait released(part.bytes);
    c.send_object_now({part}, to, tag);
    return true;
}

// read(block, source): decodes what is not basic.
nb::object recv_object_plain(Comm& c, nb::handle src, nb::handle label, std::optional<double> timeout, nb::handle read, const nb::tuple& constructor) {
    const int from = number_or_any(src, c.world_size()), tag = number_or_any(label, kTags);
    if (from == kNone || tag == kNone) return nb::borrow(Py_NotImplemented);
    check_timeout(timeout);
    nb::object block;
    // A short object becomes bytes at once, unless the GIL has been released because another thread had the requests.
    const auto into_bytes = [&](const Header& h) {
        if (!h.object || !PyGILState_Check()) return static_cast<uint8_t*>(nullptr);
        block = nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(h.bytes)));
        if (block) return reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(block.ptr()));
        PyErr_Clear();
        return static_cast<uint8_t*>(nullptr);
    };
    Arrival arrival;
    std::shared_ptr<Request> request;
    {
        const ReleaseGilToWait released;
        request = c.recv_any_now({Wanted::Object}, from, tag, std::ref(into_bytes), arrival, timeout);
    }
    if (request && arrival.count <= tuning::kShortObject) {
        const Memory memory = request->take_memory();
        block = nb::bytes(memory.data(), size_t(arrival.count));
    } else if (request) {
        return read(received_bytes(*request), arrival.source);
    }
    nb::object found = load_basic(block, constructor);
    return found.is(nb::borrow(Py_NotImplemented)) ? read(block, arrival.source) : found;
}

// Receives an array of any length and dtype: (its bytes, writable, its source, tag and dtype).
nb::object recv_any_plain(Comm& c, nb::handle src, nb::handle label, std::optional<double> timeout) {
    const int from = number_or_any(src, c.world_size()), tag = number_or_any(label, kTags);
    if (from == kNone || tag == kNone) return nb::borrow(Py_NotImplemented);
    check_timeout(timeout);
    nb::object block;
    const auto into_bytes = [&](const Header& h) {
        if (h.object || !PyGILState_Check()) return static_cast<uint8_t*>(nullptr);
        block = nb::steal(PyByteArray_FromStringAndSize(nullptr, Py_ssize_t(h.bytes)));
        if (block) return reinterpret_cast<uint8_t*>(PyByteArray_AS_STRING(block.ptr()));
        PyErr_Clear();
        return static_cast<uint8_t*>(nullptr);
    };
    Arrival arrival;
    std::shared_ptr<Request> request;
    {
        const ReleaseGilToWait released;
        request = c.recv_any_now({Wanted::Array}, from, tag, std::ref(into_bytes), arrival, timeout);
    }
    return nb::make_tuple(request ? received_bytes(*request) : block, arrival.source, arrival.tag, int(arrival.dtype));
}

// ---- collectives: a block of fixed size, with the length of an encoded object, and the object itself if it fits ----

struct ObjectBlock {
    static constexpr size_t kBytes = 256;
    uint64_t bytes;
    uint8_t data[kBytes - sizeof(uint64_t)];

    bool fits() const { return bytes <= sizeof data; }
    void set(const nb::bytes& object) {
        bytes = object.size();
        if (fits()) std::memcpy(data, object.c_str(), bytes);
    }
    // The object, or its length.
    nb::object get() const { return fits() ? nb::object(nb::bytes(data, size_t(bytes))) : nb::object(nb::int_(bytes)); }
};
static_assert(sizeof(ObjectBlock) == ObjectBlock::kBytes);

nb::object broadcast_block(Comm& c, nb::handle object, int src) {
    ObjectBlock block;
    const bool from_here = src == c.rank();
    if (from_here) block.set(nb::borrow<nb::bytes>(object));
    {
        const ReleaseGilToWait released;
        c.broadcast(&block, sizeof block, DType::U8, src);
    }
    if (from_here && block.fits()) return nb::borrow(object);
    return block.get();
}

nb::list all_gather_blocks(Comm& c, const nb::bytes& object) {
    ObjectBlock block;
    block.set(object);
    std::vector<ObjectBlock> blocks(size_t(c.world_size()));
    {
        const ReleaseGilToWait released;
        c.all_gather(&block, blocks.data(), sizeof block, DType::U8);
    }
    nb::list objects;
    for (const ObjectBlock& each : blocks) objects.append(each.get());
    return objects;
}

}  // namespace

nb::object received_bytes(Request& request) {
    const uint64_t bytes = request.count() * itemsize(request.dtype());
    return nb::cast(ReceivedBytes(request.take_memory(), bytes), nb::rv_policy::move);
}

void bind_objects(nb::module_& m, nb::class_<Comm>& comm) {
    nb::class_<ReceivedBytes>(m, "ReceivedBytes", nb::type_slots(received_bytes_slots), "A received message: writable bytes, by the buffer protocol.")
        .def("__len__", &ReceivedBytes::bytes);
    m.def("load_basic", &load_basic, nb::arg("stream"), nb::arg("constructor"),
          "The object of a pickle that makes only basic types, with no call of the constructor (see check_plain), else NotImplemented.");
    comm.def("send_object_plain", &send_object_plain, nb::arg("object").none(), nb::arg("dst").none(), nb::arg("tag").none())
        .def("recv_object_plain", &recv_object_plain, nb::arg("src").none(), nb::arg("tag").none(), nb::arg("timeout").none(), nb::arg("read"), nb::arg("constructor"))
        .def("recv_any_plain", &recv_any_plain, nb::arg("src").none(), nb::arg("tag").none(), nb::arg("timeout").none())
        .def("broadcast_block", &broadcast_block, nb::arg("object").none(), nb::arg("src"))
        .def("all_gather_blocks", &all_gather_blocks, nb::arg("object"));
}
