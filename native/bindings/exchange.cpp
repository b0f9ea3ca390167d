// Blocking messages between arrays, which may have any strides: send, recv, both at the same time, and the exchange of
// ghost cells. The functions return False or None, with nothing done, for other arrays, ranks or tags.
#include "base/aligned_memory.hpp"
#include "messages.hpp"
#include "plain_array.hpp"
#include "plain_pickle.hpp"

using namespace rankwise;

namespace {

// An array of a message: NumPy's with any strides, or a plain one.
struct MessageArray : PlainArray {
    MessageArray(nb::handle object, Access access, Strides strides = Strides::Any)
        : PlainArray(object, access, strides) {
        if (dims() > StridedLayout::kDims) dtype = -1;
    }
};

// The contiguous memory of such an array: its own, or a packed copy.
class Packed {
public:
    explicit Packed(const PlainArray& x) : x_(x), layout_(x.dims(), x.shape(), x.strides().data(), x.itemsize()) {}
    // Whether a message may be written there: no two elements share memory.
    bool writable() const { return layout_.apart(); }
    // copy: even if the array is contiguous.
    uint8_t* read(bool copy = false) {
        uint8_t* const to = room(copy);
        if (to != x_.data) layout_.pack(1, &to, &x_.data);
        return to;
    }
    uint8_t* room(bool copy = false) {
        if (layout_.contiguous() && !copy) return x_.data;
        memory_ = Memory(x_.bytes());
        return memory_.data();
    }
    void write() const {
        uint8_t* const from = memory_.data();
        if (from) layout_.unpack(1, &from, &x_.data);
    }

private:
    const PlainArray& x_;
    const StridedLayout layout_;
    Memory memory_;
};

bool send_array(Comm& c, nb::handle array, nb::handle to, nb::handle label) {
    const int dst = rank_or_tag(to, c.world_size()), tag = rank_or_tag(label, kTags);
    const MessageArray x(array, Access::Read);
    if (!x || dst < 0 || tag < 0) return false;
    const ArrayCall call(x.bytes());
    c.messages().send_now({Packed(x).read(), x.count, DType(x.dtype), dst, tag}, call);
    return true;
}

bool recv_array(Comm& c, nb::handle array, nb::handle from, nb::handle label) {
    const int src = rank_or_tag(from, c.world_size()), tag = rank_or_tag(label, kTags);
    const MessageArray x(array, Access::Write);
    if (!x || src < 0 || tag < 0) return false;
    Packed packed(x);
    if (!packed.writable()) return false;
    {
        const ArrayCall call(x.bytes());
        c.messages().recv_now({packed.room(), x.count, DType(x.dtype), src, tag}, call);
        packed.write();
    }
    return x.written();
}

// Sends x and receives y at the same time: exactly y, or up to y as in MPI. Nothing, if an argument is unusual.
std::optional<Arrival> sendrecv(Comm& c, const MessageArray& x, nb::handle to, nb::handle send_label,
                                const MessageArray& y, nb::handle from, nb::handle label, Wanted wanted) {
    const int dst = rank_or_tag(to, c.world_size()), send_tag = rank_or_tag(send_label, kTags);
    const int first = wanted == Wanted::UpTo ? kAny : 0, src = rank_or_tag(from, c.world_size(), first);
    const int tag = rank_or_tag(label, kTags, first);
    if (!x || !y || dst < 0 || send_tag < 0 || src < first || tag < first) return std::nullopt;
    Packed sent(x), received(y);
    if (!received.writable()) return std::nullopt;
    const ArrayCall call(x.bytes() + y.bytes());
    const Send sends{sent.read(!x.apart_from(y)), x.count, DType(x.dtype), dst, send_tag};
    const Receive receives{received.room(), y.count, DType(y.dtype), src, tag, wanted};
    const Arrival a = c.messages().exchange({&sends, 1}, {&receives, 1}, call);
    received.write();
    return a;
}

// As in MPI: (source, tag, bytes), or None.
std::optional<std::tuple<int, int, uint64_t>> sendrecv_array(Comm& c, nb::handle array, nb::handle to,
                                                             nb::handle send_label, nb::handle out, nb::handle from,
                                                             nb::handle label) {
    const MessageArray y(out, Access::Write, PlainArray::Strides::Contiguous);
    const auto a = sendrecv(c, MessageArray(array, Access::Read), to, send_label, y, from, label, Wanted::UpTo);
    if (!a) return std::nullopt;
    y.written();
    return std::tuple(a->source, a->tag, a->count * itemsize(a->dtype));
}

// The array that has received the message: `out`, or, if that is None, a new one like x.
nb::object sendrecv_result(Comm& c, nb::handle array, nb::handle to, nb::handle from, nb::handle label,
                           nb::handle out) {
    const MessageArray x(array, Access::Read);
    nb::object into = nb::borrow(out);
    if (out.is_none()) {
        if (!has_kind(array, x)) return not_taken();
        into = new_like(array, {x.shape(), x.shape() + x.dims()});
    }
    const MessageArray y(into, Access::Write);
    if (!sendrecv(c, x, to, label, y, from, label, Wanted::Exactly)) return not_taken();
    if (!out.is_none()) y.written();
    return into;
}

// ---- the exchange of ghost cells between neighbours along one axis of an array ----

// The tags of cells for the next and for the previous rank, as in group/mesh.py.
constexpr int kUp = 1022, kDown = 1023;

// The memory of blocks of one layout in an exchange: their own, or, if it is not contiguous, packed.
struct PackedBlocks {
    std::array<uint8_t*, 2> data{}, packed{};  // of each block
    int n = 0;
    void add(uint8_t* block, uint8_t* room, bool contiguous) {
        data[size_t(n)] = block;
        packed[size_t(n++)] = contiguous ? block : room;
    }
};

// before, after: the neighbours, None at an edge. width: how many layers at each end of the axis are ghost cells.
bool exchange_halo(Comm& c, nb::handle array, nb::handle before, nb::handle after, int width, int axis) {
    const MessageArray x(array, Access::Write);
    const auto neighbour = [&](nb::handle rank) { return rank.is_none() ? kAny : rank_or_tag(rank, c.world_size()); };
    const int low = neighbour(before), high = neighbour(after);
    if (axis < 0) axis += x.dims();
    if (!x || low < kAny || high < kAny || axis < 0 || axis >= x.dims()) return false;
    const int64_t length = x.dim(axis);
    if (width < 1 || width > length / 3) return false;

    const auto strides = x.strides();
    std::array<int64_t, StridedLayout::kDims> shape;
    std::copy_n(x.shape(), x.dims(), shape.begin());
    if (!StridedLayout(x.dims(), shape.data(), strides.data(), x.itemsize()).apart()) return false;
    shape[size_t(axis)] = width;
    const StridedLayout layout(x.dims(), shape.data(), strides.data(), x.itemsize());
    const uint64_t count = x.count / uint64_t(length) * uint64_t(width), bytes = count * x.itemsize();
    const bool contiguous = layout.contiguous();
    const Memory memory = contiguous ? Memory() : Memory(4 * bytes);
    const auto layers = [&](int64_t from) { return x.data + from * strides[size_t(axis)]; };
    PackedBlocks inner, ghosts;  // what is sent, and what is received
    std::array<Send, 2> sends;
    std::array<Receive, 2> receives;
    const auto send = [&](int to, int64_t from, int tag) {
        if (to == kAny) return;
        inner.add(layers(from), memory.data() + uint64_t(inner.n) * bytes, contiguous);
        sends[size_t(inner.n - 1)] = {inner.packed[size_t(inner.n - 1)], count, DType(x.dtype), to, tag};
    };
    const auto receive = [&](int src, int64_t to, int tag) {
        if (src == kAny) return;
        ghosts.add(layers(to), memory.data() + uint64_t(2 + ghosts.n) * bytes, contiguous);
        receives[size_t(ghosts.n - 1)] = {ghosts.packed[size_t(ghosts.n - 1)], count, DType(x.dtype), src, tag};
    };
    send(low, width, kDown);
    send(high, length - 2 * width, kUp);
    receive(high, length - width, kDown);
    receive(low, 0, kUp);
    {
        const ArrayCall call(x.bytes() / uint64_t(length) * 4 * uint64_t(width));
        if (!contiguous) layout.pack(inner.n, inner.packed.data(), inner.data.data());
        c.messages().exchange({sends.data(), size_t(inner.n)}, {receives.data(), size_t(ghosts.n)}, call);
        if (!contiguous) layout.unpack(ghosts.n, ghosts.packed.data(), ghosts.data.data());
    }
    return x.written();
}

}  // namespace

void bind_exchange(nb::class_<Comm>& comm) {
    const auto x = nb::arg("x").none(), out = nb::arg("out").none(), src = nb::arg("src").none();
    const auto dst = nb::arg("dst").none(), tag = nb::arg("tag").none();
    comm.def("send_array", &send_array, x, dst, tag)
        .def("recv_array", &recv_array, x, src, tag)
        .def("sendrecv_array", &sendrecv_array, x, dst, nb::arg("send_tag").none(), out, src, tag)
        .def("sendrecv_result", &sendrecv_result, x, dst, src, tag, out)
        .def("exchange_halo_array", &exchange_halo, x, nb::arg("before").none(), nb::arg("after").none(),
             nb::arg("width"), nb::arg("dimension"));
}
