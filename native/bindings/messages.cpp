// Messages between two ranks, as Python starts and awaits them.
#include "messages.hpp"

#include "plain_array.hpp"
#include "requests.hpp"
#include "works.hpp"

using namespace rankwise;

namespace {

RequestHandle start_message(Comm& c, const Send& message, nb::object keep) {
    return {without_gil([&] { return c.messages().send(message); }), std::move(keep)};
}
RequestHandle start_message(Comm& c, const Receive& wanted, nb::object keep) {
    return {without_gil([&] { return c.messages().recv(wanted); }), std::move(keep)};
}
// M: Send or Receive.
template <class M>
RequestHandle start_at_address(Comm& c, Address ptr, int64_t count, int dtype, int peer, int tag, nb::object keep) {
    return start_message(c, M{pointer(ptr), checked_count(count), checked_dtype(dtype), peer, tag}, std::move(keep));
}

// Sends and receives of plain arrays. They return None, with nothing done, for another array, or if the rank or the tag
// is not an int in range, or ANY where that is allowed. isend_array returns True if the message is sent.
template <Send::Mode mode>
StartedMessage start_send(Comm& c, nb::object array, nb::handle to, nb::handle label, nb::object group) {
    const int dst = rank_or_tag(to, c.world_size()), tag = rank_or_tag(label, kTags);
    const PlainArray x(array, Access::Read);
    if (!x || dst < 0 || tag < 0) return {};
    std::shared_ptr<Request> request;
    {
        ReleaseGilToWait released(x.bytes());
        const Send message{x.data, x.count, DType(x.dtype), dst, tag, mode};
        if (mode == Send::Mode::Synchronous || !c.messages().send_at_once(message, released.options()))
            request = c.messages().send(message, released.options());
    }
    if (!request || request->has_result()) return {true, std::nullopt};
    return {true, RequestHandle(std::move(request), std::move(array), nb::none(), std::move(group))};
}

template <Send::Mode mode>
nb::object isend_array(Comm& c, nb::object array, nb::handle to, nb::handle label, nb::object group) {
    StartedMessage sent = start_send<mode>(c, std::move(array), to, label, std::move(group));
    if (!sent.begun) return nb::none();
    return sent.pending ? nb::cast(std::move(*sent.pending)) : nb::object(nb::bool_(true));
}

// Autograd is notified now, as of a collective that is only started: the program may not use the array until the
// message has come.
enum class Autograd : bool { Notified, Unnoticed };
std::shared_ptr<Request> start_receive(Comm& c, nb::handle array, nb::handle from, nb::handle label,
                                       Wanted wanted = Wanted::Exactly, Autograd autograd = Autograd::Notified) {
    const int first = wanted == Wanted::Any ? kAny : 0;
    const int src = rank_or_tag(from, c.world_size(), first), tag = rank_or_tag(label, kTags, first);
    const PlainArray x(array, Access::Write);
    if (!x || src < kAny || tag < kAny) return nullptr;
    if (autograd == Autograd::Notified) x.written();
    ReleaseGilToWait released(x.bytes());
    return c.messages().recv({x.data, x.count, DType(x.dtype), src, tag, wanted}, released.options());
}

std::optional<RequestHandle> irecv_array(Comm& c, nb::object array, nb::handle from, nb::handle label,
                                         nb::object group) {
    auto request = start_receive(c, array, from, label);
    if (!request) return std::nullopt;
    return RequestHandle(std::move(request), array, array, std::move(group));
}

// ---- receives as in MPI: the message may be shorter than the array, and -1 means any source or any tag ----

// The message may also be too long, or an object: it is then in memory of its own.
std::optional<RequestHandle> irecv_array_up_to(Comm& c, nb::object array, nb::handle from, nb::handle label,
                                               nb::object group) {
    auto request = start_receive(c, array, from, label, Wanted::Any);
    if (!request) return std::nullopt;
    RequestHandle handle(std::move(request), std::move(array), nb::none(), std::move(group));
    handle.goes_on_when_dropped = true;
    return handle;
}

using SourceTagBytes = std::tuple<int, int, uint64_t>;

std::optional<SourceTagBytes> recv_array_up_to(Comm& c, nb::handle array, nb::handle from, nb::handle label) {
    const int src = rank_or_tag(from, c.world_size(), kAny), tag = rank_or_tag(label, kTags, kAny);
    const PlainArray x(array, Access::Write);
    if (!x || src < kAny || tag < kAny) return std::nullopt;
    x.written();
    ReleaseGilToWait released(x.bytes());
    const Arrival a =
        c.messages().recv_now({x.data, x.count, DType(x.dtype), src, tag, Wanted::UpTo}, released.options());
    return SourceTagBytes(a.source, a.tag, a.count * itemsize(a.dtype));
}

std::optional<RequestHandle> recv_probed(Comm& c, Address ptr, int64_t count, int dtype, int src, int tag,
                                         nb::object keep) {
    const Arrival found{src, tag, checked_count(count), checked_dtype(dtype), false};
    auto request = without_gil([&] { return c.messages().recv_probed(pointer(ptr), found); });
    if (!request) return std::nullopt;
    return RequestHandle(std::move(request), std::move(keep));
}

RequestHandle start_send_object(Comm& c, nb::list objects, int dest, int tag, bool synchronous) {
    const auto parts = parts_of(objects);
    return start_message(c, Send::of_object(parts, dest, tag, Send::Mode(synchronous)), std::move(objects));
}

template <Wanted wanted> RequestHandle start_recv_of_any_length(Comm& c, int src, int tag) {
    auto request = without_gil([&] { return c.messages().recv(Receive::of_any_length(wanted, src, tag)); });
    return {std::move(request), nb::none(), nb::none(), {}};
}

std::optional<std::pair<RequestHandle, SourceTagBytes>> recv_arrived(Comm& c, int src, int tag) {
    auto request = without_gil([&] { return c.messages().recv_arrived(src, tag); });
    if (!request) return std::nullopt;
    const Arrival a = request->arrival();
    return std::pair(RequestHandle(std::move(request), nb::none(), nb::none(), {}),
                     SourceTagBytes(a.source, a.tag, a.count * itemsize(a.dtype)));
}

nb::list failed_works(Comm& c) {
    nb::list failed;
    for (auto& request : c.failed_messages()) failed.append(RequestHandle(std::move(request), nb::none()));
    for (auto& work : works_of(c.failed_operations())) failed.append(std::move(work));
    return failed;
}

std::optional<std::tuple<int, int, uint64_t, int>> await_arrival(Comm& c, int src, int tag, double timeout) {
    check_timeout(timeout);
    const std::optional<Arrival> arrival = without_gil(
        [&] { return timeout > 0 ? c.messages().await_arrival(src, tag, timeout) : c.messages().probe(src, tag); });
    if (!arrival) return std::nullopt;
    return std::make_tuple(arrival->source, arrival->tag, arrival->count, int(arrival->dtype));
}

// As in MPI: False if there is no such message, else its source, tag and bytes; None, with nothing done, if src or tag
// is not an int in range.
nb::object probe_now(Comm& c, nb::handle from, nb::handle label) {
    const int src = rank_or_tag(from, c.world_size(), kAny), tag = rank_or_tag(label, kTags, kAny);
    if (src < kAny || tag < kAny) return nb::none();
    const auto found = without_gil([&] { return c.messages().probe(src, tag); });
    if (!found) return nb::bool_(false);
    return nb::make_tuple(found->source, found->tag, found->count * itemsize(found->dtype));
}

bool await_any(const RequestHandle& /*self*/, const nb::list& works, double timeout) {
    check_timeout(timeout);
    std::vector<std::shared_ptr<Request>> requests;
    for (nb::handle each : works) {
        if (!nb::isinstance<RequestHandle>(each)) return false;
        requests.push_back(nb::cast<RequestHandle&>(each).shared());
    }
    without_gil([&] { Request::await_any(requests, timeout); });
    return true;
}

// What a complete receive knows of its message, and None before.
template <auto field> std::optional<int> of_message(const RequestHandle& r) {
    if (!r->has_result() || r->failed()) return std::nullopt;
    return (r.operator->()->*field)();
}

SourceTagBytes message_of(const RequestHandle& r) {
    if (!r->has_result() || r->failed() || r->sends()) return {kAny, kAny, 0};
    return {r->source(), r->tag(), r->count() * itemsize(r->dtype())};
}

}  // namespace

StartedMessage send_tensor(Comm& c, nb::object x, nb::handle dst, nb::handle tag, nb::object group) {
    StartedMessage sent = start_send<Send::Mode::Standard>(c, std::move(x), dst, tag, std::move(group));
    if (sent.pending) sent.pending->goes_on_when_dropped = true;
    return sent;
}

StartedMessage receive_tensor(Comm& c, nb::object x, nb::handle src, nb::handle tag, nb::object group) {
    auto request = start_receive(c, x, src, tag, Wanted::Exactly, Autograd::Unnoticed);
    if (!request) return {};
    StartedMessage received{true, RequestHandle(std::move(request), std::move(x), nb::borrow(src), std::move(group))};
    received.pending->goes_on_when_dropped = true;
    return received;
}

std::vector<Stretch> parts_of(const nb::list& objects) {
    std::vector<Stretch> parts;
    parts.reserve(objects.size());
    for (nb::handle object : objects) {
        Py_buffer view;
        if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_SIMPLE)) nb::raise_python_error();
        parts.push_back({static_cast<const uint8_t*>(view.buf), uint64_t(view.len)});
        PyBuffer_Release(&view);
    }
    return parts;
}

void send_object_now(Comm& c, const nb::list& objects, int dest, int tag) {
    const auto parts = parts_of(objects);
    const Send message = Send::of_object(parts, dest, tag);
    ReleaseGilToWait released(message.bytes());
    c.messages().send_now(message, released.options());
}

void bind_messages(nb::module_& m, nb::class_<Comm>& comm) {
    const nb::lock_self locked;
    nb::class_<RequestHandle>(m, "Request", "A send or receive.", nb::is_weak_referenceable())
        .def("wait", &RequestHandle::wait, nb::arg("timeout").none() = nb::none(), locked)
        .def("_await_end", &RequestHandle::await_end, nb::arg("timeout"), locked)
        .def("_await_any", &await_any, nb::arg("works"), nb::arg("timeout"))
        .def("done", &RequestHandle::done, locked)
        .def("cancel", &RequestHandle::cancel, locked)
        .def(
            "return_message", [](RequestHandle& r) { without_gil([&] { r->return_message(); }); }, locked)
        .def(
            "memory", [](RequestHandle& r) { return received_bytes(*r.operator->()); }, locked)
        .def("__repr__", &RequestHandle::repr)
        .def_rw("goes_on_when_dropped", &RequestHandle::goes_on_when_dropped, locked)
        .def_prop_ro("waited", [](const RequestHandle& r) { return r->raised(); })
        .def_prop_ro("source", &of_message<&Request::source>)
        .def_prop_ro("tag", &of_message<&Request::tag>)
        .def_prop_ro("message", &message_of)
        .def_prop_ro("cancelled", [](const RequestHandle& r) { return r->cancelled(); })
        .def_prop_ro("given", &RequestHandle::given)
        .def_prop_ro("is_object", [](const RequestHandle& r) { return r->object(); })
        .def_prop_ro("dtype", [](const RequestHandle& r) { return int(r->dtype()); });
    const auto keep = nb::arg("keep").none() = nb::none();
    comm.def("send", &start_at_address<Send>, nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("dest"),
             nb::arg("tag"), keep)
        .def("recv", &start_at_address<Receive>, nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("src"),
             nb::arg("tag"), keep)
        .def("isend_array", &isend_array<Send::Mode::Standard>, nb::arg("x").none(), nb::arg("dst").none(),
             nb::arg("tag").none(), nb::arg("group"))
        .def("issend_array", &isend_array<Send::Mode::Synchronous>, nb::arg("x").none(), nb::arg("dst").none(),
             nb::arg("tag").none(), nb::arg("group"))
        .def("irecv_array", &irecv_array, nb::arg("x").none(), nb::arg("src").none(), nb::arg("tag").none(),
             nb::arg("group"))
        .def("irecv_array_up_to", &irecv_array_up_to, nb::arg("x").none(), nb::arg("src").none(), nb::arg("tag").none(),
             nb::arg("group"))
        .def("recv_array_up_to", &recv_array_up_to, nb::arg("x").none(), nb::arg("src").none(), nb::arg("tag").none())
        .def("failed_works", &failed_works)
        .def("recv_probed", &recv_probed, nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("src"),
             nb::arg("tag"), keep)
        .def("send_object", &start_send_object, nb::arg("parts"), nb::arg("dest"), nb::arg("tag"),
             nb::arg("synchronous") = false)
        .def("recv_object", &start_recv_of_any_length<Wanted::Object>, nb::arg("src"), nb::arg("tag"))
        .def("recv_message", &start_recv_of_any_length<Wanted::Any>, nb::arg("src"), nb::arg("tag"))
        .def("recv_arrived", &recv_arrived, nb::arg("src"), nb::arg("tag"))
        .def("probe_now", &probe_now, nb::arg("src").none(), nb::arg("tag").none())
        .def("send_object_now", &send_object_now, nb::arg("parts"), nb::arg("dest"), nb::arg("tag"))
        .def("probe", &await_arrival, nb::arg("src"), nb::arg("tag"), nb::arg("timeout") = 0.0);
}
