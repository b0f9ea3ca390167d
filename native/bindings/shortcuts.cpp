// The common case of the array level in one call from Python: plain NumPy arrays of one dtype, whose
// shapes fit. Each returns whether it did the operation; False, and nothing done, sends the caller the
// general way, which also finds the words for whatever is wrong. C is the engine's Comm, or Foreign.
#include "shortcuts.hpp"

#include <type_traits>

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

// A rank or a tag below `end`; -1 for anything else than such an int.
int number(nb::handle given, long end) {
    if (!PyLong_CheckExact(given.ptr())) return -1;
    int overflow = 0;
    const long value = PyLong_AsLongAndOverflow(given.ptr(), &overflow);
    return !overflow && value >= 0 && value < end ? int(value) : -1;
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

// A communicator in Python, over another library, whose collectives are complete when they return.
class Foreign {
public:
    // dtypes, ops: the contract's, by their numbers.
    Foreign(nb::handle comm, std::vector<nb::object> dtypes, std::vector<nb::object> ops)
        : rank_(nb::cast<int>(comm.attr("rank"))), world_size_(nb::cast<int>(comm.attr("world_size"))), dtypes_(std::move(dtypes)), ops_(std::move(ops)),
          all_reduce_(comm.attr("all_reduce")), reduce_(comm.attr("reduce")), broadcast_(comm.attr("broadcast")), all_gather_(comm.attr("all_gather")),
          gather_(comm.attr("gather")), scatter_(comm.attr("scatter")), reduce_scatter_(comm.attr("reduce_scatter")), all_to_all_(comm.attr("all_to_all")),
          send_(comm.attr("send")), recv_(comm.attr("recv")) {}

    int rank() const { return rank_; }
    int world_size() const { return world_size_; }
    void all_reduce(void* x, uint64_t count, DType d, ReduceOp op) { call(all_reduce_, at(x), count, of(d), of(op)); }
    void reduce(void* x, uint64_t count, DType d, ReduceOp op, int root) { call(reduce_, at(x), count, of(d), of(op), root); }
    void broadcast(void* x, uint64_t count, DType d, int root) { call(broadcast_, at(x), count, of(d), root); }
    void all_gather(const void* x, void* out, uint64_t count, DType d) { call(all_gather_, at(x), at(out), count, of(d)); }
    void gather(const void* x, void* out, uint64_t count, DType d, int root) { call(gather_, at(x), at(out), count, of(d), root); }
    void scatter(const void* x, void* out, uint64_t count, DType d, int root) { call(scatter_, at(x), at(out), count, of(d), root); }
    void reduce_scatter(const void* x, void* out, uint64_t count, DType d, ReduceOp op) { call(reduce_scatter_, at(x), at(out), count, of(d), of(op)); }
    void all_to_all(const void* x, void* out, uint64_t count, DType d) { call(all_to_all_, at(x), at(out), count, of(d)); }
    void send_now(const void* x, uint64_t count, DType d, int to, int tag) { call(nb::object(call(send_, at(x), count, of(d), to, tag).attr("wait"))); }
    void recv_now(void* x, uint64_t count, DType d, int from, int tag) { call(nb::object(call(recv_, at(x), count, of(d), from, tag).attr("wait"))); }
    void hold() {}  // nor does `call` of such a communicator
    void release() {}

private:
    template <class... A> static nb::object call(nb::handle method, const A&... args) {
        return ask_for_gil([&] { return method(args...); });
    }
    static Address at(const void* p) { return Address(p); }
    const nb::object& of(DType d) const { return dtypes_[size_t(d)]; }
    const nb::object& of(ReduceOp op) const { return ops_[size_t(op)]; }

    int rank_, world_size_;
    std::vector<nb::object> dtypes_, ops_;
    nb::object all_reduce_, reduce_, broadcast_, all_gather_, gather_, scatter_, reduce_scatter_, all_to_all_, send_, recv_;
};

// What is done with the GIL in a call of C: Python's own methods need it.
struct KeepGil {
    explicit KeepGil(size_t = 0) {}
};
template <class C> using ReleaseToWait = std::conditional_t<std::is_same_v<C, Comm>, ReleaseGilToWait, KeepGil>;

// `out` for a result of (world, *x.shape), or for x's axis 0 cut in equal parts.
template <class C> bool fits_gathered(const C& c, const Plain& x, const Plain& out) {
    return x && out && out.dtype == x.dtype && out.dims() > 0 && out.dim(0) == c.world_size() && x.same_shape(out, 0, 1) && x.apart_from(out);
}
template <class C> bool fits_split(const C& c, const Plain& x, const Plain& out, bool part) {
    if (!x || !out || out.dtype != x.dtype || x.dims() == 0 || x.dim(0) % c.world_size() || !x.apart_from(out)) return false;
    return out.dims() == x.dims() && out.dim(0) == (part ? x.dim(0) / c.world_size() : x.dim(0)) && x.same_shape(out, 1, 1);
}

template <class C> bool all_reduce(C& c, nb::handle array, nb::handle op) {
    const Plain x(array, true);
    const OpName* named = op_named(op);
    if (!x || !named || !reduce_kernel(DType(x.dtype), named->op)) return false;
    const ReleaseToWait<C> released(x.bytes());
    c.all_reduce(x.data, x.count, DType(x.dtype), named->op);
    return true;
}

template <class C> bool reduce(C& c, nb::handle array, nb::handle to, nb::handle op) {
    const int dst = number(to, c.world_size());
    if (dst < 0) return false;
    const Plain x(array, dst == c.rank());
    const OpName* named = op_named(op);
    if (!x || !named || !reduce_kernel(DType(x.dtype), named->op)) return false;
    const ReleaseToWait<C> released(x.bytes());
    c.reduce(x.data, x.count, DType(x.dtype), named->op, dst);
    return true;
}

template <class C> bool broadcast(C& c, nb::handle array, nb::handle from) {
    const int src = number(from, c.world_size());
    const Plain x(array, true);
    if (!x || src < 0) return false;
    const ReleaseToWait<C> released(x.bytes());
    c.broadcast(x.data, x.count, DType(x.dtype), src);
    return true;
}

template <class C> bool all_gather(C& c, nb::handle array, nb::handle out) {
    const Plain x(array, false), result(out, true);
    if (!fits_gathered(c, x, result)) return false;
    const ReleaseToWait<C> released(result.bytes());
    c.all_gather(x.data, result.data, x.count, DType(x.dtype));
    return true;
}

template <class C> bool gather(C& c, nb::handle array, nb::handle at, nb::handle out) {
    const int dst = number(at, c.world_size());
    const Plain x(array, false);
    if (!x || dst < 0) return false;
    uint8_t* to = nullptr;
    if (dst == c.rank()) {
        const Plain result(out, true);
        if (!fits_gathered(c, x, result)) return false;
        to = result.data;
    }
    const ReleaseToWait<C> released(x.bytes() * size_t(c.world_size()));
    c.gather(x.data, to, x.count, DType(x.dtype), dst);
    return true;
}

template <class C> bool reduce_scatter(C& c, nb::handle array, nb::handle op, nb::handle out) {
    const Plain x(array, false), result(out, true);
    const OpName* named = op_named(op);
    if (!named || !fits_split(c, x, result, true) || !reduce_kernel(DType(x.dtype), named->op)) return false;
    const ReleaseToWait<C> released(x.bytes());
    c.reduce_scatter(x.data, result.data, result.count, DType(x.dtype), named->op);
    return true;
}

template <class C> bool all_to_all(C& c, nb::handle array, nb::handle out) {
    const Plain x(array, false), result(out, true);
    if (!fits_split(c, x, result, false)) return false;
    const ReleaseToWait<C> released(x.bytes());
    c.all_to_all(x.data, result.data, x.count / uint64_t(c.world_size()), DType(x.dtype));
    return true;
}

// What scatter's src tells the others before the parts: dtype, ndim, shape. As rankwise/api/collectives.py
// writes and reads it, since some ranks may come through there.
constexpr uint64_t kHeader = 12;
constexpr int kHeaderDims = kHeader - 2;

template <class C> bool scatter_from_here(C& c, const Plain& x, const Plain& part, int src) {
    if (x.dims() > kHeaderDims) return false;
    int64_t header[kHeader] = {x.dtype, x.dims()};
    for (int i = 0; i < x.dims(); ++i) header[2 + i] = x.dim(i);
    const ReleaseToWait<C> released(x.bytes());
    c.broadcast(header, kHeader, DType::I64, src);
    c.scatter(x.data, part.data, part.count, DType(x.dtype), src);
    return true;
}

// False: the header was received, and the part is not what `part` can hold.
template <class C> bool scatter_to_here(C& c, const Plain& part, int src, int64_t* header) {
    const ReleaseToWait<C> released(part.bytes());
    c.broadcast(header, kHeader, DType::I64, src);
    const int n = c.world_size();
    bool fits = header[1] <= kHeaderDims && header[0] == part.dtype && header[1] == part.dims() && header[2] % n == 0 && header[2] / n == part.dim(0);
    for (int i = 1; fits && i < part.dims(); ++i) fits = header[2 + i] == part.dim(i);
    if (fits) c.scatter(nullptr, part.data, part.count, DType(part.dtype), src);
    return fits;
}

// The communicator for the calls of this thread alone.
template <class C> class Turn {
public:
    explicit Turn(C& c) : c_(c) {
        const ReleaseToWait<C> released{};
        c.hold();
    }
    ~Turn() { c_.release(); }
    Turn(const Turn&) = delete;

private:
    C& c_;
};

// After the header the others count on this rank: where `out` does not fit, `rest(header)` goes on.
template <class C> bool scatter(C& c, nb::handle array, nb::handle from, nb::handle out, nb::handle rest) {
    const int src = number(from, c.world_size());
    const Plain part(out, true);
    if (!part || part.dims() == 0 || src < 0) return false;
    if (src == c.rank()) {
        const Plain x(array, false);
        if (!fits_split(c, x, part, true)) return false;
        const Turn<C> turn(c);
        return scatter_from_here(c, x, part, src);
    }
    const Turn<C> turn(c);
    int64_t header[kHeader] = {};
    if (scatter_to_here(c, part, src, header)) return true;
    nb::list told;
    for (int64_t word : header) told.append(word);
    rest(told);
    return true;
}

constexpr long kTags = 1l << 31;

template <class C> bool send_array(C& c, nb::handle array, nb::handle to, nb::handle label) {
    const int dst = number(to, c.world_size()), tag = number(label, kTags);
    const Plain x(array, false);
    if (!x || dst < 0 || tag < 0) return false;
    const ReleaseToWait<C> released(x.bytes());
    c.send_now(x.data, x.count, DType(x.dtype), dst, tag);
    return true;
}

template <class C> bool recv_array(C& c, nb::handle array, nb::handle from, nb::handle label) {
    const int src = number(from, c.world_size()), tag = number(label, kTags);
    const Plain x(array, true);
    if (!x || src < 0 || tag < 0) return false;
    const ReleaseToWait<C> released(x.bytes());
    c.recv_now(x.data, x.count, DType(x.dtype), src, tag);
    return true;
}

template <class C> void define(nb::class_<C>& comm) {
    const nb::arg x("x"), op("op"), out("out");
    comm.def("all_reduce_array", &all_reduce<C>, x.none(), op.none())
        .def("reduce_array", &reduce<C>, x.none(), nb::arg("dst").none(), op.none())
        .def("broadcast_array", &broadcast<C>, x.none(), nb::arg("src").none())
        .def("all_gather_array", &all_gather<C>, x.none(), out.none())
        .def("gather_array", &gather<C>, x.none(), nb::arg("dst").none(), out.none())
        .def("reduce_scatter_array", &reduce_scatter<C>, x.none(), op.none(), out.none())
        .def("scatter_array", &scatter<C>, x.none(), nb::arg("src").none(), out.none(), nb::arg("rest"))
        .def("send_array", &send_array<C>, x.none(), nb::arg("dst").none(), nb::arg("tag").none())
        .def("recv_array", &recv_array<C>, x.none(), nb::arg("src").none(), nb::arg("tag").none())
        .def("all_to_all_array", &all_to_all<C>, x.none(), out.none());
}

}  // namespace

void bind_shortcuts(nb::module_& m, nb::class_<Comm>& comm) {
    define(comm);
    nb::class_<Foreign> foreign(m, "PlainArrays", "The shortcuts of a communicator in Python whose collectives are complete when they return.");
    foreign.def(nb::init<nb::handle, std::vector<nb::object>, std::vector<nb::object>>(), nb::arg("comm"), nb::arg("dtypes"), nb::arg("ops"))
        .def_prop_ro("barrier", [](const Foreign&) { return nb::none(); });
    define(foreign);
}
