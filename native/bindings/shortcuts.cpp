// The common case of the array level in one call from Python: plain arrays of one dtype, whose shapes fit. Each
// function returns whether it did the operation. If it returns False, nothing was done, and the caller takes the
// general path, which also reports errors.
#include "shortcuts.hpp"

#include <array>
#include <cstring>
#include <functional>
#include <optional>

#include "kernels/kernels.hpp"
#include "plain_array.hpp"
#include "works.hpp"

using namespace rankwise;

namespace {

// The names of common reduction operations, mostly recognised by the identity of the interned string.
struct OpName {
    PyObject* text;
    ReduceOp op;
};

std::array<OpName, 5> op_names;  // made when the module is imported

// Arrays: the ranks compare their arrays' shapes, and autograd is notified of what is written. Torch: neither, as in
// torch.distributed, which moves elements.
enum class Rules : uint8_t { Arrays, Torch };
template <Rules rules> Description described(const PlainArray& x) {
    return rules == Rules::Arrays ? x.description() : Description{};
}
template <Rules rules> bool done(const PlainArray& written) { return rules == Rules::Torch || written.written(); }

// A reduction: by its name, or by torch's rules, by its number.
template <Rules rules> std::optional<ReduceOp> reduction(nb::handle op) {
    return rules == Rules::Torch ? checked_op(nb::cast<int>(op)) : reduction_named(op);
}

// Whether `out` fits a result of shape (world, *x.shape), or one in which x's axis 0 is divided into equal parts.
bool fits_gathered(const Comm& c, const PlainArray& x, const PlainArray& out) {
    return x && out && out.dtype == x.dtype && out.dims() > 0 && out.dim(0) == c.world_size() &&
           x.same_shape(out, 0, 1) && x.apart_from(out);
}
// The same for a flat `out`, with a part like x for each rank; shapes are not compared.
bool has_parts_like(const Comm& c, const PlainArray& x, const PlainArray& out) {
    return x && out && out.dtype == x.dtype && out.count == x.count * uint64_t(c.world_size()) && x.apart_from(out);
}
// The same where x may be this rank's part of `out`.
bool is_part(const Comm& c, const PlainArray& x, const PlainArray& out) {
    return x && out && out.dtype == x.dtype && out.count == x.count * uint64_t(c.world_size()) &&
           (x.apart_from(out) || x.data == out.data + x.bytes() * size_t(c.rank()));
}
bool fits_split(const Comm& c, const PlainArray& x, const PlainArray& out, bool part) {
    if (!x || !out || out.dtype != x.dtype || x.dims() == 0 || x.dim(0) % c.world_size() || !x.apart_from(out))
        return false;
    return out.dims() == x.dims() && out.dim(0) == (part ? x.dim(0) / c.world_size() : x.dim(0)) &&
           x.same_shape(out, 1, 1);
}
// Whether `out` is a part of x's axis 0, or as long as x.
bool fits_part(const Comm& c, const PlainArray& x, const PlainArray& out) { return fits_split(c, x, out, true); }
bool fits_whole(const Comm& c, const PlainArray& x, const PlainArray& out) { return fits_split(c, x, out, false); }
bool has_this_part(const Comm& c, const PlainArray& x, const PlainArray& out) { return is_part(c, out, x); }
// Whether both have as many elements, in rows that divide into a part for each rank.
bool has_as_many(const Comm& c, const PlainArray& x, const PlainArray& out) {
    const auto divides = [&](const PlainArray& each) { return each.dims() > 0 && each.dim(0) % c.world_size() == 0; };
    return x && out && out.dtype == x.dtype && out.count == x.count && x.apart_from(out) && divides(x) && divides(out);
}
using Fits = bool (*)(const Comm& c, const PlainArray& x, const PlainArray& out);

// What a rank contributes to a reduction in x: the elements of another array, which go there first, or x's own.
struct Contribution {
    Contribution(const PlainArray& x, nb::handle given) : x_(x), other_(given, false), own_(given.is_none()) {}
    bool fits() const { return own_ || (other_ && other_.dtype == x_.dtype && other_.count == x_.count); }
    void put() const {
        if (!own_) std::memmove(x_.data, other_.data, x_.bytes());
    }

private:
    const PlainArray& x_;
    const PlainArray other_;
    const bool own_;
};

template <Rules rules> bool all_reduce(Comm& c, nb::handle array, nb::handle op, nb::handle given) {
    const PlainArray x(array, true);
    const Contribution mine(x, given);
    const auto named = reduction<rules>(op);
    if (!x || !named || !reduce_kernel(DType(x.dtype), *named) || !mine.fits()) return false;
    mine.put();
    run(c, x.bytes(), described<rules>(x), array, [=, &c, reduce_op = *named](const CallOptions& options) {
        c.all_reduce(x.data, x.count, DType(x.dtype), reduce_op, options);
    });
    return done<rules>(x);
}

bool reduce(Comm& c, nb::handle array, nb::handle to, nb::handle op, nb::handle given) {
    const int dst = rank_or_tag(to, c.world_size());
    if (dst < 0) return false;
    const PlainArray x(array, dst == c.rank());
    const Contribution mine(x, given);
    const auto named = reduction<Rules::Arrays>(op);
    if (!x || !named || !reduce_kernel(DType(x.dtype), *named) || !mine.fits()) return false;
    mine.put();
    run(c, x.bytes(), x.description(), dst == c.rank() ? array : nb::none(),
        [=, &c, reduce_op = *named](const CallOptions& options) {
            c.reduce(x.data, x.count, DType(x.dtype), reduce_op, dst, options);
        });
    return dst != c.rank() || x.written();
}

template <Rules rules> bool broadcast(Comm& c, nb::handle array, nb::handle from) {
    const int src = rank_or_tag(from, c.world_size());
    const PlainArray x(array, true);
    if (!x || src < 0) return false;
    run(c, x.bytes(), described<rules>(x), array,
        [=, &c](const CallOptions& options) { c.broadcast(x.data, x.count, DType(x.dtype), src, options); });
    return src == c.rank() || done<rules>(x);
}

template <Fits fits, Rules rules = Rules::Arrays> bool all_gather(Comm& c, nb::handle array, nb::handle out) {
    const PlainArray x(array, false), result(out, true);
    if (!fits(c, x, result)) return false;
    run(c, result.bytes(), described<rules>(x), out,
        [=, &c](const CallOptions& options) { c.all_gather(x.data, result.data, x.count, DType(x.dtype), options); });
    return done<rules>(result);
}

// The general path refuses an array whose gathered result would have more dimensions than NumPy allows (32 before NumPy
// 2, and 64 since). dst and the other ranks must refuse it alike, so such arrays take the general path on all ranks.
constexpr int kMostDims = 32;

template <Fits fits> bool gather(Comm& c, nb::handle array, nb::handle at, nb::handle out) {
    const int dst = rank_or_tag(at, c.world_size());
    const PlainArray x(array, false);
    if (!x || x.dims() >= kMostDims || dst < 0) return false;
    const PlainArray result(dst == c.rank() ? out : nb::handle(Py_None), true);
    if (dst == c.rank() && !fits(c, x, result)) return false;
    run(c, x.bytes() * size_t(c.world_size()), x.description(), dst == c.rank() ? out : nb::none(),
        [=, &c](const CallOptions& options) { c.gather(x.data, result.data, x.count, DType(x.dtype), dst, options); });
    return result.written();
}

template <Fits fits, Rules rules> bool reduce_scatter(Comm& c, nb::handle array, nb::handle op, nb::handle out) {
    const PlainArray x(array, false), result(out, true);
    const auto named = reduction<rules>(op);
    if (!named || !fits(c, x, result) || !reduce_kernel(DType(x.dtype), *named)) return false;
    run(c, x.bytes(), described<rules>(x), out, [=, &c, reduce_op = *named](const CallOptions& options) {
        c.reduce_scatter(x.data, result.data, result.count, DType(x.dtype), reduce_op, options);
    });
    return done<rules>(result);
}

template <auto operation> bool scan(Comm& c, nb::handle array, nb::handle op, nb::handle out) {
    const PlainArray x(array, false), result(out, true);
    const auto named = reduction<Rules::Arrays>(op);
    if (!x || !result || result.dtype != x.dtype || !x.same_shape(result, 0, 0) || !x.apart_from(result)) return false;
    if (!named || *named == ReduceOp::MEAN || !reduce_kernel(DType(x.dtype), *named)) return false;
    run(c, x.bytes(), x.description(), out, [=, &c, reduce_op = *named](const CallOptions& options) {
        (c.*operation)(x.data, result.data, x.count, DType(x.dtype), reduce_op, options);
    });
    return result.written();
}

template <Fits fits, Rules rules> bool all_to_all(Comm& c, nb::handle array, nb::handle out) {
    const PlainArray x(array, false), result(out, true);
    if (!fits(c, x, result)) return false;
    run(c, x.bytes(), described<rules>(x), out, [=, &c](const CallOptions& options) {
        c.all_to_all(x.data, result.data, x.count / uint64_t(c.world_size()), DType(x.dtype), options);
    });
    return done<rules>(result);
}

// The header that scatter's src sends before the parts: dtype, ndim, shape. It has the same form as in
// group/collectives.py, because some of the ranks may take that path.
using collectives::ArrayHeader;
constexpr uint64_t kHeaderWords = sizeof(ArrayHeader) / 8;

// On the other ranks: the received header, and the memory for the part.
struct ReceivedPart {
    const PlainArray& part;  // receives the part if it fits
    const int n;
    ArrayHeader header;
    std::vector<uint8_t> other;  // receives a part that travels with the header and does not fit

    bool fits() const {
        bool same = header.dtype == part.dtype && header.dims == part.dims() && header.dim[0] % n == 0 &&
                    header.dim[0] / n == part.dim(0);
        for (int i = 1; same && i < part.dims(); ++i) same = i < ArrayHeader::kDims && header.dim[i] == part.dim(i);
        return same;
    }
    uint8_t* operator()(size_t bytes) {
        if (fits()) return part.data;
        other.resize(bytes);
        return other.data();
    }
};

bool scatter_from_here(Comm& c, const PlainArray& x, const PlainArray& part, int src) {
    if (x.dims() > ArrayHeader::kDims) return false;
    ArrayHeader header{x.dtype, x.dims(), {}};
    for (int i = 0; i < x.dims(); ++i) header.dim[i] = x.dim(i);
    const ArrayCall call(x.bytes());
    if (const auto parts_follow = c.scatter_described(header, x.data, part.data, nullptr, src, call))
        c.scatter(x.data, part.data, part.count, DType(x.dtype), src, call);
    return true;
}

nb::object bytes_of(const std::vector<uint8_t>& data) { return nb::bytes(data.data(), data.size()); }

// After the header has been exchanged, the other ranks rely on this one. So if `out` does not fit,
// `rest(header, part, out, src)` completes the operation; part is this rank's part if it came with the header, or None.
bool scatter(Comm& c, nb::handle array, nb::handle from, nb::handle out, nb::handle rest) {
    const int src = rank_or_tag(from, c.world_size());
    const PlainArray part(out, true);
    if (!part || part.dims() == 0 || src < 0) return false;
    if (src == c.rank()) {
        const PlainArray x(array, false);
        return fits_split(c, x, part, true) && scatter_from_here(c, x, part, src) && part.written();
    }
    ReceivedPart received{part, c.world_size(), {}, {}};
    const auto parts_follow =
        c.scatter_described(received.header, nullptr, nullptr, std::ref(received), src, ArrayCall(part.bytes()));
    if (received.fits()) {
        if (parts_follow) c.scatter(nullptr, part.data, part.count, DType(part.dtype), src, ArrayCall(part.bytes()));
        return part.written();
    }
    nb::list given;
    const auto* header = reinterpret_cast<const int64_t*>(&received.header);
    for (uint64_t i = 0; i < kHeaderWords; ++i) given.append(header[i]);
    rest(given, parts_follow ? nb::none() : bytes_of(received.other), out, from);
    return true;
}

// The first step of scatter for any arrays. header: kHeaderWords int64, which src gives and the other ranks receive.
// Returns None if the parts follow in another call, else this rank's part (empty on src).
nb::object announce_array(Comm& c, nb::handle header_, uintptr_t send, uintptr_t recv, int src) {
    const PlainArray given(header_, true);
    if (!given || given.bytes() != sizeof(ArrayHeader))
        throw BadArgument("header: expected an array of " + std::to_string(kHeaderWords) + " int64");
    ArrayHeader header;
    std::memcpy(&header, given.data, sizeof header);
    std::vector<uint8_t> part;
    const auto part_buffer = [&part](size_t bytes) {
        part.resize(bytes);
        return part.data();
    };
    const Comm::Lock parts_follow =
        c.scatter_described(header, reinterpret_cast<const void*>(send), reinterpret_cast<void*>(recv),
                            std::ref(part_buffer), src, ArrayCall());
    std::memcpy(given.data, &header, sizeof header);
    return parts_follow ? nb::none() : bytes_of(part);
}

// The ranks know what they receive.
bool scatter_parts(Comm& c, nb::handle array, nb::handle from, nb::handle out) {
    const int src = rank_or_tag(from, c.world_size());
    const PlainArray part(out, true);
    if (!part || src < 0) return false;
    const uint8_t* data = nullptr;
    if (src == c.rank()) {
        const PlainArray x(array, false);
        if (!has_parts_like(c, part, x)) return false;
        data = x.data;
    }
    run(c, part.bytes(), part.description(), out, [=, &c](const CallOptions& options) {
        c.scatter(data, part.data, part.count, DType(part.dtype), src, options);
    });
    return part.written();
}

bool barrier(Comm& c) {
    run(c, 0, {}, nb::none(), [&c](const CallOptions& options) { c.barrier_without_sync(options); });
    return true;
}

constexpr auto reduce_scatter_parts = &reduce_scatter<fits_part, Rules::Arrays>;
constexpr auto all_to_all_parts = &all_to_all<fits_whole, Rules::Arrays>;

}  // namespace

std::optional<ReduceOp> reduction_named(nb::handle op) {
    if (!PyUnicode_CheckExact(op.ptr())) return std::nullopt;
    for (const OpName& known : op_names)
        if (known.text == op.ptr() || PyUnicode_Compare(known.text, op.ptr()) == 0) return known.op;
    return std::nullopt;
}

const TorchShortcuts torch_shortcuts{&all_reduce<Rules::Torch>,
                                     &broadcast<Rules::Torch>,
                                     &all_gather<is_part, Rules::Torch>,
                                     &reduce_scatter<has_this_part, Rules::Torch>,
                                     &all_to_all<has_as_many, Rules::Torch>,
                                     &barrier};

void bind_shortcuts(nb::class_<Comm>& comm) {
    const std::array common{ReduceOp::SUM, ReduceOp::MEAN, ReduceOp::MAX, ReduceOp::MIN, ReduceOp::PROD};
    for (size_t i = 0; i < op_names.size(); ++i) op_names[i] = {PyUnicode_InternFromString(name(common[i])), common[i]};
    const auto x = nb::arg("x").none(), op = nb::arg("op").none(), out = nb::arg("out").none();
    const auto src = nb::arg("src").none(), dst = nb::arg("dst").none();
    const auto group = nb::arg("group").none();
    const auto given = nb::arg("given").none() = nb::none();
    comm.def("all_reduce_array", &all_reduce<Rules::Arrays>, x, op, given)
        .def("reduce_array", &reduce, x, dst, op, given)
        .def("broadcast_array", &broadcast<Rules::Arrays>, x, src)
        .def("all_gather_array", &all_gather<fits_gathered>, x, out)
        .def("gather_array", &gather<fits_gathered>, x, dst, out)
        .def("scatter_array", &scatter, x, src, out, nb::arg("rest"))
        .def("reduce_scatter_array", reduce_scatter_parts, x, op, out)
        .def("scan_array", &scan<&Comm::scan>, x, op, out)
        .def("exscan_array", &scan<&Comm::exscan>, x, op, out)
        .def("all_to_all_array", all_to_all_parts, x, out)
        .def("all_gather_parts_array", &all_gather<has_parts_like>, x, out)
        .def("gather_parts_array", &gather<has_parts_like>, x, dst, out)
        .def("scatter_parts_array", &scatter_parts, x, src, out)
        .def("start_barrier", starter(&barrier))
        .def("start_all_reduce_array", starter(&all_reduce<Rules::Arrays>), group, x, op, given)
        .def("start_reduce_array", starter(&reduce), group, x, dst, op, given)
        .def("start_broadcast_array", starter(&broadcast<Rules::Arrays>), group, x, src)
        .def("start_all_gather_array", starter(&all_gather<fits_gathered>), group, x, out)
        .def("start_gather_array", starter(&gather<fits_gathered>), group, x, dst, out)
        .def("start_reduce_scatter_array", starter(reduce_scatter_parts), group, x, op, out)
        .def("start_scan_array", starter(&scan<&Comm::scan>), group, x, op, out)
        .def("start_exscan_array", starter(&scan<&Comm::exscan>), group, x, op, out)
        .def("start_all_to_all_array", starter(all_to_all_parts), group, x, out)
        .def("start_all_gather_parts_array", starter(&all_gather<has_parts_like>), group, x, out)
        .def("start_gather_parts_array", starter(&gather<has_parts_like>), group, x, dst, out)
        .def("start_scatter_parts_array", starter(&scatter_parts), group, x, src, out)
        .def("announce_array", &announce_array, nb::arg("header"), nb::arg("send"), nb::arg("recv"), nb::arg("src"));
}
