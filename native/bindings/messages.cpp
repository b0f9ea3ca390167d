// Messages between two ranks, as Python starts and awaits them.
#include "messages.hpp"

#include "numpy_arrays.hpp"

using namespace rankwise;

namespace {

Wanted wanted(bool object, int dtype) {
    if (object) return {Wanted::Object};
    return {Wanted::Array, dtype < 0 ? std::nullopt : std::optional(checked_dtype(dtype))};
}

// The memory of objects with the buffer protocol. Whoever keeps the objects keeps the memory.
std::vector<Part> parts_of(const nb::list& objects) {
    std::vector<Part> parts;
    parts.reserve(objects.size());
    for (nb::handle object : objects) {
        Py_buffer view;
        if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_SIMPLE)) nb::raise_python_error();
        parts.push_back({static_cast<const uint8_t*>(view.buf), uint64_t(view.len)});
        PyBuffer_Release(&view);
    }
    return parts;
}

// start: Comm::send or Comm::recv.
template <auto start>
RequestHandle start_message(Comm& c, Address ptr, int64_t count, int dtype, int peer, int tag, nb::object keep) {
    const DType type = checked_dtype(dtype);
    const uint64_t elements = checked_count(count);
    auto owner = kept(std::move(keep));
    ReleaseGil released;
    return {(c.*start)(pointer(ptr), elements, type, peer, tag, owner), owner};
}

// The same for a plain array; None, with nothing done, for another one, or if peer or tag is not an int from least on.
template <auto start, int least>
std::optional<RequestHandle> start_array(Comm& c, nb::object array, nb::handle peer, nb::handle label) {
    const int rank = rank_or_tag(peer, c.world_size()), tag = rank_or_tag(label, kTags);
    const PlainArray x(array, least == kAny);
    if (!x || rank < least || tag < least) return std::nullopt;
    auto owner = kept(std::move(array));
    const ReleaseGilToWait released(x.bytes());
    return RequestHandle((c.*start)(x.data, x.count, DType(x.dtype), rank, tag, owner), owner);
}

std::optional<RequestHandle> recv_probed(Comm& c, Address ptr, int64_t count, int dtype, int src, int tag,
                                         nb::object keep) {
    const Arrival found{src, tag, checked_count(count), checked_dtype(dtype), false};
    auto owner = kept(std::move(keep));
    ReleaseGil released;
    auto request = c.recv_probed(pointer(ptr), found, owner);
    if (!request) return std::nullopt;
    return RequestHandle(std::move(request), std::move(owner));
}

RequestHandle start_send_object(Comm& c, nb::list objects, int dest, int tag) {
    auto parts = parts_of(objects);
    auto owner = kept(std::move(objects));
    ReleaseGil released;
    return {c.send_object(std::move(parts), dest, tag, owner), owner};
}

RequestHandle start_recv_any(Comm& c, bool object, int dtype, int src, int tag) {
    const Wanted accepted = wanted(object, dtype);
    auto owner = std::make_shared<Kept>(nb::none());  // so that the receive is cancelled if Python loses it
    ReleaseGil released;
    return {c.recv_any(accepted, src, tag), owner};
}

void send_object_now(Comm& c, const nb::list& objects, int dest, int tag) {
    auto parts = parts_of(objects);
    size_t bytes = 0;
    for (const Part& part : parts) bytes += part.bytes;
    const ReleaseGilToWait released(bytes);
    c.send_object_now(std::move(parts), dest, tag);
}

std::optional<std::tuple<int, int, uint64_t, int>> await_arrival(Comm& c, int src, int tag, double timeout) {
    check_timeout(timeout);
    std::optional<Arrival> arrival;
    {
        ReleaseGil released;
        arrival = timeout > 0 ? c.await_arrival(src, tag, timeout) : c.probe(src, tag);
    }
    if (!arrival) return std::nullopt;
    return std::make_tuple(arrival->source, arrival->tag, arrival->count, int(arrival->dtype));
}

void wait_request(RequestHandle& r, std::optional<double> timeout) {
    check_timeout(timeout);
    {
        const ReleaseGilToWait released;
        r->wait(timeout);
    }
    r.release();
}

bool request_done(RequestHandle& r) {
    bool done = r->complete();
    if (!done) {
        const ReleaseGil released;
        done = r->done();
    }
    if (r->complete()) r.release();
    return done;
}

// Returns whether the request is given up, and so not complete.
bool cancel_request(RequestHandle& r) {
    {
        const ReleaseGil released;
        r->abandon();
    }
    return r->abandoned();
}

}  // namespace

void bind_messages(nb::module_& m, nb::class_<Comm>& comm) {
    nb::class_<RequestHandle>(m, "Request", "A send or receive in progress.")
        .def("wait", &wait_request, nb::arg("timeout").none() = nb::none())
        .def("done", &request_done)
        .def("cancel", &cancel_request)
        .def("memory", [](RequestHandle& r) { return received_bytes(*r.operator->()); })
        .def_prop_ro("source", [](const RequestHandle& r) { return r->source(); })
        .def_prop_ro("tag", [](const RequestHandle& r) { return r->tag(); })
        .def_prop_ro("dtype", [](const RequestHandle& r) { return int(r->dtype()); });
    const auto keep = nb::arg("keep").none() = nb::none();
    comm.def("send", &start_message<&Comm::send>, nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("dest"),
             nb::arg("tag"), keep)
        .def("recv", &start_message<&Comm::recv>, nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("src"),
             nb::arg("tag"), keep)
        .def("isend_array", &start_array<&Comm::send, 0>, nb::arg("x").none(), nb::arg("dst").none(),
             nb::arg("tag").none())
        .def("irecv_array", &start_array<&Comm::recv, kAny>, nb::arg("x").none(), nb::arg("src").none(),
             nb::arg("tag").none())
        .def("recv_probed", &recv_probed, nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("src"),
             nb::arg("tag"), keep)
        .def("send_object", &start_send_object, nb::arg("parts"), nb::arg("dest"), nb::arg("tag"))
        .def("recv_any", &start_recv_any, nb::arg("object"), nb::arg("dtype"), nb::arg("src"), nb::arg("tag"))
        .def("send_object_now", &send_object_now, nb::arg("parts"), nb::arg("dest"), nb::arg("tag"))
        .def("probe", &await_arrival, nb::arg("src"), nb::arg("tag"), nb::arg("timeout") = 0.0);
}
