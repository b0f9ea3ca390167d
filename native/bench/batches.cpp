// Timing of operations with no Python in between, for `rankwise bench --native`.
#include <chrono>
#include <functional>

#include "bench.hpp"

using namespace rankwise;

namespace {

struct Arrays {
    void* x;
    void* out;
    uint64_t count;
    DType dtype;
    ReduceOp op;
};

void ping_pong(Comm& c, const Arrays& a) {
    const int partner = c.rank() ^ 1;
    if (partner >= c.world_size()) return;
    if (c.rank() < partner) c.messages().send_now(a.x, a.count, a.dtype, partner, 0);
    c.messages().recv_now(a.out, a.count, a.dtype, partner, 0);
    if (c.rank() > partner) c.messages().send_now(a.x, a.count, a.dtype, partner, 0);
}

// The root of one-to-all and all-to-one operations is rank 0.
std::function<void()> call_of(Comm& c, const std::string& operation, const Arrays& a) {
    if (operation == "barrier") return [&c] { c.barrier(); };
    if (operation == "all_reduce") return [&c, a] { c.all_reduce(a.x, a.count, a.dtype, a.op); };
    if (operation == "broadcast") return [&c, a] { c.broadcast(a.x, a.count, a.dtype, 0); };
    if (operation == "reduce") return [&c, a] { c.reduce(a.x, a.count, a.dtype, a.op, 0); };
    if (operation == "all_gather") return [&c, a] { c.all_gather(a.x, a.out, a.count, a.dtype); };
    if (operation == "gather") return [&c, a] { c.gather(a.x, a.out, a.count, a.dtype, 0); };
    if (operation == "scatter") return [&c, a] { c.scatter(a.x, a.out, a.count, a.dtype, 0); };
    if (operation == "reduce_scatter") return [&c, a] { c.reduce_scatter(a.x, a.out, a.count, a.dtype, a.op); };
    if (operation == "all_to_all") return [&c, a] { c.all_to_all(a.x, a.out, a.count, a.dtype); };
    if (operation == "send_recv") return [&c, a] { ping_pong(c, a); };
    throw BadArgument("operation: '" + operation + "' given, expected one that can be timed");
}

std::vector<double> time_batches(nb::handle comm, const std::string& operation, Address x, Address out, uint64_t count,
                                 int dtype, int op, uint64_t iterations, uint64_t batches) {
    Comm* engine = nullptr;
    if (!nb::try_cast(comm, engine) || !engine)
        throw BadArgument("comm: expected a communicator of the native engine, which this backend does not use");
    Comm& c = *engine;
    const auto call = call_of(c, operation, {pointer(x), pointer(out), count, checked_dtype(dtype), checked_op(op)});
    std::vector<double> seconds;
    seconds.reserve(batches);
    ReleaseGil released;
    for (uint64_t batch = 0; batch < batches; ++batch) {
        c.barrier();
        const auto start = std::chrono::steady_clock::now();
        for (uint64_t i = 0; i < iterations; ++i) call();
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return seconds;
}

}  // namespace

void bind_batches(nb::module_& m) {
    m.def(
        "time_batches", &time_batches, nb::arg("comm"), nb::arg("operation"), nb::arg("x"), nb::arg("out"),
        nb::arg("count"), nb::arg("dtype"), nb::arg("op"), nb::arg("iterations"), nb::arg("batches"),
        "The seconds that each of `batches` batches of `iterations` calls took on this rank; a barrier precedes each.");
}
