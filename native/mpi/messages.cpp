// Messages over MPI, and the quickest way for Python objects and arrays of any length over them.
#include "functions.hpp"
#include "plain_pickle.hpp"

using namespace mpi;

namespace {

// A message on its way. If Python drops it before it is complete, its memory is never freed, as MPI may still use it.
class MpiRequest {
public:
    MpiRequest(std::shared_ptr<const mpi::Comm> mpi, nb::object keep) : mpi_(std::move(mpi)), keep_(std::move(keep)) {}
    MpiRequest(MpiRequest&&) = default;
    ~MpiRequest() {
        if (begun_ && !complete_) keep_.release();
    }
    // Begins it by f(count, datatype), which returns MPI's error code, and tests up to `tests` times whether it is
    // complete.
    template <class F> void begin(uint64_t bytes, int tests, const F& f) {
        mpi_->sized(bytes, [&](int count, Handle type) {
            mpi_->call_with_comm([&] {
                int code = f(count, type);
                begun_ = !code;
                return code ? code : tested(tests);
            });
            if (complete_) keep_.reset();
        });
    }
    // Tests up to `times` times.
    bool test(int times) {
        if (!complete_ && times) {
            mpi_->call([&] { return tested(times); });
            if (complete_) keep_.reset();
        }
        return complete_;
    }
    bool complete() const { return complete_; }
    // Of the message that a complete receive got: its source, MPI's tag, and how many bytes it has.
    nb::tuple described() const { return nb::make_tuple(mpi_->source(status), mpi_->tag(status), mpi_->bytes(status)); }
    Handle handle = 0;
    Status status{};

private:
    int tested(int times) {
        int done = 0, code = 0;
        while (times-- > 0 && !code && !done) code = mpi_->functions->test(handle, done, status);
        complete_ = done;
        return code;
    }
    std::shared_ptr<const mpi::Comm> mpi_;
    nb::object keep_;
    bool begun_ = false, complete_ = false;
};

class MpiMessages {
public:
    explicit MpiMessages(std::shared_ptr<const mpi::Comm> comm) : mpi_(std::move(comm)) {}
    void close(int error) const { mpi_->close(error); }

    // Starts to send. Returns None if the message is complete, else its request.
    nb::object send(Address ptr, uint64_t bytes, int dest, int tag, nb::object keep) const {
        MpiRequest request(mpi_, std::move(keep));
        request.begin(bytes, 1, [&](int count, Handle type) {
            return mpi_->functions->isend(pointer(ptr), count, type, dest, tag, mpi_->comm, request.handle);
        });
        return pending(std::move(request));
    }
    nb::object send_bytes(nb::bytes data, int dest, int tag) const {
        const auto ptr = reinterpret_cast<Address>(data.data());
        const size_t bytes = data.size();
        return send(ptr, bytes, dest, tag, std::move(data));
    }
    // Starts to receive, and tests up to `tests` times for the message. Returns None if it has come with exactly this
    // tag and length, else its request.
    nb::object recv(Address ptr, uint64_t bytes, int source, int tag, int tests, nb::object keep) const {
        MpiRequest request(mpi_, std::move(keep));
        const int from = source == rankwise::kAny ? mpi_->any_source : source;
        const int labelled = tag == rankwise::kAny ? mpi_->any_tag : tag;
        request.begin(bytes, tests, [&](int count, Handle type) {
            return mpi_->functions->irecv(pointer(ptr), count, type, from, labelled, mpi_->comm, request.handle);
        });
        const bool expected =
            request.complete() && mpi_->tag(request.status) == tag && mpi_->bytes(request.status) == bytes;
        return expected ? nb::none() : nb::cast(std::move(request), nb::rv_policy::move);
    }
    // A message that a receive could get, probing up to `probes` times: (source, tag, dtype, bytes) or None. It is the
    // first one, unless messages with other tags come before it and those with this tag have several dtypes.
    nb::object find(int source, int tag, int probes) const {
        Status status;
        if (!found(source, tag, probes, status)) return nb::none();
        const int label = mpi_->tag(status), n = mpi_->tags_per_tag;
        return nb::make_tuple(mpi_->source(status), label / n, label % n, mpi_->bytes(status));
    }
    // Starts to receive it in new memory: (source, tag, dtype, memory, None or its request), or None.
    nb::object take(int source, int tag, int probes) const {
        std::optional<Taken> taken = take_now(source, tag, probes);
        return taken ? taken->described(pending(std::move(taken->request))) : nb::none();
    }

    // A message that is being received.
    struct Taken {
        int source, tag, dtype;
        nb::object memory;  // a bytearray
        MpiRequest request;
        nb::object described(nb::object pending) const {
            return nb::make_tuple(source, tag, dtype, memory, std::move(pending));
        }
    };
    std::optional<Taken> take_now(int source, int tag, int probes) const {
        Status status;
        if (!found(source, tag, probes, status)) return std::nullopt;
        const int from = mpi_->source(status), label = mpi_->tag(status);
        uint64_t bytes = mpi_->bytes(status);
        nb::object memory = room(bytes);  // before the message is matched: it cannot be given back
        int matched = 0;                  // it stays 0 if another thread receives the message meanwhile
        Handle message = 0;
        mpi_->call_with_comm(
            [&] { return mpi_->functions->improbe(from, label, mpi_->comm, matched, message, status); });
        if (!matched) return std::nullopt;
        if (bytes != mpi_->bytes(status)) {  // another thread has received that message, and this is the next
            bytes = mpi_->bytes(status);
            memory = room(bytes);
        }
        Taken taken{from, label / mpi_->tags_per_tag, label % mpi_->tags_per_tag, memory, {mpi_, memory}};
        taken.request.begin(bytes, 1, [&](int count, Handle type) {
            return mpi_->functions->imrecv(PyByteArray_AS_STRING(memory.ptr()), count, type, message,
                                           taken.request.handle);
        });
        return taken;
    }
    static nb::object pending(MpiRequest request) {
        return request.complete() ? nb::none() : nb::cast(std::move(request), nb::rv_policy::move);
    }
    int label(int tag, rankwise::DType dtype) const { return tag * mpi_->tags_per_tag + int(dtype); }
    nb::handle exception() const { return mpi_->exception; }

private:
    static nb::object room(uint64_t bytes) {
        nb::object memory = nb::steal(PyByteArray_FromStringAndSize(nullptr, Py_ssize_t(bytes)));
        if (!memory) nb::raise_python_error();
        return memory;
    }
    // Whether there is a message; if so, `status` describes it. MPI's tag contains the dtype, so if other messages come
    // first, finding one with this tag takes a probe for each dtype.
    bool found(int source, int tag, int probes, Status& status) const {
        const int from = source == rankwise::kAny ? mpi_->any_source : source;
        int flag = 0;
        mpi_->call_with_comm([&] {
            int code = 0;
            const auto probe = [&](int label) {
                code = mpi_->functions->iprobe(from, label, mpi_->comm, flag, status);
                return code || flag;
            };
            while (probes-- > 0 && !probe(mpi_->any_tag));
            if (flag && tag != rankwise::kAny && mpi_->tag(status) / mpi_->tags_per_tag != tag)
                for (int dtype = 0; dtype < rankwise::kDTypes; ++dtype)
                    if (probe(tag * mpi_->tags_per_tag + dtype)) break;
            return code;
        });
        return flag;
    }
    std::shared_ptr<const mpi::Comm> mpi_;
};

// The array level's quickest way: see Communicator.quick_messages.
class MpiQuickMessages {
    // What f returns; an error of MPI is explained.
    template <class F> auto explained(const char* operation, int peer, int tag, const F& f) const {
        try {
            return f();
        } catch (const nb::python_error& error) {
            if (error.matches(messages_.exception())) failed_(error.value(), operation, peer, tag);
            throw;
        }
    }
    static constexpr size_t kShort = 64 << 10;  // bytes of an object that is copied, so that pickle itself loads it
    static constexpr int kProbes = 1000, kTests = 200;

    static size_t bytes(const MpiMessages::Taken& taken) { return size_t(PyByteArray_GET_SIZE(taken.memory.ptr())); }

    // The next message, if it arrives and is complete soon, and is an object, or an array, as requested. Another one is
    // kept for the receive that is posted next; so is every message if a signal handler raises.
    std::optional<MpiMessages::Taken> take(nb::handle src, nb::handle tag_, bool object) const {
        const int from = rank_or_tag(src, world_size_), tag = rank_or_tag(tag_, tags_);
        if (from == kNotANumber || tag == kNotANumber || !nb::cast<bool>(usable_())) return std::nullopt;
        for (const nb::list& list : busy_)
            if (nb::len(list)) return std::nullopt;
        return explained("recv", from, tag, [&]() -> std::optional<MpiMessages::Taken> {
            std::optional<MpiMessages::Taken> taken = messages_.take_now(from, tag, kProbes);
            if (!taken) return taken;
            const bool fits = taken->request.test(kTests) && is_object(*taken) == object;
            std::optional<nb::python_error> raised;
            if (PyErr_CheckSignals()) raised.emplace();
            if (fits && !raised) return taken;
            keep_(*nb::tuple(taken->described(MpiMessages::pending(std::move(taken->request)))));
            if (raised) throw *std::move(raised);
            return std::nullopt;
        });
    }
    bool is_object(const MpiMessages::Taken& taken) const {
        return taken.dtype == int(rankwise::DType::U8) && bytes(taken) >= header_.size() &&
               !std::memcmp(PyByteArray_AS_STRING(taken.memory.ptr()), header_.data(), header_.size());
    }

public:
    // header: precedes an object in its message. busy: while one of these lists has items, nothing is received here.
    // usable(): whether a call may be done here. keep(source, tag, dtype, memory, request): keeps a message that has
    // been taken. wait(request, dest, tag): waits for a send. failed(error, operation, peer, tag): raises
    // rankwise's error for MPI's.
    MpiQuickMessages(MpiMessages messages, int world_size, long tags, nb::bytes header, std::vector<nb::list> busy,
                     nb::object usable, nb::object keep, nb::object wait, nb::object failed)
        : messages_(std::move(messages)), world_size_(world_size), tags_(std::min(tags, kTags)),
          header_(std::move(header)), busy_(std::move(busy)), usable_(std::move(usable)), keep_(std::move(keep)),
          wait_(std::move(wait)), failed_(std::move(failed)) {}

    bool send_object_plain(nb::handle object, nb::handle dst, nb::handle tag_, nb::handle) const {
        const int to = rank_or_tag(dst, world_size_), tag = rank_or_tag(tag_, tags_);
        if (to < 0 || tag < 0 || !is_basic(object) || !nb::cast<bool>(usable_())) return false;
        const nb::bytes stream = dump(object);
        const auto size = Py_ssize_t(header_.size() + stream.size());
        const auto message = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, size));
        if (!message) nb::raise_python_error();
        char* const content = PyBytes_AS_STRING(message.ptr());
        std::memcpy(content, header_.data(), header_.size());
        std::memcpy(content + header_.size(), stream.data(), stream.size());
        const nb::object pending = explained("send", to, tag, [&] {
            return messages_.send_bytes(message, to, messages_.label(tag, rankwise::DType::U8));
        });
        if (!pending.is_none()) wait_(pending, to, tag);
        return true;
    }
    nb::object recv_object_plain(nb::handle src, nb::handle tag, std::optional<double>, nb::handle read,
                                 nb::handle constructor) const {
        const auto taken = take(src, tag, true);
        if (!taken) return not_implemented();
        const char* const content = PyByteArray_AS_STRING(taken->memory.ptr()) + header_.size();
        const size_t size = bytes(*taken) - header_.size();
        if (size && size <= kShort && *content == kPickle) {
            nb::object found = load_allowed(nb::bytes(content, size), constructor);
            if (!found.is(not_implemented())) return found;
        }
        const nb::object block = nb::steal(PyMemoryView_FromObject(taken->memory.ptr()));
        if (!block) nb::raise_python_error();
        return read(block[nb::slice(nb::int_(header_.size()), nb::none(), nb::none())], taken->source);
    }
    nb::object recv_any_plain(nb::handle src, nb::handle tag, std::optional<double>) const {
        const auto taken = take(src, tag, false);
        if (!taken) return not_implemented();
        return nb::make_tuple(taken->memory, taken->source, taken->tag, taken->dtype);
    }

private:
    const MpiMessages messages_;
    const int world_size_;
    const long tags_;
    const nb::bytes header_;
    const std::vector<nb::list> busy_;
    const nb::object usable_, keep_, wait_, failed_;
};

MpiMessages* open(const std::vector<Address>& functions, size_t handle_size, Handle comm, Handle byte, int any_source,
                  int any_tag, int tags_per_tag, size_t source_at, size_t tag_at, nb::object exception,
                  nb::object wide) {
    std::unique_ptr<const Functions> made;
    if (handle_size == sizeof(int)) made = std::make_unique<FunctionsOf<int>>(functions);
    else made = std::make_unique<FunctionsOf<void*>>(functions);
    return new MpiMessages(std::make_shared<const mpi::Comm>(std::move(made), comm, byte, any_source, any_tag,
                                                             tags_per_tag, source_at, tag_at, std::move(exception),
                                                             std::move(wide)));
}

}  // namespace

NB_MODULE(_mpi, m) {
    m.doc() = "Messages over MPI.";
    nb::set_leak_warnings(false);  // as in _native
    nb::class_<MpiRequest>(m, "MpiRequest", "A message on its way over MPI.")
        .def("test", &MpiRequest::test, nb::arg("times"))
        .def("described", &MpiRequest::described);
    nb::class_<MpiMessages>(m, "MpiMessages", "Messages over a communicator of MPI.")
        .def(nb::new_(&open), nb::arg("functions"), nb::arg("handle_size"), nb::arg("comm"), nb::arg("byte"),
             nb::arg("any_source"), nb::arg("any_tag"), nb::arg("tags_per_tag"), nb::arg("source_at"),
             nb::arg("tag_at"), nb::arg("exception"), nb::arg("wide"))
        .def("send", &MpiMessages::send, nb::arg("ptr"), nb::arg("bytes"), nb::arg("dest"), nb::arg("tag"),
             nb::arg("keep").none())
        .def("send_bytes", &MpiMessages::send_bytes, nb::arg("data"), nb::arg("dest"), nb::arg("tag"))
        .def("recv", &MpiMessages::recv, nb::arg("ptr"), nb::arg("bytes"), nb::arg("source"), nb::arg("tag"),
             nb::arg("tests"), nb::arg("keep").none())
        .def("find", &MpiMessages::find, nb::arg("source"), nb::arg("tag"), nb::arg("probes"))
        .def("close", &MpiMessages::close, nb::arg("error"))
        .def("take", &MpiMessages::take, nb::arg("source"), nb::arg("tag"), nb::arg("probes"));
    nb::class_<MpiQuickMessages>(m, "MpiQuickMessages", "Objects, and arrays of any length, over MPI.")
        .def(nb::init<MpiMessages, int, long, nb::bytes, std::vector<nb::list>, nb::object, nb::object, nb::object,
                      nb::object>(),
             nb::arg("messages"), nb::arg("world_size"), nb::arg("tags"), nb::arg("header"), nb::arg("busy"),
             nb::arg("usable"), nb::arg("keep"), nb::arg("wait"), nb::arg("failed"))
        .def("send_object_plain", &MpiQuickMessages::send_object_plain, nb::arg("obj").none(), nb::arg("dst").none(),
             nb::arg("tag").none(), nb::arg("encode"))
        .def("recv_object_plain", &MpiQuickMessages::recv_object_plain, nb::arg("src").none(), nb::arg("tag").none(),
             nb::arg("timeout").none(), nb::arg("read"), nb::arg("constructor").none())
        .def("recv_any_plain", &MpiQuickMessages::recv_any_plain, nb::arg("src").none(), nb::arg("tag").none(),
             nb::arg("timeout").none());
}
