// The loads and stores of an operation and nothing else, for `rankwise bench --bound`: the lower bound for any library
// that moves the data of private arrays with these cores.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>

#include "bench.hpp"
#include "kernels/copy.hpp"
#include "kernels/kernels.hpp"
#include "pinned.hpp"

using namespace rankwise;

namespace {

constexpr size_t kPiece = 64 << 10;  // bytes that are read once and then, from the cache, written to every destination

// Copies `bytes` of one source, or reduces several sources, to one or more destinations.
struct Move {
    std::vector<const uint8_t*> from;
    std::vector<uint8_t*> to;
    size_t bytes;
};

// The arrays of all ranks: x[r] and out[r]; out[r] is null if rank r receives nothing.
struct RankArrays {
    std::vector<uint8_t*> x, out;
    size_t bytes;  // of one x
    std::vector<Move> moves(const std::string& operation) const {
        const size_t n = x.size(), part = bytes / n;
        const std::vector<const uint8_t*> all(x.begin(), x.end());
        std::vector<Move> list;
        for (size_t r = 0; r < n; ++r) {
            std::vector<const uint8_t*> parts;
            for (const uint8_t* p : all) parts.push_back(p + r * part);
            if (operation == "all_gather") {
                std::vector<uint8_t*> to;
                for (uint8_t* p : out) to.push_back(p + r * bytes);
                list.push_back({{x[r]}, to, bytes});
            } else if (operation == "gather") list.push_back({{x[r]}, {out[0] + r * bytes}, bytes});
            else if (operation == "scatter") list.push_back({{x[0] + r * part}, {out[r]}, part});
            else if (operation == "reduce_scatter") list.push_back({parts, {out[r]}, part});
            else if (operation == "all_to_all")
                for (size_t p = 0; p < n; ++p) list.push_back({{x[p] + r * part}, {out[r] + p * part}, part});
            else if (operation == "send_recv") {
                if ((r ^ 1) < n) list.push_back({{x[r]}, {out[r ^ 1]}, bytes});
            }
        }
        if (operation == "all_reduce") list.push_back({all, x, bytes});
        if (operation == "reduce") list.push_back({all, {x[0]}, bytes});
        if (operation == "broadcast") list.push_back({{x[0]}, {x.begin() + 1, x.end()}, bytes});
        if (list.empty()) throw BadArgument("operation: '" + operation + "' given, expected one that moves data");
        return list;
    }
};

// Part `which` of `parts` of a move.
void run_part(const Move& move, size_t which, size_t parts, size_t item, ReduceKernel kernel, Copy copy) {
    const auto border = [&](size_t i) { return i == parts ? move.bytes : move.bytes * i / parts / 64 * 64; };
    const int n = int(move.from.size());
    for (size_t at = border(which), end = border(which + 1); at < end; at += kPiece) {
        const size_t length = std::min(kPiece, end - at);
        const uint8_t* source = move.from[0] + at;
        if (n > 1) {
            const void* sources[kMaxRanks];
            for (int i = 0; i < n; ++i) sources[i] = move.from[size_t(i)] + at;
            kernel(move.to[0] + at, sources, n, length / item, n);
            source = move.to[0] + at;
        }
        for (uint8_t* to : move.to)
            if (to + at != source) copy(to + at, source, length);
    }
}

std::vector<double> bound_seconds(const std::string& operation, const std::vector<Address>& x,
                                  const std::vector<Address>& out, uint64_t count, int dtype, int op,
                                  uint64_t iterations, uint64_t batches) {
    const size_t item = itemsize(checked_dtype(dtype));
    RankArrays arrays{{}, {}, count * item};
    for (Address a : x) arrays.x.push_back(static_cast<uint8_t*>(pointer(a)));
    for (Address a : out) arrays.out.push_back(static_cast<uint8_t*>(pointer(a)));
    const std::vector<Move> moves = arrays.moves(operation);
    const ReduceKernel kernel = reduce_kernel(checked_dtype(dtype), checked_op(op));
    size_t written = 0;
    for (const Move& move : moves) written += move.bytes * move.to.size();
    const Copy copy = copy_for(written >= non_temporal_from());

    ReleaseGil released;
    const size_t workers = std::min(x.size(), size_t(usable_cores()));
    std::vector<std::vector<double>> took(workers);
    std::barrier batch_start{std::ptrdiff_t(workers)};
    run_pinned(workers, [&](int w) {
        for (uint64_t batch = 0; batch < batches; ++batch) {
            batch_start.arrive_and_wait();
            const auto start = Clock::now();
            for (uint64_t i = 0; i < iterations; ++i)
                for (const Move& move : moves) run_part(move, size_t(w), workers, item, kernel, copy);
            took[size_t(w)].push_back(std::chrono::duration<double>(Clock::now() - start).count());
        }
    });
    std::vector<double> slowest = took[0];
    for (const auto& one : took)
        for (size_t batch = 0; batch < batches; ++batch) slowest[batch] = std::max(slowest[batch], one[batch]);
    return slowest;
}

}  // namespace

void bind_bound(nb::module_& m) {
    m.def(
        "bound_seconds", &bound_seconds, nb::arg("operation"), nb::arg("x"), nb::arg("out"), nb::arg("count"),
        nb::arg("dtype"), nb::arg("op"), nb::arg("iterations"), nb::arg("batches"),
        "The seconds that each of `batches` batches took, each of which does the loads and stores of an operation\n"
        "`iterations` times, with one thread per core, on the arrays of all ranks: addresses `x`, of `count` elements\n"
        "each, and `out`, 0 if a rank has none. Each thread always does the same part, so only the data itself moves.");
}
