// Vector collectives as in MPI, in one call from Python. All ranks know their counts; in gather and scatter only root
// does, and what is compared is the size in bytes. The arrays are plain, and may be longer than their blocks. As in
// shortcuts.cpp, each function on arrays returns whether it did the operation.
#include <optional>

#include "plain_array.hpp"
#include "shortcuts.hpp"
#include "works.hpp"

using namespace rankwise;

namespace {

// A sequence with a number for each rank.
struct Numbers {
    Numbers(const Comm& c, nb::handle given)
        : items(nb::steal(given.is_none() ? nullptr : PySequence_Fast(given.ptr(), ""))) {
        if (items.is_valid() && PySequence_Fast_GET_SIZE(items.ptr()) != c.world_size()) items.reset();
    }
    // -1 if there is none.
    Py_ssize_t operator[](size_t rank) const {
        return items.is_valid() ? PyNumber_AsSsize_t(PySequence_Fast_ITEMS(items.ptr())[rank], nullptr) : -1;
    }
    nb::object items;
};

// A plain array of blocks that follow each other, and the elements of each rank's block.
struct Divided {
    PlainArray x;
    Counts counts;

    // displs: where each block begins, or None. unit: how many elements a number counts as one.
    Divided(const Comm& c, nb::handle array, nb::handle numbers, nb::handle displs, Access access, uint64_t unit = 1)
        : x(array, access) {
        const Numbers sizes(c, numbers), starts(c, displs);
        for (size_t i = 0; i < size_t(c.world_size()); ++i) {
            const Py_ssize_t count = sizes[i];
            if (count < 0 || uint64_t(count) > (x.count - total_) / unit) break;
            if (!displs.is_none() && starts[i] != Py_ssize_t(total_ / unit)) break;
            counts.push_back(uint64_t(count) * unit);
            total_ += counts.back();
        }
        PyErr_Clear();
        complete_ = x && counts.size() == size_t(c.world_size());
    }
    explicit operator bool() const { return complete_; }
    bool whole() const { return complete_ && total_ == x.count; }
    bool goes_with(const PlainArray& other) const { return x.dtype == other.dtype && x.apart_from(other); }

private:
    uint64_t total_ = 0;
    bool complete_ = false;
};

bool all_gather_v(Comm& c, nb::handle array, nb::handle out, nb::handle counts, nb::handle displs) {
    const PlainArray x(array, Access::Read);
    const Divided into(c, out, counts, displs, Access::Write);
    if (!x || !into || !into.goes_with(x) || into.counts[size_t(c.rank())] != x.count) return false;
    run(c, into.x.bytes(), x.description(), out, [=, &c](const CallOptions& options) {
        c.all_gather_v(x.data, into.x.data, into.counts, DType(x.dtype), options);
    });
    return into.x.written();
}

bool all_to_all_v(Comm& c, nb::handle array, nb::handle sends, nb::handle send_displs, nb::handle out,
                  nb::handle receives, nb::handle recv_displs) {
    const Divided given(c, array, sends, send_displs, Access::Read), into(c, out, receives, recv_displs, Access::Write);
    if (!given || !into || !into.goes_with(given.x)) return false;
    run(c, into.x.bytes(), given.x.description(), out, [=, &c](const CallOptions& options) {
        c.all_to_all_v(given.x.data, into.x.data, given.counts, into.counts, DType(into.x.dtype), options);
    });
    return into.x.written();
}

// out may be longer than this rank's block.
bool reduce_scatter_v(Comm& c, nb::handle array, nb::handle op, nb::handle out, nb::handle counts) {
    const Divided given(c, array, counts, nb::none(), Access::Read);
    const PlainArray into(out, Access::Write);
    const auto named = reduction_named(op);
    if (!given.whole() || !into || !given.goes_with(into) || given.counts[size_t(c.rank())] > into.count) return false;
    if (!named || !reduce_kernel(DType(into.dtype), *named)) return false;
    run(c, given.x.bytes(), {}, out, [=, &c, reduce_op = *named](const CallOptions& options) {
        c.reduce_scatter_v(given.x.data, into.data, given.counts, DType(into.dtype), reduce_op, options);
    });
    return into.written();
}

Counts in_bytes(const Divided& divided) {
    Counts sizes;
    for (const uint64_t count : divided.counts) sizes.push_back(count * itemsize(DType(divided.x.dtype)));
    return sizes;
}

[[noreturn]] void refuse(int from, uint64_t bytes, int to, const char* why, uint64_t expected) {
    throw Mismatch("rank " + std::to_string(from) + " sends " + std::to_string(bytes) + " bytes to rank " +
                       std::to_string(to) + why + std::to_string(expected),
                   {}, {}, {}, -1);
}

// Gathers blocks. Each rank knows the size of its own block, and root all sizes, which are in bytes.
void gather_blocks_to(Comm& c, const void* mine, size_t bytes, int root, uint8_t* out, const Counts& sizes,
                      const CallOptions& options) {
    const auto rooms = [&](const Counts& sent) {
        std::vector<uint8_t*> places;
        uint8_t* at = out;
        for (size_t from = 0; from < sent.size(); ++from) {
            if (sent[from] != sizes[from]) refuse(int(from), sent[from], root, ", which expects ", sizes[from]);
            places.push_back(std::exchange(at, at + sent[from]));
        }
        return places;
    };
    c.gather_sized(mine, bytes, {}, rooms, root, options);
}

// out, counts, displs: of the root.
bool gather_v(Comm& c, nb::handle array, nb::handle to, nb::handle out, nb::handle counts, nb::handle displs) {
    const int dst = rank_or_tag(to, c.world_size());
    const PlainArray x(array, Access::Read);
    if (!x || dst < 0) return false;
    std::optional<Divided> into;
    Counts sizes;
    if (dst == c.rank()) {
        into.emplace(c, out, counts, displs, Access::Write);
        if (!*into || !into->goes_with(x) || into->counts[size_t(dst)] != x.count) return false;
        sizes = in_bytes(*into);
    }
    gather_blocks_to(c, x.data, x.bytes(), dst, into ? into->x.data : nullptr, sizes, ArrayCall(x.bytes()));
    return !into || into->x.written();
}

// The same for memory at addresses. sizes: used on root alone.
bool gather_blocks(Comm& c, Address mine, size_t bytes, int root, Address out, const Counts& sizes) {
    gather_blocks_to(c, pointer(mine), bytes, root, static_cast<uint8_t*>(pointer(out)), sizes, ArrayCall(bytes));
    return true;
}

// Scatters blocks whose sizes, in bytes, only root knows, into memory that may be longer than this rank's. Returns the
// bytes of its block.
uint64_t scatter_blocks_from(Comm& c, const void* blocks, const Counts& sizes, int root, void* out, size_t room,
                             const CallOptions& options) {
    const auto into_out = [&](size_t bytes) {
        if (bytes > room) refuse(root, bytes, c.rank(), ", which has room for ", room);
        return static_cast<uint8_t*>(out);
    };
    collectives::Division division{1, sizes, {}};
    c.scatter_sized(division, blocks, into_out, root, options);
    return division.counts[size_t(c.rank())];
}

// array, counts, displs: of the root.
bool scatter_v(Comm& c, nb::handle array, nb::handle counts, nb::handle displs, nb::handle from, nb::handle out) {
    const int src = rank_or_tag(from, c.world_size());
    const PlainArray part(out, Access::Write);
    if (!part || src < 0) return false;
    std::optional<Divided> given;
    Counts sizes;
    if (src == c.rank()) {
        given.emplace(c, array, counts, displs, Access::Read);
        if (!*given || !given->goes_with(part)) return false;
        sizes = in_bytes(*given);
    }
    scatter_blocks_from(c, given ? given->x.data : nullptr, sizes, src, part.data, part.bytes(),
                        ArrayCall(part.bytes()));
    return part.written();
}

// The same for memory. Returns the bytes of this rank's block.
uint64_t scatter_blocks(Comm& c, Address blocks, const Counts& sizes, int root, Address out, size_t room) {
    return scatter_blocks_from(c, pointer(blocks), sizes, root, pointer(out), room, ArrayCall(room));
}

}  // namespace

bool all_to_all_rows(Comm& c, nb::handle array, nb::handle splits, nb::handle out, nb::handle out_splits) {
    const auto row = [](nb::handle rows) -> uint64_t {
        const PlainArray x(rows, Access::Read);
        return x && x.dims() > 0 && x.count ? x.count / uint64_t(x.dim(0)) : 0;
    };
    const uint64_t row_in = row(array), row_out = row(out);
    if (!row_in || !row_out) return false;
    const Divided given(c, array, splits, nb::none(), Access::Read, row_in),
        into(c, out, out_splits, nb::none(), Access::Write, row_out);
    if (!given.whole() || !into.whole() || !into.goes_with(given.x)) return false;
    run(c, into.x.bytes(), {}, nb::none(), [=, &c](const CallOptions& options) {
        c.all_to_all_v(given.x.data, into.x.data, given.counts, into.counts, DType(into.x.dtype), options);
    });
    return true;
}

void bind_vector_arrays(nb::class_<Comm>& comm) {
    const auto x = nb::arg("x").none(), counts = nb::arg("counts").none(), out = nb::arg("out").none();
    const auto group = nb::arg("group").none(), op = nb::arg("op").none();
    const auto displs = nb::arg("displs").none(), src = nb::arg("src").none();
    const auto sends = nb::arg("send_counts").none(), send_displs = nb::arg("send_displs").none();
    const auto receives = nb::arg("recv_counts").none(), recv_displs = nb::arg("recv_displs").none();
    comm.def("all_gather_v_array", &all_gather_v, x, out, counts, displs)
        .def("start_all_gather_v_array", starter(&all_gather_v), group, x, out, counts, displs)
        .def("all_to_all_v_array", &all_to_all_v, x, sends, send_displs, out, receives, recv_displs)
        .def("start_all_to_all_v_array", starter(&all_to_all_v), group, x, sends, send_displs, out, receives,
             recv_displs)
        .def("reduce_scatter_v_array", &reduce_scatter_v, x, op, out, counts)
        .def("start_reduce_scatter_v_array", starter(&reduce_scatter_v), group, x, op, out, counts)
        .def("gather_v_array", &gather_v, x, nb::arg("dst").none(), out, counts, displs)
        .def("gather_blocks", &gather_blocks, nb::arg("block"), nb::arg("bytes"), nb::arg("dst"), nb::arg("out"),
             nb::arg("sizes"))
        .def("scatter_v_array", &scatter_v, x, counts, displs, src, out)
        .def("scatter_blocks", &scatter_blocks, nb::arg("blocks"), nb::arg("sizes"), nb::arg("src"), nb::arg("out"),
             nb::arg("room"));
}
