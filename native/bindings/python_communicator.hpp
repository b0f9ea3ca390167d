// What the shortcuts call: the engine's communicator, or one in Python, in one form.
#pragma once
#include <vector>

#include "bindings.hpp"

class PythonCommunicator;

// What a call on a plain array takes besides its operands. C: the engine's Comm or PythonCommunicator.
template <class C> class ArrayCall;
template <> class ArrayCall<rankwise::Comm> {
public:
    // bytes: how much data is moved.
    explicit ArrayCall(size_t bytes = 0, const rankwise::Description& description = {})
        : released_(bytes), options_(released_.options(description)) {}
    operator const rankwise::CallOptions&() const { return options_; }

private:
    ReleaseGilToWait released_;
    const rankwise::CallOptions options_;
};
// Its calls need the GIL.
template <> class ArrayCall<PythonCommunicator> {
public:
    explicit ArrayCall(size_t = 0, const rankwise::Description& description = {}) : description_(description) {}
    const rankwise::Description& description() const { return description_; }

private:
    const rankwise::Description description_;
};

// A communicator implemented in Python over another library, whose collectives are complete when they return.
class PythonCommunicator {
public:
    // methods: the communicator's methods, in the order of Method; send and recv must also complete before they return.
    // shapes: the collectives take the array's shape, or None, as one more argument. dtypes, ops: the contract's enum
    // members, indexed by their numbers.
    PythonCommunicator(int rank, int world_size, std::vector<nb::object> methods, bool shapes,
                       std::vector<nb::object> dtypes, std::vector<nb::object> ops)
        : rank_(rank), world_size_(world_size), methods_(std::move(methods)), shapes_(shapes),
          dtypes_(std::move(dtypes)), ops_(std::move(ops)) {
        if (methods_.size() != kMethods)
            throw rankwise::BadArgument("methods: " + std::to_string(methods_.size()) + " given, expected " +
                                        std::to_string(kMethods));
    }

    PythonCommunicator(const PythonCommunicator&) = delete;

    using Options = const ArrayCall<PythonCommunicator>&;
    int rank() const { return rank_; }
    int world_size() const { return world_size_; }
    void all_reduce(void* x, uint64_t count, rankwise::DType d, rankwise::ReduceOp op, Options o) {
        described(o, AllReduce, at(x), count, of(d), of(op));
    }
    void reduce(void* x, uint64_t count, rankwise::DType d, rankwise::ReduceOp op, int root, Options o) {
        described(o, Reduce, at(x), count, of(d), of(op), root);
    }
    void broadcast(void* x, uint64_t count, rankwise::DType d, int root, Options o) {
        described(o, Broadcast, at(x), count, of(d), root);
    }
    void all_gather(const void* x, void* out, uint64_t count, rankwise::DType d, Options o) {
        described(o, AllGather, at(x), at(out), count, of(d));
    }
    void gather(const void* x, void* out, uint64_t count, rankwise::DType d, int root, Options o) {
        described(o, Gather, at(x), at(out), count, of(d), root);
    }
    void scatter(const void* x, void* out, uint64_t count, rankwise::DType d, int root, Options o) {
        described(o, Scatter, at(x), at(out), count, of(d), root);
    }
    void reduce_scatter(const void* x, void* out, uint64_t count, rankwise::DType d, rankwise::ReduceOp op, Options o) {
        described(o, ReduceScatter, at(x), at(out), count, of(d), of(op));
    }
    void all_to_all(const void* x, void* out, uint64_t count, rankwise::DType d, Options o) {
        described(o, AllToAll, at(x), at(out), count, of(d));
    }
    PythonCommunicator& messages() { return *this; }
    void send_now(const void* x, uint64_t count, rankwise::DType d, int to, int tag, Options) {
        call(Send, at(x), count, of(d), to, tag);
    }
    void recv_now(void* x, uint64_t count, rankwise::DType d, int from, int tag, Options) {
        call(Recv, at(x), count, of(d), from, tag);
    }
    // Several calls, with no other thread's in between.
    template <class F> void calls(const F& function) {
        call(Calls, nb::cpp_function([&function] { function(); }));
    }

private:
    enum Method {
        AllReduce,
        Reduce,
        Broadcast,
        AllGather,
        Gather,
        Scatter,
        ReduceScatter,
        AllToAll,
        Send,
        Recv,
        Calls,
        kMethods
    };
    // A collective, whose ranks may compare the shapes of the arrays.
    template <class... A> void described(Options options, Method method, const A&... args) {
        if (shapes_) call(method, args..., shape(options.description()));
        else call(method, args...);
    }
    static nb::object shape(const rankwise::Description& d) {
        if (d.none()) return nb::none();
        nb::list shape;
        for (int i = 0; i < d.dims; ++i) shape.append(d.dim[i]);
        return nb::tuple(shape);
    }
    template <class... A> void call(Method method, const A&... args) {
        acquiring_gil([&] { return methods_[method](args...); });
    }
    static Address at(const void* p) { return Address(p); }
    const nb::object& of(rankwise::DType d) const { return dtypes_[size_t(d)]; }
    const nb::object& of(rankwise::ReduceOp op) const { return ops_[size_t(op)]; }

    int rank_, world_size_;
    std::vector<nb::object> methods_;
    bool shapes_;
    std::vector<nb::object> dtypes_, ops_;
};
