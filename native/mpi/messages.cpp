// Messages over MPI.
#include "functions.hpp"

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
    MpiRequest recv(Address ptr, uint64_t bytes, int source, int tag, nb::object keep) const {
        MpiRequest request(mpi_, std::move(keep));
        const int from = source == rankwise::kAny ? mpi_->any_source : source;
        const int labelled = tag == rankwise::kAny ? mpi_->any_tag : tag;
        request.begin(bytes, 0, [&](int count, Handle type) {
            return mpi_->functions->irecv(pointer(ptr), count, type, from, labelled, mpi_->comm, request.handle);
        });
        return request;
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
        Status status;
        if (!found(source, tag, probes, status)) return nb::none();
        const int from = mpi_->source(status), label = mpi_->tag(status), n = mpi_->tags_per_tag;
        uint64_t bytes = mpi_->bytes(status);
        nb::object memory = room(bytes);  // before the message is matched: it cannot be given back
        int matched = 0;                  // it stays 0 if another thread receives the message meanwhile
        Handle message = 0;
        mpi_->call_with_comm(
            [&] { return mpi_->functions->improbe(from, label, mpi_->comm, matched, message, status); });
        if (!matched) return nb::none();
        if (bytes != mpi_->bytes(status)) {  // another thread has received that message, and this is the next
            bytes = mpi_->bytes(status);
            memory = room(bytes);
        }
        MpiRequest request(mpi_, memory);
        request.begin(bytes, 1, [&](int count, Handle type) {
            return mpi_->functions->imrecv(PyByteArray_AS_STRING(memory.ptr()), count, type, message, request.handle);
        });
        return nb::make_tuple(from, label / n, label % n, memory, pending(std::move(request)));
    }

private:
    static nb::object pending(MpiRequest request) {
        return request.complete() ? nb::none() : nb::cast(std::move(request), nb::rv_policy::move);
    }
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
        .def("recv", &MpiMessages::recv, nb::arg("ptr"), nb::arg("bytes"), nb::arg("source"), nb::arg("tag"),
             nb::arg("keep").none())
        .def("find", &MpiMessages::find, nb::arg("source"), nb::arg("tag"), nb::arg("probes"))
        .def("close", &MpiMessages::close, nb::arg("error"))
        .def("take", &MpiMessages::take, nb::arg("source"), nb::arg("tag"), nb::arg("probes"));
}
