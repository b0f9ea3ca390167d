// A group's vector collectives in one call from Python: plain arrays, which are divided into rows along axis 0. The
// ranks' numbers of rows travel with the data, and the result is made when they are known: in `out`, or a new array.
//
// Each function on arrays returns whether it did the operation, and leaves its result in a LateResult, which the call
// keeps: Python may drop the Work. If it returns False, nothing was done, and the caller takes the general path, which
// also reports errors.
#include <numeric>

#include "plain_array.hpp"
#include "plain_pickle.hpp"
#include "shortcuts.hpp"
#include "works.hpp"

using namespace rankwise;

namespace {

using Late = std::shared_ptr<LateResult>;

// The functions as methods: one returns the result, or NOT_TAKEN; the other starts the operation and returns its
// Work, or None.
template <class... A> auto result_of(bool (*shortcut)(Comm&, const Late&, A...)) {
    return [shortcut](Comm& c, A... args) -> nb::object {
        LateResult late;
        return shortcut(c, Late(Late(), &late), args...) ? late.take() : not_taken();
    };
}
template <class... A> auto start_of(bool (*shortcut)(Comm&, const Late&, A...)) {
    return [shortcut](Comm& c, nb::handle group, A... args) -> std::optional<WorkHandle> {
        Starting starting;
        if (!shortcut(c, std::make_shared<LateResult>(), args...)) return std::nullopt;
        return starting.work(group, args...);
    };
}

uint64_t sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), uint64_t(0)); }

// Where each rank's rows go, one block after the other.
std::vector<uint8_t*> blocks_at(uint8_t* at, const Counts& counts, size_t row) {
    std::vector<uint8_t*> places;
    for (const uint64_t count : counts) places.push_back(std::exchange(at, at + count * row));
    return places;
}

// An array of rows, and where a result of such rows goes.
struct Rows {
    Rows(nb::handle array, nb::handle out) : array(array), out(out), x(array, Access::Read), into(out, Access::Write) {}
    // Whether a result can be made: in `out`, if that has the right number of rows, or in a new array.
    bool fits() const {
        if (!x || x.dims() == 0) return false;
        if (out.is_none()) return has_kind(array, x);
        return into && into.dtype == x.dtype && x.same_shape(into, 1, 1) && into.dims() > 0 && x.apart_from(into);
    }
    // Makes the result of as many rows as the ranks send, as soon as that is known, and returns its memory.
    enum class Gives : bool { Rows, RowsAndCounts };
    uint8_t* place(LateResult& late, const Counts& counts, Gives gives = Gives::Rows) const {
        const size_t bytes = checked_bytes(sum(counts), x.row().bytes());
        return late.room(bytes, [&] {
            nb::object result = make(sum(counts));
            uint8_t* const memory = memory_of(result, bytes);
            late.set(gives == Gives::RowsAndCounts ? nb::object(nb::make_tuple(result, counts)) : result);
            return memory;
        });
    }
    // With the GIL: the result. Raises an exception if `out` has another number of rows.
    nb::object make(uint64_t rows) const {
        if (out.is_none()) return new_like(array, rows_like(rows, x));
        if (into.rows() == rows) return nb::borrow(out);
        const nb::object text = nb::str("out: expected shape {}, got {}")
                                    .format(tuple_of(rows_like(rows, into)), tuple_of(rows_like(into.rows(), into)));
        PyErr_SetObject(PyExc_ValueError, text.ptr());
        nb::raise_python_error();
    }
    nb::handle array, out;
    PlainArray x, into;
};

bool all_gather_of_rows(Comm& c, const Late& late, nb::handle array, nb::handle out) {
    const Rows given(array, out);
    if (!given.fits()) return false;
    const PlainArray& x = given.x;
    run(c, x.bytes() * size_t(c.world_size()), x.row_description(), late, [=, &c](const CallOptions& options) {
        const auto room = [&](const Counts& counts) { return given.place(*late, counts); };
        c.all_gather_sized(given.x.data, given.x.rows(), given.x.row(), room, options);
        late->check();
    });
    return given.into.written();
}

bool gather_of_rows(Comm& c, const Late& late, nb::handle array, nb::handle to, nb::handle out) {
    const int dst = rank_or_tag(to, c.world_size());
    if (dst < 0) return false;
    const Rows given(array, dst == c.rank() ? out : nb::handle(Py_None));
    if (!given.fits()) return false;
    const PlainArray& x = given.x;
    run(c, x.bytes(), x.row_description(), late, [=, &c](const CallOptions& options) {
        const Row row = given.x.row();
        const auto rooms = [&](const Counts& counts) {
            return blocks_at(given.place(*late, counts), counts, row.bytes());
        };
        c.gather_sized(given.x.data, given.x.rows(), row, rooms, dst, options);
        late->check();
    });
    return given.into.written();
}

// A number of rows for each rank, all of which are `rows`; empty for anything else.
Counts counts_in(const Comm& c, nb::handle numbers, uint64_t rows) {
    Counts counts;
    const size_t ranks = size_t(c.world_size());
    if (!PyList_Check(numbers.ptr()) && !PyTuple_Check(numbers.ptr()) && !as_ndarray(numbers)) return {};
    const auto items = nb::steal(PySequence_Fast(numbers.ptr(), ""));
    for (size_t i = 0; items && PySequence_Fast_GET_SIZE(items.ptr()) == Py_ssize_t(ranks) && i < ranks; ++i) {
        const Py_ssize_t count = PyNumber_AsSsize_t(PySequence_Fast_ITEMS(items.ptr())[i], PyExc_OverflowError);
        if (count < 0 || uint64_t(count) > rows) break;
        counts.push_back(uint64_t(count));
        rows -= uint64_t(count);
    }
    PyErr_Clear();
    return counts.size() == ranks && rows == 0 ? counts : Counts();
}

// The result: the rows received, and how many came from each rank.
bool all_to_all_of_rows(Comm& c, const Late& late, nb::handle array, nb::handle numbers, nb::handle out) {
    const Rows given(array, out);
    if (!given.fits()) return false;
    const PlainArray& x = given.x;
    const Counts sends = counts_in(c, numbers, x.rows());
    if (sends.empty()) return false;
    run(c, x.bytes(), x.row_description(), late, [=, &c](const CallOptions& options) {
        const auto room = [&](const Counts& counts) { return given.place(*late, counts, Rows::Gives::RowsAndCounts); };
        c.all_to_all_sized(given.x.data, sends, given.x.row(), room, options);
        late->check();
    });
    return given.into.written();
}

// What a scatter's src tells the other ranks besides the counts: the dtype of the array, and the shape of a row.
std::vector<uint64_t> words_of(const PlainArray& x) {
    std::vector<uint64_t> words(x.shape(), x.shape() + x.dims());
    words[0] = uint64_t(x.dtype);
    return words;
}

// numbers: of the rows for each rank, unless the ranks share them evenly.
bool scatter_from_here(Comm& c, const Late& late, const Rows& given, nb::handle numbers, bool even, int src) {
    if (!given.fits()) return false;
    const PlainArray& x = given.x;
    collectives::Division division{x.row().bytes(), {}, words_of(x)};
    if (even) division.items = x.rows();
    else division.counts = counts_in(c, numbers, x.rows());
    if (!even && division.counts.empty()) return false;
    const uint64_t mine = division.count(src, c.world_size());
    if (!given.out.is_none() && given.into.rows() != mine) return false;
    nb::object result = given.make(mine);
    uint8_t* const memory = memory_of(result, mine * division.item);
    late->set(std::move(result));
    run(c, x.bytes(), {}, late,
        [=, &c, keep = late, data = x.data, division = std::move(division)](const CallOptions& options) mutable {
            c.scatter_sized(division, data, [=](size_t) { return memory; }, src, options);
        });
    return given.into.written();
}

// Whether the array, if it is plain, is as a part of this many rows of what src sends.
bool is_part(const PlainArray& x, const collectives::Division& sent, uint64_t rows) {
    if (!x || !x.dims() || size_t(x.dims()) != sent.words.size() || uint64_t(x.dtype) != sent.words[0]) return false;
    for (int i = 1; i < x.dims(); ++i)
        if (uint64_t(x.dim(i)) != sent.words[size_t(i)]) return false;
    return x.rows() == rows;
}

// numbers: src's, unless the ranks share the rows evenly. make(x, out, shape, dtype) returns the array for a part:
// `out`, if it fits, or a new one of the kind of x, which may be None.
bool scatter_of_rows(Comm& c, const Late& late, nb::handle array, nb::handle numbers, nb::handle from, nb::handle out,
                     nb::handle make, nb::handle evenly) {
    const bool even = evenly.is(Py_True);
    const int src = rank_or_tag(from, c.world_size());
    const Rows given(array, out);
    if (src < 0) return false;
    if (src == c.rank()) return scatter_from_here(c, late, given, numbers, even, src);
    if (!(array.is_none() || given.x) || !(out.is_none() || given.into)) return false;
    if (given.into) late->set(nb::borrow(out));
    run(c, given.into ? given.into.bytes() : 0, {}, late, [=, &c](const CallOptions& options) {
        collectives::Division received;
        if (even) received.items = 0;
        const auto room = [&](size_t bytes) {
            const uint64_t rows = received.count(c.rank(), c.world_size());
            if (is_part(given.into, received, rows)) return given.into.data;
            return late->room(bytes, [&] {
                nb::list shape;
                shape.append(rows);
                for (size_t i = 1; i < received.words.size(); ++i) shape.append(received.words[i]);
                nb::object part = make(given.array, given.out, nb::tuple(shape), received.words.at(0));
                uint8_t* const memory = memory_of(part, bytes);
                late->set(std::move(part));
                return memory;
            });
        };
        c.scatter_sized(received, nullptr, room, src, options);
        late->check();
    });
    return given.into.written();
}

bool reduce_scatter_of_rows(Comm& c, const Late& late, nb::handle array, nb::handle numbers, nb::handle op,
                            nb::handle out) {
    const Rows given(array, out);
    const auto named = reduction_named(op);
    if (!named || !given.fits() || !reduce_kernel(DType(given.x.dtype), *named)) return false;
    const PlainArray& x = given.x;
    Counts counts = counts_in(c, numbers, x.rows());
    if (counts.empty()) return false;
    const uint64_t mine = counts[size_t(c.rank())], row = x.row().elements;
    if (!out.is_none() && given.into.rows() != mine) return false;
    for (uint64_t& count : counts) count *= row;
    nb::object result = given.make(mine);
    uint8_t* const memory = memory_of(result, mine * x.row().bytes());
    late->set(std::move(result));
    run(c, x.bytes(), x.description(), late, [=, &c, keep = late, reduce_op = *named](const CallOptions& options) {
        c.reduce_scatter_v(given.x.data, memory, counts, DType(given.x.dtype), reduce_op, options);
    });
    return given.into.written();
}

// The same four, and scatter, for memory at addresses, which block. counts: the rows of this rank, or for each rank; in
// scatter their number on src. room(counts, words) returns the address for the rows received, as soon as their numbers
// are known: from each rank, or in a scatter this rank's alone; words: what a scatter's src gives.
void rows_call(Comm& c, const std::string& operation, Address at, const Counts& counts, int dtype,
               const std::vector<int64_t>& shape, int root, std::vector<uint64_t> words, nb::handle room) {
    Row row{checked_dtype(dtype), 1};
    for (const int64_t length : shape) row.elements *= checked_count(length);
    const bool even = operation == "scatter", scatters = even || operation == "scatter_v";
    LateResult late;
    const auto place = [&](const Counts& found, size_t bytes, const std::vector<uint64_t>& more = {}) {
        return late.room(bytes, [&] { return static_cast<uint8_t*>(pointer(nb::cast<Address>(room(found, more)))); });
    };
    const auto all = [&](const Counts& found) { return place(found, checked_bytes(sum(found), row.bytes())); };
    const auto each = [&](const Counts& found) { return blocks_at(all(found), found, row.bytes()); };
    collectives::Division division{row.bytes(), even ? Counts() : counts, std::move(words)};
    if (even) division.items = counts.at(0);
    const auto part = [&](size_t bytes) {
        return place({division.count(c.rank(), c.world_size())}, bytes, division.words);
    };
    const Description rows{Op::None, int(shape.size()), shape.data()};
    const ArrayCall call(checked_bytes(sum(counts), row.bytes()), scatters ? Description{} : rows);
    if (operation == "gather_v") c.gather_sized(pointer(at), counts.at(0), row, each, root, call);
    else if (operation == "all_gather_v") c.all_gather_sized(pointer(at), counts.at(0), row, all, call);
    else if (operation == "all_to_all_v") c.all_to_all_sized(pointer(at), counts, row, all, call);
    else if (scatters) c.scatter_sized(division, pointer(at), part, root, call);
    else throw BadArgument("operation: '" + operation + "' given, expected a collective of rows");
    late.check();
}

}  // namespace

void bind_rows(nb::class_<Comm>& comm) {
    const auto x = nb::arg("x").none(), counts = nb::arg("counts").none(), out = nb::arg("out").none();
    const auto dst = nb::arg("dst").none(), src = nb::arg("src").none(), op = nb::arg("op").none();
    const auto group = nb::arg("group").none();
    const auto make = nb::arg("make"), even = nb::arg("even");
    comm.def("all_gather_rows", result_of(&all_gather_of_rows), x, out)
        .def("gather_rows", result_of(&gather_of_rows), x, dst, out)
        .def("scatter_rows", result_of(&scatter_of_rows), x, counts, src, out, make, even)
        .def("all_to_all_rows", result_of(&all_to_all_of_rows), x, counts, out)
        .def("reduce_scatter_rows", result_of(&reduce_scatter_of_rows), x, counts, op, out)
        .def("start_all_gather_rows", start_of(&all_gather_of_rows), group, x, out)
        .def("start_gather_rows", start_of(&gather_of_rows), group, x, dst, out)
        .def("start_scatter_rows", start_of(&scatter_of_rows), group, x, counts, src, out, make, even)
        .def("start_all_to_all_rows", start_of(&all_to_all_of_rows), group, x, counts, out)
        .def("start_reduce_scatter_rows", start_of(&reduce_scatter_of_rows), group, x, counts, op, out)
        .def("rows_call", &rows_call, nb::arg("operation"), nb::arg("ptr"), counts, nb::arg("dtype"), nb::arg("shape"),
             nb::arg("root"), nb::arg("words"), nb::arg("room"));
}
