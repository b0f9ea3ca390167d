// The common case of the array level in one call from Python: plain NumPy arrays of one dtype, whose
// shapes fit. Each returns whether it did the operation; False, and nothing done, sends the caller the
// general way, which also finds the words for whatever is wrong.
#include "shortcuts.hpp"

#include "kernels/kernels.hpp"
#include "numpy_arrays.hpp"

using namespace rankwise;

namespace {

// The common names of operations, mostly known by the identity of the interned string.
struct OpName {
    PyObject* text;
    ReduceOp op;
};

const OpName* op_named(nb::handle name_) {
    static const std::vector<OpName> names = [] {
        std::vector<OpName> result;
        for (auto op : {ReduceOp::SUM, ReduceOp::MEAN, ReduceOp::MAX, ReduceOp::MIN, ReduceOp::PROD})
            result.push_back({PyUnicode_InternFromString(name(op)), op});
        return result;
    }();
    if (!PyUnicode_CheckExact(name_.ptr())) return nullptr;
    for (const OpName& known : names)
        if (known.text == name_.ptr() || PyUnicode_Compare(known.text, name_.ptr()) == 0) return &known;
    return nullptr;
}

// A plain array: contiguous, aligned, of a dtype that ranks exchange.
struct Plain {
    PyArrayObject* array = nullptr;
    uint8_t* data = nullptr;
    uint64_t count = 1;
    int dtype = -1;

    Plain(nb::handle object, bool writable) {
        PyArrayObject* a = as_ndarray(object);
        const int wanted = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (writable ? NPY_ARRAY_WRITEABLE : 0);
        if (!a || (PyArray_FLAGS(a) & wanted) != wanted) return;
        dtype = dtype_of(PyArray_DESCR(a));
        if (dtype < 0) return;
        array = a;
        data = static_cast<uint8_t*>(PyArray_DATA(a));
        for (int i = 0; i < dims(); ++i) count *= uint64_t(dim(i));
    }
    explicit operator bool() const { return array; }
    int dims() const { return PyArray_NDIM(array); }
    npy_intp dim(int i) const { return PyArray_DIMS(array)[i]; }
    size_t bytes() const { return count * itemsize(DType(dtype)); }
    bool apart_from(const Plain& other) const { return data + bytes() <= other.data || other.data + other.bytes() <= data; }
    // Whether the last axes, all but the first `skip`, and those of `other`, all but its first, are the same.
    bool same_shape(const Plain& other, int skip, int other_skip) const {
        if (dims() - skip != other.dims() - other_skip) return false;
        for (int i = skip; i < dims(); ++i)
            if (dim(i) != other.dim(i - skip + other_skip)) return false;
        return true;
    }
};

// `out` for a result of (world, *x.shape), or for x's axis 0 cut in equal parts.
bool fits_gathered(const Comm& c, const Plain& x, const Plain& out) {
    return x && out && out.dtype == x.dtype && out.dims() > 0 && out.dim(0) == c.world_size() && x.same_shape(out, 0, 1) && x.apart_from(out);
}
bool fits_split(const Comm& c, const Plain& x, const Plain& out, bool part) {
    if (!x || !out || out.dtype != x.dtype || x.dims() == 0 || x.dim(0) % c.world_size() || !x.apart_from(out)) return false;
    return out.dims() == x.dims() && out.dim(0) == (part ? x.dim(0) / c.world_size() : x.dim(0)) && x.same_shape(out, 1, 1);
}

bool all_reduce(Comm& c, nb::handle array, nb::handle op) {
    const Plain x(array, true);
    const OpName* named = op_named(op);
    if (!x || !named || !reduce_kernel(DType(x.dtype), named->op)) return false;
    const ReleaseGilToWait released(x.bytes());
    c.all_reduce(x.data, x.count, DType(x.dtype), named->op);
    return true;
}

bool reduce(Comm& c, nb::handle array, int dst, nb::handle op) {
    if (dst < 0 || dst >= c.world_size()) return false;
    const Plain x(array, dst == c.rank());
    const OpName* named = op_named(op);
    if (!x || !named || !reduce_kernel(DType(x.dtype), named->op)) return false;
    const ReleaseGilToWait released(x.bytes());
    c.reduce(x.data, x.count, DType(x.dtype), named->op, dst);
    return true;
}

bool broadcast(Comm& c, nb::handle array, int src) {
    const Plain x(array, true);
    if (!x || src < 0 || src >= c.world_size()) return false;
    const ReleaseGilToWait released(x.bytes());
    c.broadcast(x.data, x.count, DType(x.dtype), src);
    return true;
}

bool all_gather(Comm& c, nb::handle array, nb::handle out) {
    const Plain x(array, false), result(out, true);
    if (!fits_gathered(c, x, result)) return false;
    const ReleaseGilToWait released(result.bytes());
    c.all_gather(x.data, result.data, x.count, DType(x.dtype));
    return true;
}

bool gather(Comm& c, nb::handle array, int dst, nb::handle out) {
    const Plain x(array, false);
    if (!x || dst < 0 || dst >= c.world_size()) return false;
    uint8_t* to = nullptr;
    if (dst == c.rank()) {
        const Plain result(out, true);
        if (!fits_gathered(c, x, result)) return false;
        to = result.data;
    }
    const ReleaseGilToWait released(x.bytes() * size_t(c.world_size()));
    c.gather(x.data, to, x.count, DType(x.dtype), dst);
    return true;
}

bool reduce_scatter(Comm& c, nb::handle array, nb::handle op, nb::handle out) {
    const Plain x(array, false), result(out, true);
    const OpName* named = op_named(op);
    if (!named || !fits_split(c, x, result, true) || !reduce_kernel(DType(x.dtype), named->op)) return false;
    const ReleaseGilToWait released(x.bytes());
    c.reduce_scatter(x.data, result.data, result.count, DType(x.dtype), named->op);
    return true;
}

bool all_to_all(Comm& c, nb::handle array, nb::handle out) {
    const Plain x(array, false), result(out, true);
    if (!fits_split(c, x, result, false)) return false;
    const ReleaseGilToWait released(x.bytes());
    c.all_to_all(x.data, result.data, x.count / uint64_t(c.world_size()), DType(x.dtype));
    return true;
}

// What scatter's src tells the others before the parts: dtype, ndim, shape. As rankwise/api/collectives.py
// writes and reads it, since some ranks may come through there.
constexpr uint64_t kHeader = 12;
constexpr int kHeaderDims = kHeader - 2;

bool scatter_from_here(Comm& c, const Plain& x, const Plain& part, int src) {
    if (x.dims() > kHeaderDims) return false;
    int64_t header[kHeader] = {x.dtype, x.dims()};
    for (int i = 0; i < x.dims(); ++i) header[2 + i] = x.dim(i);
    const ReleaseGilToWait released(x.bytes());
    c.broadcast(header, kHeader, DType::I64, src);
    c.scatter(x.data, part.data, part.count, DType(x.dtype), src);
    return true;
}

// False: the header was received, and the part is not what `part` can hold.
bool scatter_to_here(Comm& c, const Plain& part, int src, int64_t* header) {
    const ReleaseGilToWait released(part.bytes());
    c.broadcast(header, kHeader, DType::I64, src);
    const int n = c.world_size();
    bool fits = header[1] <= kHeaderDims && header[0] == part.dtype && header[1] == part.dims() && header[2] % n == 0 && header[2] / n == part.dim(0);
    for (int i = 1; fits && i < part.dims(); ++i) fits = header[2 + i] == part.dim(i);
    if (fits) c.scatter(nullptr, part.data, part.count, DType(part.dtype), src);
    return fits;
}

// The communicator for the calls of this thread alone.
class Turn {
public:
    explicit Turn(Comm& c) : c_(c) {
        const ReleaseGilToWait released;
        c.hold();
    }
    ~Turn() { c_.release(); }
    Turn(const Turn&) = delete;

private:
    Comm& c_;
};

// After the header the others count on this rank: where `out` does not fit, `rest(header)` goes on.
bool scatter(Comm& c, nb::handle array, int src, nb::handle out, nb::handle rest) {
    const Plain part(out, true);
    if (!part || part.dims() == 0 || src < 0 || src >= c.world_size()) return false;
    if (src == c.rank()) {
        const Plain x(array, false);
        if (!fits_split(c, x, part, true)) return false;
        const Turn turn(c);
        return scatter_from_here(c, x, part, src);
    }
    const Turn turn(c);
    int64_t header[kHeader] = {};
    if (scatter_to_here(c, part, src, header)) return true;
    nb::list told;
    for (int64_t word : header) told.append(word);
    rest(told);
    return true;
}

bool send_array(Comm& c, nb::handle array, int dst, int tag) {
    const Plain x(array, false);
    if (!x || dst < 0 || dst >= c.world_size() || tag < 0) return false;
    const ReleaseGilToWait released(x.count * itemsize(DType(x.dtype)));
    c.send_now(x.data, x.count, DType(x.dtype), dst, tag);
    return true;
}

bool recv_array(Comm& c, nb::handle array, int src, int tag) {
    const Plain x(array, true);
    if (!x || src < 0 || src >= c.world_size() || tag < 0) return false;
    const ReleaseGilToWait released(x.count * itemsize(DType(x.dtype)));
    c.recv_now(x.data, x.count, DType(x.dtype), src, tag);
    return true;
}

}  // namespace

void bind_shortcuts(nb::class_<Comm>& comm) {
    const nb::arg x("x"), op("op"), out("out");
    comm.def("all_reduce_array", &all_reduce, x.none(), op.none())
        .def("reduce_array", &reduce, x.none(), nb::arg("dst"), op.none())
        .def("broadcast_array", &broadcast, x.none(), nb::arg("src"))
        .def("all_gather_array", &all_gather, x.none(), out.none())
        .def("gather_array", &gather, x.none(), nb::arg("dst"), out.none())
        .def("reduce_scatter_array", &reduce_scatter, x.none(), op.none(), out.none())
        .def("scatter_array", &scatter, x.none(), nb::arg("src"), out.none(), nb::arg("rest"))
        .def("send_array", &send_array, x.none(), nb::arg("dst"), nb::arg("tag"))
        .def("recv_array", &recv_array, x.none(), nb::arg("src"), nb::arg("tag"))
        .def("all_to_all_array", &all_to_all, x.none(), out.none());
}
