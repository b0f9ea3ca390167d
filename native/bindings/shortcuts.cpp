// The common case of the array level in one call from Python: plain arrays of one dtype, whose shapes fit. Each
// function returns whether it did the operation, or its result. If it returns False, or nothing, then nothing was done,
// and the caller takes the general path, which also reports errors.
#include "shortcuts.hpp"

#include <array>
#include <cstring>
#include <optional>

#include "base/copy.hpp"
#include "kernels/kernels.hpp"
#include "plain_array.hpp"
#include "plain_pickle.hpp"
#include "works.hpp"

using namespace rankwise;

namespace {

// The names of common reduction operations, mostly recognised by the identity of the interned string.
struct OpName {
    PyObject* text;
    ReduceOp op;
};

std::array<OpName, 5> op_names;  // made when the module is imported

// Whose call it is. Group: the ranks compare their arrays' shapes, autograd is notified of what is written, and the
// result is a new array if `out` is None. Mpi: autograd is notified. Torch: none of that, and a reduction is given by
// its number.
enum class Rules : uint8_t { Group, Mpi, Torch };
template <Rules rules> Description described(const PlainArray& x) {
    return rules == Rules::Group ? x.description() : Description{};
}
template <Rules rules> bool done(const PlainArray& written) { return rules == Rules::Torch || written.written(); }

// A reduction, by its name or number.
template <Rules rules> std::optional<ReduceOp> reduction(nb::handle op) {
    return rules == Rules::Torch ? checked_op(nb::cast<int>(op)) : reduction_named(op);
}

// The form of a result of x: whether `out` fits it, and the shape of a new array for it, if there is such a result.

// The shape (world, *x.shape).
struct Gathered {
    static bool fits(const Comm& c, const PlainArray& x, const PlainArray& out) {
        return out.dims() > 0 && out.dim(0) == c.world_size() && x.same_shape(out, 0, 1) && x.apart_from(out);
    }
    static std::optional<std::vector<uint64_t>> shape(const Comm& c, const PlainArray& x) {
        std::vector<uint64_t> shape{uint64_t(c.world_size())};
        shape.insert(shape.end(), x.shape(), x.shape() + x.dims());
        return shape;
    }
};
// x's axis 0 divides into equal parts: the shape of one of them, or that of x.
template <bool part> struct Split {
    static uint64_t rows(const Comm& c, const PlainArray& x) {
        return part ? x.rows() / uint64_t(c.world_size()) : x.rows();
    }
    static bool divides(const Comm& c, const PlainArray& x) { return x.dims() > 0 && x.dim(0) % c.world_size() == 0; }
    static bool fits(const Comm& c, const PlainArray& x, const PlainArray& out) {
        return divides(c, x) && out.dims() == x.dims() && out.rows() == rows(c, x) && x.same_shape(out, 1, 1) &&
               x.apart_from(out);
    }
    static std::optional<std::vector<uint64_t>> shape(const Comm& c, const PlainArray& x) {
        if (!divides(c, x)) return std::nullopt;
        return rows_like(rows(c, x), x);
    }
};
using OnePart = Split<true>;
using AllParts = Split<false>;
// The shape of x.
struct Same {
    static bool fits(const Comm&, const PlainArray& x, const PlainArray& out) {
        return x.same_shape(out, 0, 0) && x.apart_from(out);
    }
    static std::optional<std::vector<uint64_t>> shape(const Comm&, const PlainArray& x) {
        return std::vector<uint64_t>(x.shape(), x.shape() + x.dims());
    }
};
// A flat result with a part like x for each rank; shapes are not compared.
struct Parts {
    static bool fits(const Comm& c, const PlainArray& x, const PlainArray& out) {
        return out.count == x.count * uint64_t(c.world_size()) && x.apart_from(out);
    }
};
// The same where x may be this rank's part of `out`, or where `out` may be this rank's part of x.
struct PartsAround {
    static bool fits(const Comm& c, const PlainArray& x, const PlainArray& out) {
        return Parts::fits(c, x, out) ||
               (out.count == x.count * uint64_t(c.world_size()) && x.data == out.data + x.bytes() * size_t(c.rank()));
    }
};
struct PartWithin {
    static bool fits(const Comm& c, const PlainArray& x, const PlainArray& out) { return PartsAround::fits(c, out, x); }
};
// As many elements, which divide into a part for each rank.
struct EqualParts {
    static bool fits(const Comm& c, const PlainArray& x, const PlainArray& out) {
        return out.count == x.count && x.count % uint64_t(c.world_size()) == 0 && x.apart_from(out);
    }
};
// The same in rows.
struct EqualRows {
    static bool fits(const Comm& c, const PlainArray& x, const PlainArray& out) {
        return EqualParts::fits(c, x, out) && AllParts::divides(c, x) && AllParts::divides(c, out);
    }
};

// The general path refuses an array whose result would have more axes than NumPy allows (32 before NumPy 2, and 64
// since). All ranks must do so alike, so that these functions leave such arrays to it.
constexpr int kMostDims = 32;

// Where the result of `array`, whose memory is x, goes: the object is invalid if there is no place that fits.
template <class Form, Rules rules> struct Result {
    Result(const Comm& c, nb::handle array, const PlainArray& x, nb::handle out) : object(nb::borrow(out)) {
        if constexpr (rules == Rules::Group) {
            if (out.is_none()) {
                make(c, array, x);
                return;
            }
        }
        memory = PlainArray(out, Access::Write);
        if (!x || !memory || memory.dtype != x.dtype || !Form::fits(c, x, memory)) object.reset();
    }
    // The result, which was written.
    nb::object done() {
        if (rules != Rules::Torch && !is_new_) memory.written();
        return std::move(object);
    }
    nb::object object;
    PlainArray memory;

private:
    void make(const Comm& c, nb::handle array, const PlainArray& x) {
        object.reset();
        if (!has_kind(array, x) || x.dims() >= kMostDims) return;
        const auto shape = Form::shape(c, x);
        if (!shape) return;
        object = new_like(array, *shape);
        memory = PlainArray(object, Access::Write);
        is_new_ = true;
    }
    bool is_new_ = false;
};

// What a rank contributes to an operation in x: the elements of another array, which go there first, or x's own.
class Contribution {
public:
    Contribution(const PlainArray& x, nb::handle given)
        : other_(given, Access::Read), own_(given.is_none()),
          fits_(own_ ||
                (x && other_ && other_.dtype == x.dtype && other_.same_shape(x, 0, 0) && other_.apart_from(x))) {}
    bool fits() const { return fits_; }
    // Of an operation that is only started: now, as its arrays are not to be touched any more.
    void put_if_started(const PlainArray& x) {
        if (!Starting::here || own_) return;
        copy_bytes(x.data, other_.data, x.bytes());
        is_put_ = true;
    }
    // Of any other: once what was started before has run.
    Comm::Lock put_after_others(Comm& c, const PlainArray& x, const CallOptions& options) const {
        if (own_ || is_put_) return {};
        Comm::Lock lock = c.lock(options);
        copy_bytes(x.data, other_.data, x.bytes());
        return lock;
    }

private:
    const PlainArray other_;
    const bool own_, fits_;
    bool is_put_ = false;
};

template <Rules rules> bool all_reduce(Comm& c, nb::handle array, nb::handle op, nb::handle given) {
    const PlainArray x(array, Access::Write);
    Contribution mine(x, given);
    const auto named = reduction<rules>(op);
    if (!x || !named || !reduce_kernel(DType(x.dtype), *named) || !mine.fits()) return false;
    mine.put_if_started(x);
    run(c, x.bytes(), described<rules>(x), array, [=, &c, reduce_op = *named](const CallOptions& options) {
        const Comm::Lock lock = mine.put_after_others(c, x, options);
        c.all_reduce(x.data, x.count, DType(x.dtype), reduce_op, options);
    });
    return done<rules>(x);
}

bool reduce(Comm& c, nb::handle array, nb::handle to, nb::handle op, nb::handle given) {
    const int dst = rank_or_tag(to, c.world_size());
    if (dst < 0) return false;
    const PlainArray x(array, dst == c.rank() ? Access::Write : Access::Read);
    Contribution mine(x, given);
    const auto named = reduction<Rules::Group>(op);
    if (!x || !named || !reduce_kernel(DType(x.dtype), *named) || !mine.fits()) return false;
    mine.put_if_started(x);
    run(c, x.bytes(), x.description(), dst == c.rank() ? array : nb::none(),
        [=, &c, reduce_op = *named](const CallOptions& options) {
            const Comm::Lock lock = mine.put_after_others(c, x, options);
            c.reduce(x.data, x.count, DType(x.dtype), reduce_op, dst, options);
        });
    return dst != c.rank() || x.written();
}

// given: as in a reduction, on src.
template <Rules rules> bool broadcast(Comm& c, nb::handle array, nb::handle from, nb::handle given) {
    const int src = rank_or_tag(from, c.world_size());
    const PlainArray x(array, Access::Write);
    Contribution mine(x, src == c.rank() ? given : nb::handle(Py_None));
    if (!x || src < 0 || !mine.fits()) return false;
    mine.put_if_started(x);
    run(c, x.bytes(), described<rules>(x), array, [=, &c](const CallOptions& options) {
        const Comm::Lock lock = mine.put_after_others(c, x, options);
        c.broadcast(x.data, x.count, DType(x.dtype), src, options);
    });
    return (src == c.rank() && given.is_none()) || done<rules>(x);
}

// A number of Python's, as an array without axes.
class Number {
public:
    explicit Number(nb::handle object) {
        int overflow = 0;
        if (PyFloat_CheckExact(object.ptr())) set(DType::F64, PyFloat_AS_DOUBLE(object.ptr()));
        else if (PyBool_Check(object.ptr())) set(DType::BOOL, object.ptr() == Py_True);
        else if (PyLong_CheckExact(object.ptr()))
            set(DType::I64, PyLong_AsLongLongAndOverflow(object.ptr(), &overflow));
        if (overflow) known_ = false;
    }
    explicit operator bool() const { return known_; }
    DType dtype() const { return dtype_; }
    // Makes call(address, options), which may change it.
    template <class Call> void run(Comm& c, const Call& call) {
        ::run(c, itemsize(dtype_), Description{Op::None, 0, nullptr}, nb::none(),
              [&](const CallOptions& options) { call(bytes_, options); });
    }
    nb::object object() const {
        if (dtype_ == DType::F64) return nb::float_(get<double>());
        if (dtype_ == DType::BOOL) return nb::bool_(get<bool>());
        return nb::int_(get<int64_t>());
    }

private:
    template <class T> void set(DType dtype, T value) {
        known_ = true;
        dtype_ = dtype;
        std::memcpy(bytes_, &value, sizeof value);
    }
    template <class T> T get() const {
        T value;
        std::memcpy(&value, bytes_, sizeof value);
        return value;
    }
    alignas(8) uint8_t bytes_[8];
    DType dtype_ = DType::F64;
    bool known_ = false;
};

// The array in a blocking call that takes numbers too, as arrays without axes.
nb::object array_of(nb::handle object) {
    static PyObject* const asarray = nb::object(nb::module_::import_("numpy").attr("asarray")).release().ptr();
    if (Starting::here || as_ndarray(object) || !Number(object)) return nb::borrow(object);
    nb::object made = nb::steal(PyObject_CallOneArg(asarray, object.ptr()));
    if (!made.is_valid()) nb::raise_python_error();
    return made;
}

template <class Form, Rules rules> nb::object all_gather(Comm& c, nb::handle given, nb::handle out) {
    const nb::object array = array_of(given);
    const PlainArray x(array, Access::Read);
    Result<Form, rules> result(c, array, x, out);
    if (!result.object) return {};
    run(c, result.memory.bytes(), described<rules>(x), result.object,
        [=, &c, to = result.memory.data](const CallOptions& options) {
            c.all_gather(x.data, to, x.count, DType(x.dtype), options);
        });
    return result.done();
}

// The result is None but on dst.
template <class Form, Rules rules> nb::object gather(Comm& c, nb::handle given, nb::handle at, nb::handle out) {
    const int dst = rank_or_tag(at, c.world_size());
    const nb::object array = array_of(given);
    const PlainArray x(array, Access::Read);
    if (!x || x.dims() >= kMostDims || dst < 0) return {};
    const auto call = [&](const nb::object& result, uint8_t* to) {
        run(c, x.bytes() * size_t(c.world_size()), described<rules>(x), result,
            [=, &c](const CallOptions& options) { c.gather(x.data, to, x.count, DType(x.dtype), dst, options); });
    };
    if (dst != c.rank()) {
        call(nb::none(), nullptr);
        return nb::none();
    }
    Result<Form, rules> result(c, array, x, out);
    if (!result.object) return {};
    call(result.object, result.memory.data);
    return result.done();
}

template <class Form, Rules rules> nb::object reduce_scatter(Comm& c, nb::handle array, nb::handle op, nb::handle out) {
    const PlainArray x(array, Access::Read);
    const auto named = reduction<rules>(op);
    if (!x || !named || !reduce_kernel(DType(x.dtype), *named)) return {};
    Result<Form, rules> result(c, array, x, out);
    if (!result.object) return {};
    run(c, x.bytes(), described<rules>(x), result.object,
        [=, &c, part = result.memory, reduce_op = *named](const CallOptions& options) {
            c.reduce_scatter(x.data, part.data, part.count, DType(x.dtype), reduce_op, options);
        });
    return result.done();
}

template <auto operation, Rules rules> nb::object scan(Comm& c, nb::handle given, nb::handle op, nb::handle out) {
    const nb::object array = array_of(given);
    const PlainArray x(array, Access::Read);
    const auto named = reduction<rules>(op);
    if (!x || !named || *named == ReduceOp::MEAN || !reduce_kernel(DType(x.dtype), *named)) return {};
    Result<Same, rules> result(c, array, x, out);
    if (!result.object) return {};
    run(c, x.bytes(), described<rules>(x), result.object,
        [=, &c, to = result.memory.data, reduce_op = *named](const CallOptions& options) {
            (c.*operation)(x.data, to, x.count, DType(x.dtype), reduce_op, options);
            // A group's exscan of rank 0 is that of no numbers; MPI's leaves the buffer as it is.
            if (operation == &Comm::exscan && rules == Rules::Group && c.rank() == 0) std::memset(to, 0, x.bytes());
        });
    return result.done();
}

template <class Form, Rules rules> nb::object all_to_all(Comm& c, nb::handle array, nb::handle out) {
    const PlainArray x(array, Access::Read);
    Result<Form, rules> result(c, array, x, out);
    if (!result.object) return {};
    run(c, x.bytes(), described<rules>(x), result.object, [=, &c, to = result.memory.data](const CallOptions& options) {
        c.all_to_all(x.data, to, x.count / uint64_t(c.world_size()), DType(x.dtype), options);
    });
    return result.done();
}

// The ranks know what they receive.
bool scatter_parts(Comm& c, nb::handle array, nb::handle from, nb::handle out) {
    const int src = rank_or_tag(from, c.world_size());
    const PlainArray part(out, Access::Write);
    if (!part || src < 0) return false;
    const uint8_t* data = nullptr;
    if (src == c.rank()) {
        const PlainArray x(array, Access::Read);
        if (!x || x.dtype != part.dtype || !Parts::fits(c, part, x)) return false;
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

nb::object all_reduce_number(Comm& c, nb::handle object, nb::handle op) {
    Number x(object);
    const auto named = reduction_named(op);
    if (!x || !named || !reduce_kernel(x.dtype(), *named)) return {};
    x.run(c, [&](void* at, const CallOptions& options) { c.all_reduce(at, 1, x.dtype(), *named, options); });
    return x.object();
}

nb::object reduce_number(Comm& c, nb::handle object, nb::handle to, nb::handle op) {
    Number x(object);
    const int dst = rank_or_tag(to, c.world_size());
    const auto named = reduction_named(op);
    if (!x || dst < 0 || !named || !reduce_kernel(x.dtype(), *named)) return {};
    x.run(c, [&](void* at, const CallOptions& options) { c.reduce(at, 1, x.dtype(), *named, dst, options); });
    return dst == c.rank() ? x.object() : nb::none();
}

nb::object broadcast_number(Comm& c, nb::handle object, nb::handle from) {
    Number x(object);
    const int src = rank_or_tag(from, c.world_size());
    if (!x || src < 0) return {};
    x.run(c, [&](void* at, const CallOptions& options) { c.broadcast(at, 1, x.dtype(), src, options); });
    return x.object();
}

// The methods: one returns the result, or NOT_TAKEN; the other says whether there is one.
template <class... A> auto result_of(nb::object (*shortcut)(Comm&, A...)) {
    return [shortcut](Comm& c, A... args) {
        nb::object found = shortcut(c, args...);
        return found ? found : not_taken();
    };
}
template <class... A> auto whether(nb::object (*shortcut)(Comm&, A...)) {
    return [shortcut](Comm& c, A... args) { return bool(shortcut(c, args...)); };
}

}  // namespace

std::optional<ReduceOp> reduction_named(nb::handle op) {
    if (!PyUnicode_CheckExact(op.ptr())) return std::nullopt;
    for (const OpName& known : op_names)
        if (known.text == op.ptr() || PyUnicode_Compare(known.text, op.ptr()) == 0) return known.op;
    return std::nullopt;
}

const TorchShortcuts torch_shortcuts{&all_reduce<Rules::Torch>,
                                     &broadcast<Rules::Torch>,
                                     &all_gather<PartsAround, Rules::Torch>,
                                     &reduce_scatter<PartWithin, Rules::Torch>,
                                     &all_to_all<EqualRows, Rules::Torch>,
                                     &barrier};

void bind_shortcuts(nb::class_<Comm>& comm) {
    const std::array common{ReduceOp::SUM, ReduceOp::MEAN, ReduceOp::MAX, ReduceOp::MIN, ReduceOp::PROD};
    for (size_t i = 0; i < op_names.size(); ++i) op_names[i] = {PyUnicode_InternFromString(name(common[i])), common[i]};
    const auto x = nb::arg("x").none(), op = nb::arg("op").none(), out = nb::arg("out").none();
    const auto src = nb::arg("src").none(), dst = nb::arg("dst").none();
    const auto group = nb::arg("group").none();
    const auto given = nb::arg("given").none() = nb::none();
    comm.def("all_reduce_array", &all_reduce<Rules::Group>, x, op, given)
        .def("reduce_array", &reduce, x, dst, op, given)
        .def("broadcast_array", &broadcast<Rules::Group>, x, src, given)
        .def("all_reduce_number", result_of(&all_reduce_number), x, op)
        .def("reduce_number", result_of(&reduce_number), x, dst, op)
        .def("broadcast_number", result_of(&broadcast_number), x, src)
        .def("all_gather_result", result_of(&all_gather<Gathered, Rules::Group>), x, out)
        .def("gather_result", result_of(&gather<Gathered, Rules::Group>), x, dst, out)
        .def("reduce_scatter_result", result_of(&reduce_scatter<OnePart, Rules::Group>), x, op, out)
        .def("scan_result", result_of(&scan<&Comm::scan, Rules::Group>), x, op, out)
        .def("exscan_result", result_of(&scan<&Comm::exscan, Rules::Group>), x, op, out)
        .def("all_to_all_result", result_of(&all_to_all<AllParts, Rules::Group>), x, out)
        .def("scan_array", whether(&scan<&Comm::scan, Rules::Mpi>), x, op, out)
        .def("exscan_array", whether(&scan<&Comm::exscan, Rules::Mpi>), x, op, out)
        .def("all_to_all_array", whether(&all_to_all<EqualParts, Rules::Mpi>), x, out)
        .def("all_gather_parts_array", whether(&all_gather<Parts, Rules::Mpi>), x, out)
        .def("gather_parts_array", whether(&gather<Parts, Rules::Mpi>), x, dst, out)
        .def("scatter_parts_array", &scatter_parts, x, src, out)
        .def("start_barrier", starter(&barrier))
        .def("start_all_reduce_array", starter(&all_reduce<Rules::Group>), group, x, op, given)
        .def("start_reduce_array", starter(&reduce), group, x, dst, op, given)
        .def("start_broadcast_array", starter(&broadcast<Rules::Group>), group, x, src, given)
        .def("start_all_gather_result", starter(&all_gather<Gathered, Rules::Group>), group, x, out)
        .def("start_gather_result", starter(&gather<Gathered, Rules::Group>), group, x, dst, out)
        .def("start_reduce_scatter_result", starter(&reduce_scatter<OnePart, Rules::Group>), group, x, op, out)
        .def("start_scan_result", starter(&scan<&Comm::scan, Rules::Group>), group, x, op, out)
        .def("start_exscan_result", starter(&scan<&Comm::exscan, Rules::Group>), group, x, op, out)
        .def("start_all_to_all_result", starter(&all_to_all<AllParts, Rules::Group>), group, x, out)
        .def("start_scan_array", starter(&scan<&Comm::scan, Rules::Mpi>), group, x, op, out)
        .def("start_exscan_array", starter(&scan<&Comm::exscan, Rules::Mpi>), group, x, op, out)
        .def("start_all_to_all_array", starter(&all_to_all<EqualParts, Rules::Mpi>), group, x, out)
        .def("start_all_gather_parts_array", starter(&all_gather<Parts, Rules::Mpi>), group, x, out)
        .def("start_gather_parts_array", starter(&gather<Parts, Rules::Mpi>), group, x, dst, out)
        .def("start_scatter_parts_array", starter(&scatter_parts), group, x, src, out);
}
