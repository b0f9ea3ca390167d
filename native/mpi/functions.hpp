// The functions of an MPI that mpi4py has loaded, called directly: a call by way of Python takes as long as a short
// message. MPI implementations have no binary interface in common, so Python passes the addresses of the functions, the
// handles, and where a status has its fields (backends/mpi/functions.py).
#pragma once
#include <atomic>
#include <chrono>
#include <climits>
#include <cstring>
#include <memory>
#include <thread>

#include "bindings.hpp"

namespace mpi {

using Handle = uint64_t;  // holds one of MPI's, which is an int or a pointer

struct Status {
    alignas(16) char data[64];  // STATUS in backends/mpi/functions.py
    int at(size_t offset) const {
        int field;
        std::memcpy(&field, data + offset, sizeof field);
        return field;
    }
};

// The functions of an MPI, each of which returns an error code.
class Functions {
public:
    virtual ~Functions() = default;
    virtual int isend(const void* x, int count, Handle type, int dest, int tag, Handle comm, Handle& request) const = 0;
    virtual int irecv(void* x, int count, Handle type, int source, int tag, Handle comm, Handle& request) const = 0;
    virtual int test(Handle& request, int& flag, Status& status) const = 0;
    virtual int iprobe(int source, int tag, Handle comm, int& flag, Status& status) const = 0;
    virtual int improbe(int source, int tag, Handle comm, int& flag, Handle& message, Status& status) const = 0;
    virtual int imrecv(void* x, int count, Handle type, Handle& message, Handle& request) const = 0;
    virtual int get_elements(const Status& status, Handle type, int64_t& count) const = 0;
};

// H: the type of this MPI's handles.
template <class H> class FunctionsOf final : public Functions {
public:
    // addresses: of MPI_Isend, MPI_Irecv, and so on, in the order of the methods.
    explicit FunctionsOf(const std::vector<Address>& addresses) {
        size_t i = 0;
        const auto next = [&](auto& function) {
            function = reinterpret_cast<std::decay_t<decltype(function)>>(pointer(addresses.at(i++)));
        };
        next(isend_), next(irecv_), next(test_), next(iprobe_), next(improbe_), next(imrecv_), next(get_elements_);
    }
    int isend(const void* x, int count, Handle type, int dest, int tag, Handle comm, Handle& request) const override {
        return isend_(x, count, of(type), dest, tag, of(comm), InOut(request));
    }
    int irecv(void* x, int count, Handle type, int source, int tag, Handle comm, Handle& request) const override {
        return irecv_(x, count, of(type), source, tag, of(comm), InOut(request));
    }
    int test(Handle& request, int& flag, Status& status) const override {
        return test_(InOut(request), &flag, status.data);
    }
    int iprobe(int source, int tag, Handle comm, int& flag, Status& status) const override {
        return iprobe_(source, tag, of(comm), &flag, status.data);
    }
    int improbe(int source, int tag, Handle comm, int& flag, Handle& message, Status& status) const override {
        return improbe_(source, tag, of(comm), &flag, InOut(message), status.data);
    }
    int imrecv(void* x, int count, Handle type, Handle& message, Handle& request) const override {
        return imrecv_(x, count, of(type), InOut(message), InOut(request));
    }
    int get_elements(const Status& status, Handle type, int64_t& count) const override {
        return get_elements_(status.data, of(type), &count);
    }

private:
    static H of(Handle handle) {
        H h;
        static_assert(sizeof h <= sizeof handle);
        std::memcpy(&h, &handle, sizeof h);
        return h;
    }
    // Passes a handle to a function that changes it.
    class InOut {
    public:
        explicit InOut(Handle& handle) : handle_(handle), h_(of(handle)) {}
        ~InOut() { std::memcpy(&handle_, &h_, sizeof h_); }
        InOut(const InOut&) = delete;
        operator H*() { return &h_; }

    private:
        Handle& handle_;
        H h_;
    };
    int (*isend_)(const void*, int, H, int, int, H, H*);
    int (*irecv_)(void*, int, H, int, int, H, H*);
    int (*test_)(H*, int*, void*);
    int (*iprobe_)(int, int, H, int*, void*);
    int (*improbe_)(int, int, H, int*, H*, void*);
    int (*imrecv_)(void*, int, H, H*, H*);
    int (*get_elements_)(const void*, H, int64_t*);
};

// One communicator of MPI, as its messages need it.
struct Comm {
    Comm(std::unique_ptr<const Functions> functions_, Handle comm_, Handle byte_, int any_source_, int any_tag_,
         int tags_per_tag_, size_t source_at_, size_t tag_at_, nb::object exception_, nb::object wide_)
        : functions(std::move(functions_)), comm(comm_), byte(byte_), any_source(any_source_), any_tag(any_tag_),
          tags_per_tag(tags_per_tag_), source_at(source_at_), tag_at(tag_at_), exception(std::move(exception_)),
          wide(std::move(wide_)) {}
    const std::unique_ptr<const Functions> functions;
    const Handle comm, byte;
    int any_source, any_tag, tags_per_tag;
    size_t source_at, tag_at;    // offsets in a status
    nb::object exception, wide;  // mpi4py's Exception; wide(bytes): the handle of a datatype of that size

    // f calls a function of MPI and returns its error code.
    template <class F> void call(const F& f) const {
        if (const int code = without_gil(f)) raise(code);
    }
    // The same with the communicator, which `close` waits for.
    template <class F> void call_with_comm(const F& f) const {
        call([&] {
            ++inside;
            const int code = closed ? closed.load() : f();
            --inside;
            return code;
        });
    }
    // The communicator will be freed; later calls with it raise this error.
    void close(int error) const {
        without_gil([&] {
            closed = error;
            while (inside) std::this_thread::sleep_for(std::chrono::microseconds(20));
        });
    }
    // f(count, datatype), which describe that many bytes.
    template <class F> void sized(uint64_t bytes, const F& f) const {
        if (bytes <= INT_MAX) return f(int(bytes), byte);
        f(1, nb::cast<Handle>(wide(bytes)));
    }
    int source(const Status& s) const { return s.at(source_at); }
    int tag(const Status& s) const { return s.at(tag_at); }
    uint64_t bytes(const Status& s) const {
        int64_t count = 0;
        functions->get_elements(s, byte, count);
        return uint64_t(count);
    }

private:
    mutable std::atomic<int> inside = 0, closed = 0;
    [[noreturn]] void raise(int code) const {
        PyErr_SetObject(exception.ptr(), nb::int_(code).ptr());
        nb::raise_python_error();
    }
};

}  // namespace mpi
