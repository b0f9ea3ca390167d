// Messages between two ranks, as Python starts and awaits them.
#include "messages.hpp"


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

RequestHandle start_send(Comm& c, Address ptr, int64_t count, int dtype, int dest, int tag, nb::object keep) {
    const DType type = checked_dtype(dtype);
    const uint64_t elements = checked_count(count);
    auto owner = kept(std::move(keep));
    ReleaseGil released;
    return {c.send(pointer(ptr), elements, type, dest, tag, owner), owner};
}

RequestHandle start_recv(Comm& c, Address ptr, int64_t count, int dtype, int src, int tag, nb::object keep) {
    const DType type = checked_dtype(dtype);
    const uint64_t elements = checked_count(count);
    auto owner = kept(std::move(keep));
    ReleaseGil released;
    return {c.recv(pointer(ptr), elements, type, src, tag, owner), owner};
}

std::optional<RequestHandle> recv_probed(Comm& c, Address ptr, int64_t count, int dtype, int src, int tag, nb::object keep) {
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
        ReleaseGil released;
        r->wait(timeout);
    }
    r.release();
}

bool request_done(RequestHandle& r) {
    bool done;
    {
        ReleaseGil released;
        done = r->done();
    }
    if (r->complete()) r.release();
    return done;
}

}  // namespace

void bind_messages(nb::module_& m, nb::class_<Comm>& comm) {
    nb::class_<RequestHandle>(m, "Request", "A send or receive in progress.")
        .def("wait", &wait_request, nb::arg("timeout").none() = nb::none())
        .def("done", &request_done)
        .def("abandon", [](RequestHandle& r) { r->abandon(); }, nb::call_guard<ReleaseGil>())
        .def("memory", [](RequestHandle& r) { return received_bytes(*r.operator->()); })
        .def_prop_ro("source", [](const RequestHandle& r) { return r->source(); })
        .def_prop_ro("tag", [](const RequestHandle& r) { return r->tag(); })
        .def_prop_ro("dtype", [](const RequestHandle& r) { return int(r->dtype()); });
    const auto keep = nb::arg("keep").none() = nb::none();
    comm.def("send", &start_send, nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("dest"), nb::arg("tag"), keep)
        .def("recv", &start_recv, nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("src"), nb::arg("tag"), keep)
        .def("recv_probed", &recv_probed, nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("src"), nb::arg("tag"), keep)
        .def("send_object", &start_send_object, nb::arg("parts"), nb::arg("dest"), nb::arg("tag"))
        .def("recv_any", &start_recv_any, nb::arg("object"), nb::arg("dtype"), nb::arg("src"), nb::arg("tag"))
        .def("send_object_now", &send_object_now, nb::arg("parts"), nb::arg("dest"), nb::arg("tag"))
        .def("probe", &await_arrival, nb::arg("src"), nb::arg("tag"), nb::arg("timeout") = 0.0);
}
