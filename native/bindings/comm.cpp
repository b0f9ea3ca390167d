#include "bindings.hpp"

using namespace rankwise;

namespace {

// Arguments are converted with the GIL held; the operation runs without it.
using Release = nb::call_guard<nb::gil_scoped_release>;

std::shared_ptr<Request> start_send(Comm& c, Address ptr, uint64_t count, int dtype, int dest, int tag) {
    const DType type = checked_dtype(dtype);
    nb::gil_scoped_release released;
    return c.send(pointer(ptr), count, type, dest, tag);
}

std::shared_ptr<Request> start_recv(Comm& c, Address ptr, uint64_t count, int dtype, int src, int tag) {
    const DType type = checked_dtype(dtype);
    nb::gil_scoped_release released;
    return c.recv(pointer(ptr), count, type, src, tag);
}

std::shared_ptr<Comm> split_comm(Comm& c, int64_t color, int64_t key) {
    nb::gil_scoped_release released;
    return c.split(color, key);
}

std::optional<std::string> close_comm(Comm& c, double timeout) {
    nb::gil_scoped_release released;
    return c.close(timeout);
}

void wait_for(Request& r, std::optional<double> timeout) {
    if (timeout && !(*timeout >= 0)) throw BadArgument("timeout: " + std::to_string(*timeout) + " given, expected seconds or None");
    nb::gil_scoped_release released;
    r.wait(timeout);
}

}  // namespace

void bind_comm(nb::module_& m) {
    nb::class_<Request>(m, "Request", "A send or receive under way.")
        .def("wait", &wait_for, nb::arg("timeout").none() = nb::none())
        .def("done", &Request::done, Release());

    nb::class_<Comm>(m, "Comm", "One rank's end of one group in a segment.")
        .def_prop_ro("rank", &Comm::rank)
        .def_prop_ro("world_size", &Comm::world_size)
        .def_prop_rw("timeout", &Comm::timeout, &Comm::set_timeout)
        .def("barrier", &Comm::barrier, Release())
        .def("all_reduce", [](Comm& c, Address ptr, uint64_t count, int dtype, int op) {
            c.all_reduce(pointer(ptr), count, checked_dtype(dtype), checked_op(op));
        }, nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("op"), Release())
        .def("broadcast", [](Comm& c, Address ptr, uint64_t count, int dtype, int root) {
            c.broadcast(pointer(ptr), count, checked_dtype(dtype), root);
        }, nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("root"), Release())
        .def("reduce", [](Comm& c, Address ptr, uint64_t count, int dtype, int op, int root) {
            c.reduce(pointer(ptr), count, checked_dtype(dtype), checked_op(op), root);
        }, nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("op"), nb::arg("root"), Release())
        .def("all_gather", [](Comm& c, Address send, Address recv, uint64_t count, int dtype) {
            c.all_gather(pointer(send), pointer(recv), count, checked_dtype(dtype));
        }, nb::arg("send_ptr"), nb::arg("recv_ptr"), nb::arg("count"), nb::arg("dtype"), Release())
        .def("gather", [](Comm& c, Address send, Address recv, uint64_t count, int dtype, int root) {
            c.gather(pointer(send), pointer(recv), count, checked_dtype(dtype), root);
        }, nb::arg("send_ptr"), nb::arg("recv_ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("root"), Release())
        .def("scatter", [](Comm& c, Address send, Address recv, uint64_t count, int dtype, int root) {
            c.scatter(pointer(send), pointer(recv), count, checked_dtype(dtype), root);
        }, nb::arg("send_ptr"), nb::arg("recv_ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("root"), Release())
        .def("reduce_scatter", [](Comm& c, Address send, Address recv, uint64_t count, int dtype, int op) {
            c.reduce_scatter(pointer(send), pointer(recv), count, checked_dtype(dtype), checked_op(op));
        }, nb::arg("send_ptr"), nb::arg("recv_ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("op"), Release())
        .def("all_to_all", [](Comm& c, Address send, Address recv, uint64_t count, int dtype) {
            c.all_to_all(pointer(send), pointer(recv), count, checked_dtype(dtype));
        }, nb::arg("send_ptr"), nb::arg("recv_ptr"), nb::arg("count"), nb::arg("dtype"), Release())
        .def("all_gather_v", [](Comm& c, Address send, Address recv, const Counts& counts, int dtype) {
            c.all_gather_v(pointer(send), pointer(recv), counts, checked_dtype(dtype));
        }, nb::arg("send_ptr"), nb::arg("recv_ptr"), nb::arg("counts"), nb::arg("dtype"), Release())
        .def("gather_v", [](Comm& c, Address send, Address recv, const Counts& counts, int dtype, int root) {
            c.gather_v(pointer(send), pointer(recv), counts, checked_dtype(dtype), root);
        }, nb::arg("send_ptr"), nb::arg("recv_ptr"), nb::arg("counts"), nb::arg("dtype"), nb::arg("root"), Release())
        .def("scatter_v", [](Comm& c, Address send, Address recv, const Counts& counts, int dtype, int root) {
            c.scatter_v(pointer(send), pointer(recv), counts, checked_dtype(dtype), root);
        }, nb::arg("send_ptr"), nb::arg("recv_ptr"), nb::arg("counts"), nb::arg("dtype"), nb::arg("root"), Release())
        .def("reduce_scatter_v", [](Comm& c, Address send, Address recv, const Counts& counts, int dtype, int op) {
            c.reduce_scatter_v(pointer(send), pointer(recv), counts, checked_dtype(dtype), checked_op(op));
        }, nb::arg("send_ptr"), nb::arg("recv_ptr"), nb::arg("counts"), nb::arg("dtype"), nb::arg("op"), Release())
        .def("all_to_all_v", [](Comm& c, Address send, Address recv, const Counts& out, const Counts& in, int dtype) {
            c.all_to_all_v(pointer(send), pointer(recv), out, in, checked_dtype(dtype));
        }, nb::arg("send_ptr"), nb::arg("recv_ptr"), nb::arg("send_counts"), nb::arg("recv_counts"), nb::arg("dtype"), Release())
        .def("send", &start_send, nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("dest"), nb::arg("tag"))
        .def("recv", &start_recv, nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("src"), nb::arg("tag"))
        .def("sync", &Comm::sync, Release())
        .def("split", &split_comm, nb::arg("color"), nb::arg("key"))
        .def("abort", &Comm::abort, nb::arg("why"), Release())
        .def("close", &close_comm, nb::arg("timeout"));
}
