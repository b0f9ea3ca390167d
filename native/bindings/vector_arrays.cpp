// Vector collectives whose counts the ranks know, as in MPI, in one call from Python. The arrays are plain, and may be
// longer than their blocks. As in shortcuts.cpp, each function returns whether it did the operation.
#include <algorithm>
#include <optional>

#include "numpy_arrays.hpp"
#include "python_communicator.hpp"
#include "shortcuts.hpp"

using namespace rankwise;

namespace {

// A plain array of blocks that follow each other, and the elements of each rank's block.
struct Divided {
    PlainArray x;
    Counts counts;

    Divided(const Comm& c, nb::handle array, nb::handle numbers, bool writable) : x(array, writable) {
        const auto items = nb::steal(PySequence_Fast(numbers.ptr(), ""));
        const size_t ranks = size_t(c.world_size());
        for (size_t i = 0; items && PySequence_Fast_GET_SIZE(items.ptr()) == Py_ssize_t(ranks) && i < ranks; ++i) {
            const Py_ssize_t count = PyNumber_AsSsize_t(PySequence_Fast_ITEMS(items.ptr())[i], nullptr);
            if (count < 0 || uint64_t(count) > x.count - total_) break;
            total_ += uint64_t(count);
            counts.push_back(uint64_t(count));
        }
        PyErr_Clear();
        complete_ = x && counts.size() == ranks;
    }
    explicit operator bool() const { return complete_; }
    bool goes_with(const PlainArray& other) const { return x.dtype == other.dtype && x.apart_from(other); }

private:
    uint64_t total_ = 0;
    bool complete_ = false;
};

bool all_gather_v(Comm& c, nb::handle array, nb::handle out, nb::handle counts) {
    const PlainArray x(array, false);
    const Divided into(c, out, counts, true);
    if (!x || !into || !into.goes_with(x) || into.counts[size_t(c.rank())] != x.count) return false;
    c.all_gather_v(x.data, into.x.data, into.counts, DType(x.dtype), ArrayCall<Comm>(into.x.bytes(), x.description()));
    return true;
}

bool all_to_all_v(Comm& c, nb::handle array, nb::handle sends, nb::handle out, nb::handle receives) {
    const Divided given(c, array, sends, false), into(c, out, receives, true);
    if (!given || !into || !into.goes_with(given.x)) return false;
    c.all_to_all_v(given.x.data, into.x.data, given.counts, into.counts, DType(into.x.dtype),
                   ArrayCall<Comm>(into.x.bytes(), given.x.description()));
    return true;
}

// Broadcasts root's counts, which are null on the others, and runs call with them. No other call of this communicator
// comes between the two.
template <class Call> void with_counts_of_root(Comm& c, const Counts* counts, DType dtype, int root, const Call& call) {
    std::vector<int64_t> bytes(size_t(c.world_size()));
    for (size_t i = 0; counts && i < bytes.size(); ++i) bytes[i] = int64_t((*counts)[i] * itemsize(dtype));
    const Comm::Lock both = [&] {
        const ArrayCall<Comm> first;
        Comm::Lock locked = c.lock(first);
        c.broadcast(bytes.data(), bytes.size(), DType::I64, root, first);
        return locked;
    }();
    Counts known;
    for (const int64_t each : bytes) known.push_back(uint64_t(each) / itemsize(dtype));
    call(known);
}

// out, counts: of the root.
bool gather_v(Comm& c, nb::handle array, nb::handle to, nb::handle out, nb::handle counts) {
    const int dst = rank_or_tag(to, c.world_size());
    const PlainArray x(array, false);
    if (!x || dst < 0) return false;
    std::optional<Divided> into;
    if (dst == c.rank()) {
        into.emplace(c, out, counts, true);
        if (!*into || !into->goes_with(x) || into->counts[size_t(dst)] != x.count) return false;
    }
    with_counts_of_root(c, into ? &into->counts : nullptr, DType(x.dtype), dst, [&](Counts& known) {
        known[size_t(c.rank())] = x.count;  // if root expects another number, the operation fails on all ranks
        c.gather_v(x.data, into ? into->x.data : nullptr, known, DType(x.dtype), dst,
                   ArrayCall<Comm>(x.bytes(), x.description()));
    });
    return true;
}

// array, counts: of the root.
bool scatter_v(Comm& c, nb::handle array, nb::handle counts, nb::handle from, nb::handle out) {
    const int src = rank_or_tag(from, c.world_size());
    const PlainArray part(out, true);
    if (!part || src < 0) return false;
    std::optional<Divided> given;
    if (src == c.rank()) {
        given.emplace(c, array, counts, false);
        if (!*given || !given->goes_with(part)) return false;
    }
    with_counts_of_root(c, given ? &given->counts : nullptr, DType(part.dtype), src, [&](Counts& known) {
        uint64_t& mine = known[size_t(c.rank())];
        mine = std::min(mine, part.count);  // if root sends more, the operation fails on all ranks
        c.scatter_v(given ? given->x.data : nullptr, part.data, known, DType(part.dtype), src,
                    ArrayCall<Comm>(part.bytes(), part.description()));
    });
    return true;
}

bool scatter_parts(Comm& c, nb::handle array, nb::handle from, nb::handle out) {
    const int src = rank_or_tag(from, c.world_size());
    const PlainArray part(out, true);
    if (!part || src < 0) return false;
    const uint8_t* data = nullptr;
    if (src == c.rank()) {
        const PlainArray x(array, false);
        if (!x || x.dtype != part.dtype || x.count != part.count * uint64_t(c.world_size()) || !x.apart_from(part))
            return false;
        data = x.data;
    }
    c.scatter(data, part.data, part.count, DType(part.dtype), src, ArrayCall<Comm>(part.bytes(), part.description()));
    return true;
}

}  // namespace

void bind_vector_arrays(nb::class_<Comm>& comm) {
    const auto x = nb::arg("x").none(), counts = nb::arg("counts").none(), out = nb::arg("out").none();
    comm.def("all_gather_v_array", &all_gather_v, x, out, counts)
        .def("gather_v_array", &gather_v, x, nb::arg("dst").none(), out, counts)
        .def("scatter_v_array", &scatter_v, x, counts, nb::arg("src").none(), out)
        .def("all_to_all_v_array", &all_to_all_v, x, nb::arg("send_counts").none(), out, nb::arg("recv_counts").none())
        .def("scatter_parts_array", &scatter_parts, x, nb::arg("src").none(), out);
}
