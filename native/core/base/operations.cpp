#include "base/operations.hpp"

#include <iterator>

#include "base/mix.hpp"

namespace rankwise {

const char* name(Op op) {
    constexpr const char* names[] = {
        "none",         "barrier",        "all_reduce", "broadcast",    "reduce",   "all_gather", "gather",
        "scatter",      "reduce_scatter", "all_to_all", "all_gather_v", "gather_v", "scatter_v",  "reduce_scatter_v",
        "all_to_all_v", "split",          "send",       "recv",         "sync",     "close",      "init",
        "scatter",      "scan",           "exscan",     "shrink",       "agree",    "restore"};
    return size_t(op) < std::size(names) ? names[size_t(op)] : "unknown";
}

Call make_call(Op op, DType dtype, ReduceOp reduce, int root, uint64_t amount) {
    return {uint64_t(op) | uint64_t(dtype) << 8 | uint64_t(reduce) << 16 | uint64_t(uint32_t(root)) << 32, amount};
}

uint64_t Description::digest() const {
    uint64_t result = mix(0x5eed, uint64_t(operation) << 8 | uint64_t(dims));
    for (int i = 0; i < dims; ++i) result = mix(result, uint64_t(dim[i]));
    return result | 1;
}

bool Call::has_dtype() const {
    return (op() >= Op::AllReduce && op() <= Op::AllToAllV) || op() == Op::Send || op() == Op::Recv;
}

bool Call::reduces() const {
    return op() == Op::AllReduce || op() == Op::Reduce || op() == Op::ReduceScatter || op() == Op::ReduceScatterV;
}

bool Call::has_root() const {
    return op() == Op::Broadcast || op() == Op::Reduce || op() == Op::Gather || op() == Op::Scatter ||
           op() == Op::GatherV || op() == Op::ScatterV || op() == Op::ScatterDescribed;
}

std::string Call::to_string() const {
    std::string text = name(op());
    if (!has_dtype()) return text + (has_root() ? "(root=" + std::to_string(root()) + ")" : "()");
    text += by_rank() ? "(counts#" + std::to_string(amount % 100000) : "(count=" + std::to_string(amount);
    text += std::string(", dtype=") + (uint64_t(dtype()) < kDTypes ? name(dtype()) : "?");
    if (reduces()) text += std::string(", op=") + name(reduce());
    if (has_root()) text += ", root=" + std::to_string(root());
    return text + ")";
}

}  // namespace rankwise
