// The collectives of torch.distributed in their common case: blocking, and on plain tensors of one dtype. As in
// shortcuts.cpp, each function returns whether it did the operation. torch compares no shapes, and its collectives do
// not notify autograd.
#include "kernels/kernels.hpp"
#include "plain_array.hpp"
#include "shortcuts.hpp"

using namespace rankwise;

namespace {

bool all_reduce_tensor(Comm& c, nb::handle tensor, int op) {
    const PlainArray x(tensor, true);
    if (!x || !reduce_kernel(DType(x.dtype), checked_op(op))) return false;
    c.all_reduce(x.data, x.count, DType(x.dtype), ReduceOp(op), ArrayCall(x.bytes()));
    return true;
}

bool broadcast_tensor(Comm& c, nb::handle tensor, int root) {
    const PlainArray x(tensor, true);
    if (!x || root < 0 || root >= c.world_size()) return false;
    c.broadcast(x.data, x.count, DType(x.dtype), root, ArrayCall(x.bytes()));
    return true;
}

// Whether `whole` has a part like `part` for each rank, which is apart from it, or is this rank's part itself.
bool is_part(const Comm& c, const PlainArray& part, const PlainArray& whole) {
    return part && whole && part.dtype == whole.dtype && whole.count == part.count * uint64_t(c.world_size()) &&
           (part.apart_from(whole) || part.data == whole.data + part.bytes() * size_t(c.rank()));
}

bool all_gather_tensor(Comm& c, nb::handle output, nb::handle input) {
    const PlainArray x(input, false), result(output, true);
    if (!is_part(c, x, result)) return false;
    c.all_gather(x.data, result.data, x.count, DType(x.dtype), ArrayCall(result.bytes()));
    return true;
}

bool reduce_scatter_tensor(Comm& c, nb::handle output, nb::handle input, int op) {
    const PlainArray x(input, false), result(output, true);
    if (!is_part(c, result, x) || !reduce_kernel(DType(x.dtype), checked_op(op))) return false;
    c.reduce_scatter(x.data, result.data, result.count, DType(x.dtype), ReduceOp(op), ArrayCall(x.bytes()));
    return true;
}

// Parts of equal size, in rows of both tensors.
bool all_to_all_tensor(Comm& c, nb::handle output, nb::handle input) {
    const PlainArray x(input, false), result(output, true);
    if (!x || !result || x.dtype != result.dtype || x.count != result.count || !x.apart_from(result)) return false;
    for (const PlainArray* each : {&x, &result})
        if (each->dims() == 0 || each->dim(0) % c.world_size()) return false;
    c.all_to_all(x.data, result.data, x.count / uint64_t(c.world_size()), DType(x.dtype), ArrayCall(x.bytes()));
    return true;
}

}  // namespace

void bind_torch_calls(nb::class_<Comm>& comm) {
    const auto tensor = nb::arg("tensor"), output = nb::arg("output"), input = nb::arg("input"), op = nb::arg("op");
    comm.def("all_reduce_tensor", &all_reduce_tensor, tensor, op)
        .def("broadcast_tensor", &broadcast_tensor, tensor, nb::arg("root"))
        .def("all_gather_tensor", &all_gather_tensor, output, input)
        .def("reduce_scatter_tensor", &reduce_scatter_tensor, output, input, op)
        .def("all_to_all_tensor", &all_to_all_tensor, output, input);
}
