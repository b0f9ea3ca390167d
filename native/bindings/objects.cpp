// Python objects: those of basic types in one call, and the first step of each collective on objects.
#include "base/copy.hpp"
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

// encode(object), here and below a codec's, returns the encoded object in parts, if it is more than basic types.

bool send_object_plain(Comm& c, nb::handle object, nb::handle dst, nb::handle label, nb::handle encode) {
    const int to = rank_or_tag(dst, c.world_size()), tag = rank_or_tag(label, kTags);
    if (to < 0 || tag < 0) return false;
    if (is_basic(object)) {
        const nb::bytes stream = dump(object);
        const Stretch part{static_cast<const uint8_t*>(stream.data()), stream.size()};
        ReleaseGilToWait released(part.bytes);
        c.messages().send_now(Send::of_object({&part, 1}, to, tag), released.options());
        return true;
    }
    send_object_now(c, nb::cast<nb::list>(encode(object)), to, tag);
    return true;
}

// Starts to send an object of basic types, if it can be sent at once. Returns whether it was.
bool isend_object_plain(Comm& c, nb::handle object, nb::handle dst, nb::handle label) {
    const int to = rank_or_tag(dst, c.world_size()), tag = rank_or_tag(label, kTags);
    if (to < 0 || tag < 0 || !is_basic(object)) return false;
    const nb::bytes stream = dump(object);
    const Stretch part{static_cast<const uint8_t*>(stream.data()), stream.size()};
    ReleaseGilToWait released(part.bytes);
    return c.messages().send_at_once(Send::of_object({&part, 1}, to, tag), released.options());
}

struct Received {
    nb::object block{};  // bytes, for a short object; otherwise writable
    Arrival arrival{};
};

// NumPy has no such dtype without another package.
bool foreign(DType dtype) { return dtype == DType::BF16 || dtype == DType::FP8E4M3 || dtype == DType::FP8E5M2; }

// Receives an object, or, as Wanted::Any, whatever comes. Nothing, if src or tag is not an int in range, or ANY.
// check(dtype): whether the caller can have an array of a foreign dtype; if it raises, the message is given back.
std::optional<Received> receive(Comm& c, Wanted wanted, nb::handle src, nb::handle label, std::optional<double> timeout,
                                nb::handle check = {}) {
    const int from = rank_or_tag(src, c.world_size()), tag = rank_or_tag(label, kTags);
    if (from == kNotANumber || tag == kNotANumber) return std::nullopt;
    check_timeout(timeout);
    Received received;
    // A short message is stored in its block at once, unless the GIL has been released because another thread had the
    // requests.
    const auto into_block = [&](const MessageHeader& h) -> uint8_t* {
        if ((!h.object && wanted == Wanted::Object) || foreign(DType(h.dtype)) || !PyGILState_Check()) return nullptr;
        const auto length = Py_ssize_t(h.bytes);
        nb::object block = nb::steal(h.object ? PyBytes_FromStringAndSize(nullptr, length)
                                              : PyByteArray_FromStringAndSize(nullptr, length));
        if (!block) {
            PyErr_Clear();
            return nullptr;
        }
        received.block = block;
        return reinterpret_cast<uint8_t*>(h.object ? PyBytes_AS_STRING(block.ptr())
                                                   : PyByteArray_AS_STRING(block.ptr()));
    };
    std::shared_ptr<Request> request;
    {
        ReleaseGilToWait released;
        request = c.messages().recv_any_now(wanted, from, tag, std::ref(into_block), received.arrival, timeout,
                                            released.options());
    }
    if (request && foreign(received.arrival.dtype)) {
        try {
            check(int(received.arrival.dtype));
        } catch (const nb::python_error&) {
            without_gil([&] { request->return_message(); });
            throw;
        }
    }
    if (request && received.arrival.object && received.arrival.count <= kShortMessage) {
        const Memory memory = request->take_memory();
        received.block = nb::bytes(memory.data(), size_t(received.arrival.count));
    } else if (request) {
        received.block = received_bytes(*request);
    }
    return received;
}

// read(block, source): decodes what is not basic.
nb::object object_in(const Received& received, nb::handle read, nb::handle constructor) {
    nb::object found =
        nb::isinstance<nb::bytes>(received.block) ? load_allowed(received.block, constructor) : not_taken();
    return found.is(not_taken()) ? read(received.block, received.arrival.source) : found;
}

nb::object recv_object_plain(Comm& c, nb::handle src, nb::handle label, std::optional<double> timeout, nb::handle read,
                             nb::handle constructor) {
    const auto received = receive(c, Wanted::Object, src, label, timeout);
    return received ? object_in(*received, read, constructor) : not_taken();
}

// (the object, (its source, tag and encoded length)).
nb::object recv_object_with_source(Comm& c, nb::handle src, nb::handle label, nb::handle read, nb::handle constructor) {
    const auto received = receive(c, Wanted::Object, src, label, std::nullopt);
    if (!received) return not_taken();
    const Arrival& a = received->arrival;
    return nb::make_tuple(object_in(*received, read, constructor), nb::make_tuple(a.source, a.tag, a.count));
}

// (an array's bytes, its source, tag and dtype), or (an object, its source, tag and None).
nb::object recv_any_plain(Comm& c, nb::handle src, nb::handle label, std::optional<double> timeout, nb::handle check,
                          nb::handle read, nb::handle constructor) {
    const auto received = receive(c, Wanted::Any, src, label, timeout, check);
    if (!received) return not_taken();
    const Arrival& a = received->arrival;
    if (a.object) return nb::make_tuple(object_in(*received, read, constructor), a.source, a.tag, nb::none());
    return nb::make_tuple(received->block, a.source, a.tag, int(a.dtype));
}

// ---- collectives ----

// An object that this rank sends: in parts, and as the Python code of the general path has it.
struct Encoded {
    Encoded(nb::handle object, nb::handle codec) {
        if (is_basic(object)) list.append(dump(object));
        else list = nb::cast<nb::list>(codec.attr("encode")(object));
        measure();
    }
    explicit Encoded(nb::list encoded) : list(std::move(encoded)) { measure(); }
    void copy_to(uint8_t* to) const {
        for (const Stretch& part : parts)
            rankwise::copy_bytes(std::exchange(to, to + part.bytes), part.data, part.bytes);
    }
    nb::list list;
    std::vector<Stretch> parts;
    uint64_t bytes = 0;

private:
    void measure() {
        parts = parts_of(list);
        for (const Stretch& part : parts) bytes += part.bytes;
    }
};

// What the ranks exchange first: the length of an encoded object, and the object itself if it fits. In group/objects.py
// it has the same form, because some of the ranks may take that path.
struct ObjectBlock {
    static constexpr size_t kBytes = 256;
    uint64_t bytes;
    uint64_t longest;  // of all the objects that the rank sends
    uint8_t data[kBytes - 2 * sizeof(uint64_t)];

    static bool fits(uint64_t length) { return length <= sizeof data; }
    void set(const Encoded& encoded, uint64_t all = 0) {
        bytes = encoded.bytes;
        longest = std::max(bytes, all);
        if (fits(longest)) encoded.copy_to(data);
    }
    // The encoded object, or its length if the longest does not fit.
    nb::object get() const {
        return fits(bytes) && fits(longest) ? nb::object(nb::bytes(data, size_t(bytes))) : nb::object(nb::int_(bytes));
    }
    // The object, which `from` has encoded, if it is here and of basic types, else NOT_TAKEN.
    nb::object load(const Comm& c, int from, nb::handle constructor) const {
        const nb::object found = get();
        if (!nb::isinstance<nb::bytes>(found)) return not_taken();
        return from == c.rank() ? ::load(found) : load_allowed(found, constructor);
    }
};
static_assert(sizeof(ObjectBlock) == ObjectBlock::kBytes);

// One object for each rank. sent: also receives the objects in parts.
std::vector<Encoded> encode_all(const nb::tuple& objects, nb::handle codec, nb::list& sent) {
    std::vector<Encoded> encoded;
    for (nb::handle object : objects) sent.append(encoded.emplace_back(object, codec).list);
    return encoded;
}

std::vector<ObjectBlock> blocks_of(const std::vector<Encoded>& encoded) {
    uint64_t longest = 0;
    for (const Encoded& each : encoded) longest = std::max(longest, each.bytes);
    std::vector<ObjectBlock> blocks(encoded.size());
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i].set(encoded[i], longest);
    return blocks;
}

nb::list contents(const std::vector<ObjectBlock>& blocks) {
    nb::list found;
    for (const ObjectBlock& each : blocks) found.append(each.get());
    return found;
}

// The objects of all ranks. found: each one encoded, or, if it is long, its length; rest(first) completes what is long
// or more than the constructor allows.
template <class Rest> nb::object objects_in(Comm& c, const nb::list& found, nb::handle constructor, const Rest& rest) {
    nb::list objects;
    const bool all_here =
        std::all_of(found.begin(), found.end(), [](nb::handle each) { return nb::isinstance<nb::bytes>(each); });
    for (size_t rank = 0; all_here && rank < found.size(); ++rank) {
        const nb::object object = int(rank) == c.rank() ? load(found[rank]) : load_allowed(found[rank], constructor);
        if (object.is(not_taken())) break;
        objects.append(object);
    }
    return objects.size() == found.size() ? nb::object(objects) : completed(c, found, rest);
}

// What the first of several calls has brought, for the Python code that makes the others.
struct FirstStep {
    nb::object take() {
        taken = true;
        return found;
    }
    nb::object found;
    bool taken = false;
};

// rest(first) makes the other calls, and takes what `first` has within Group's `_whole`. If it ends before that, by the
// exception of a signal handler, the other ranks must not wait for those calls.
template <class Rest> nb::object completed(Comm& c, nb::object found, const Rest& rest) {
    const nb::object first = nb::cast(FirstStep{std::move(found)});
    try {
        return rest(first);
    } catch (const nb::python_error&) {
        if (!nb::cast<FirstStep&>(first).taken)
            without_gil([&] { c.abort("it was interrupted between the calls of one operation"); });
        throw;
    }
}

// Encodes what this rank sends, makes the first of several calls, and then `rest` with the others; no other call comes
// in between. Work on the stream has stored by then what the objects contain.
template <class Encode, class First, class Rest>
nb::object in_one_call(Comm& c, const Encode& encode, const First& first, const Rest& rest) {
    const Comm::Lock lock = [&] {
        const ArrayCall call;
        return c.lock(call);
    }();
    encode();
    first(ArrayCall());
    return rest();
}

// Each of these returns NOT_TAKEN, with nothing done, for an argument that it does not know. If an object is more
// than the constructor allows (see load_allowed), or long, rest(root, codec, first, sent) completes the operation, with
// no other call in between. first() returns the encoded object, or its length if it is longer than a block; of a gather
// or an exchange, a list of these. sent: what this rank sends, in parts (group/object_block.py).

nb::object broadcast_object_plain(Comm& c, nb::handle object, nb::handle from, nb::handle codec, nb::handle constructor,
                                  nb::handle rest) {
    const int src = rank_or_tag(from, c.world_size());
    const bool sends = src == c.rank();
    if (src < 0) return not_taken();
    ObjectBlock block;
    nb::object sent = nb::none();
    return in_one_call(
        c,
        [&] {
            if (!sends) return;
            const Encoded encoded(object, codec);
            block.set(encoded);
            sent = encoded.list;
        },
        [&](const ArrayCall& call) { c.broadcast(&block, sizeof block, DType::U8, src, call); },
        [&] {
            nb::object found = sends ? nb::none() : block.load(c, src, constructor);
            if (!ObjectBlock::fits(block.longest) || found.is(not_taken()))
                found = completed(c, block.get(), [&](nb::handle step) { return rest(src, codec, step, sent); });
            return sends ? nb::borrow(object) : found;
        });
}

// The encoded objects of all ranks, on dst.
struct GatheredObjects {
    std::vector<ObjectBlock> blocks;
    std::vector<Memory> longer;  // by rank: what does not fit into its block

    GatheredObjects(Comm& c, const Encoded& mine, int dst, const CallOptions& options)
        : blocks(dst == c.rank() ? size_t(c.world_size()) : 0) {
        Memory whole;
        const uint8_t* data = mine.parts.empty() ? nullptr : mine.parts.front().data;
        if (mine.parts.size() > 1) {
            whole = Memory(mine.bytes);
            mine.copy_to(whole.data());
            data = whole.data();
        }
        const auto rooms = [this](const Counts& sizes) {
            std::vector<uint8_t*> places;
            longer.resize(sizes.size());
            for (size_t from = 0; from < sizes.size(); ++from) {
                blocks[from].bytes = sizes[from];
                const bool fits = ObjectBlock::fits(sizes[from]);
                if (!fits) longer[from] = Memory(sizes[from]);
                places.push_back(fits ? &blocks[from].data[0] : longer[from].data());
            }
            return places;
        };
        c.gather_sized(data, mine.bytes, {}, rooms, dst, options);
    }
    // Takes a block: bytes, if it is short.
    nb::object take(size_t rank) {
        const ObjectBlock& block = blocks[rank];
        const bool fits = ObjectBlock::fits(block.bytes);
        if (block.bytes <= kShortMessage)
            return nb::bytes(fits ? block.data : longer[rank].data(), size_t(block.bytes));
        return nb::cast(ReceivedBytes(std::move(longer[rank]), block.bytes), nb::rv_policy::move);
    }
};

nb::object gather_object_at(Comm& c, nb::handle object, nb::handle to, nb::handle codec, nb::handle constructor,
                            nb::handle rest) {
    const int dst = rank_or_tag(to, c.world_size());
    if (dst < 0) return not_taken();
    std::optional<Encoded> mine;
    std::optional<GatheredObjects> gathered;
    const auto encoding = [&] { mine.emplace(object, codec); };
    const auto gather = [&](const ArrayCall& call) { gathered.emplace(c, *mine, dst, call); };
    return in_one_call(c, encoding, gather, [&]() -> nb::object {
        if (dst != c.rank()) return nb::none();
        nb::list found;
        for (int rank = 0; rank < c.world_size(); ++rank) found.append(gathered->take(size_t(rank)));
        return objects_in(c, found, constructor, [&](nb::handle step) { return rest(dst, codec, step, mine->list); });
    });
}

// The blocks of all ranks on dst, and None elsewhere. parts: this rank's encoded object.
nb::object gather_encoded(Comm& c, const nb::list& parts, int dst) {
    const Encoded mine(parts);
    GatheredObjects gathered(c, mine, dst, ArrayCall());
    if (dst != c.rank()) return nb::none();
    nb::list found;
    for (int rank = 0; rank < c.world_size(); ++rank) found.append(gathered.take(size_t(rank)));
    return found;
}

// to: None for every rank.
nb::object gather_object_plain(Comm& c, nb::handle object, nb::handle to, nb::handle codec, nb::handle constructor,
                               nb::handle rest) {
    if (!to.is_none()) return gather_object_at(c, object, to, codec, constructor, rest);
    nb::list sent;
    ObjectBlock block;
    std::vector<ObjectBlock> blocks(size_t(c.world_size()));
    const auto encoding = [&] {
        const Encoded encoded(object, codec);
        block.set(encoded);
        sent = encoded.list;
    };
    const auto first = [&](const ArrayCall& call) {
        c.all_gather(&block, blocks.data(), sizeof block, DType::U8, call);
    };
    return in_one_call(c, encoding, first, [&] {
        return objects_in(c, contents(blocks), constructor,
                          [&](nb::handle step) { return rest(to, codec, step, sent); });
    });
}

// Rank r sends its objects[i] to rank i. Objects that are too long for a block follow in longer ones, which are as long
// as the longest of all.
nb::object exchange_objects_plain(Comm& c, const nb::list& objects, nb::handle codec, nb::handle constructor,
                                  nb::handle rest) {
    const size_t n = size_t(c.world_size());
    if (objects.size() != n) throw BadArgument("objs: expected one object for each rank");
    nb::list sent;
    std::vector<Encoded> encoded;
    std::vector<ObjectBlock> received(n);
    const nb::tuple given(objects);  // another thread may change the list
    const auto first = [&](const ArrayCall& call) {
        c.all_to_all(blocks_of(encoded).data(), received.data(), sizeof(ObjectBlock), DType::U8, call);
    };
    return in_one_call(
        c, [&] { encoded = encode_all(given, codec, sent); }, first,
        [&] {
            nb::list found = contents(received);
            uint64_t longest = 0;
            for (const ObjectBlock& each : received) longest = std::max(longest, each.longest);
            if (!ObjectBlock::fits(longest) && longest <= kShortMessage) {
                const Memory out(n * longest), in(n * longest);
                for (size_t to = 0; to < n; ++to) encoded[to].copy_to(out.data() + to * longest);
                c.all_to_all(out.data(), in.data(), longest, DType::U8, ArrayCall());
                for (size_t from = 0; from < n; ++from)
                    found[from] =
                        nb::bytes(in.data() + from * longest, size_t(std::min(received[from].bytes, longest)));
            }
            return objects_in(c, found, constructor, [&](nb::handle step) { return rest(codec, step, sent); });
        });
}

nb::object scatter_object_plain(Comm& c, nb::handle objects, nb::handle from, nb::handle codec, nb::handle constructor,
                                nb::handle rest) {
    const int src = rank_or_tag(from, c.world_size());
    if (src < 0) return not_taken();
    if (src == c.rank() && (!nb::isinstance<nb::list>(objects) || nb::len(objects) != size_t(c.world_size())))
        return not_taken();
    nb::list sent;
    std::vector<ObjectBlock> blocks;
    const nb::tuple given(src == c.rank() ? objects : nb::handle(sent));  // another thread may change the list
    const auto encoding = [&] { blocks = blocks_of(encode_all(given, codec, sent)); };
    ObjectBlock block;
    const auto first = [&](const ArrayCall& call) {
        c.scatter(blocks.data(), &block, sizeof block, DType::U8, src, call);
    };
    return in_one_call(c, encoding, first, [&] {
        nb::object found = block.load(c, src, constructor);
        if (!found.is(not_taken())) return found;
        return completed(c, block.get(), [&](nb::handle step) { return rest(src, codec, step, sent); });
    });
}

}  // namespace

nb::object received_bytes(Request& request) {
    const uint64_t bytes = request.count() * itemsize(request.dtype());
    return nb::cast(ReceivedBytes(request.take_memory(), bytes), nb::rv_policy::move);
}

void bind_objects(nb::module_& m, nb::class_<Comm>& comm) {
    nb::class_<ReceivedBytes>(m, "ReceivedBytes", nb::type_slots(received_bytes_slots),
                              "A received message: writable bytes, by the buffer protocol.")
        .def("__len__", &ReceivedBytes::bytes);
    nb::class_<FirstStep>(m, "FirstStep").def("__call__", &FirstStep::take);
    comm.def("gather_encoded", &gather_encoded, nb::arg("parts"), nb::arg("dst"))
        .def("send_object_plain", &send_object_plain, nb::arg("object").none(), nb::arg("dst").none(),
             nb::arg("tag").none(), nb::arg("encode"))
        .def("recv_object_plain", &recv_object_plain, nb::arg("src").none(), nb::arg("tag").none(),
             nb::arg("timeout").none(), nb::arg("read"), nb::arg("constructor").none())
        .def("recv_object_with_source", &recv_object_with_source, nb::arg("src").none(), nb::arg("tag").none(),
             nb::arg("read"), nb::arg("constructor").none())
        .def("isend_object_plain", &isend_object_plain, nb::arg("object").none(), nb::arg("dst").none(),
             nb::arg("tag").none())
        .def("recv_any_plain", &recv_any_plain, nb::arg("src").none(), nb::arg("tag").none(), nb::arg("timeout").none(),
             nb::arg("check"), nb::arg("read"), nb::arg("constructor").none())
        .def("broadcast_object_plain", &broadcast_object_plain, nb::arg("object").none(), nb::arg("src").none(),
             nb::arg("codec"), nb::arg("constructor").none(), nb::arg("rest"))
        .def("gather_object_plain", &gather_object_plain, nb::arg("object").none(), nb::arg("dst").none(),
             nb::arg("codec"), nb::arg("constructor").none(), nb::arg("rest"))
        .def("exchange_objects_plain", &exchange_objects_plain, nb::arg("objects"), nb::arg("codec"),
             nb::arg("constructor").none(), nb::arg("rest"))
        .def("scatter_object_plain", &scatter_object_plain, nb::arg("objects").none(), nb::arg("src").none(),
             nb::arg("codec"), nb::arg("constructor").none(), nb::arg("rest"));
}
