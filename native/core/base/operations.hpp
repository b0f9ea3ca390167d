// The operations, and a call of one as ranks compare it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include "base/types.hpp"

namespace rankwise {

enum class Op : uint8_t {
    None,
    Barrier,
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    Gather,
    Scatter,
    ReduceScatter,
    AllToAll,
    AllGatherV,
    GatherV,
    ScatterV,
    ReduceScatterV,
    AllToAllV,
    Split,
    Send,
    Recv,
    Sync,
    Close,
    Join,
    ScatterSized,
    ScatterEvenly,
    GatherSized,
    GatherRows,
    AllGatherRows,
    AllToAllRows,
    Scan,
    Exscan,
    // The next three are not collectives; only the trace names them.
    Shrink,
    Agree,
    Restore,
};
// Which arguments the calls of an operation have.
enum Argument : uint8_t {
    kElements = 1,  // a number of elements and their dtype
    kCounts = 2,    // a number for each rank in place of one number
    kReduction = 4,
    kRoot = 8,
    kRow = 16,  // the elements of a row, in place of their number
};

struct OperationRow {
    Op op;
    const char* name;
    uint8_t has = 0;        // Arguments
    Op variant = Op::None;  // the next operation that runs the same algorithms; all_to_all_v has its own
};

// All there is to know about the operations: checks, digests, texts, traces and bindings follow from it.
inline constexpr OperationRow kOperations[] = {
    {Op::None, "none"},
    {Op::Barrier, "barrier"},
    {Op::AllReduce, "all_reduce", kElements | kReduction},
    {Op::Broadcast, "broadcast", kElements | kRoot},
    {Op::Reduce, "reduce", kElements | kReduction | kRoot},
    {Op::AllGather, "all_gather", kElements, Op::AllGatherV},
    {Op::Gather, "gather", kElements | kRoot, Op::GatherV},
    {Op::Scatter, "scatter", kElements | kRoot, Op::ScatterV},
    {Op::ReduceScatter, "reduce_scatter", kElements | kReduction, Op::ReduceScatterV},
    {Op::AllToAll, "all_to_all", kElements},
    {Op::AllGatherV, "all_gather_v", kElements | kCounts, Op::AllGatherRows},
    {Op::GatherV, "gather_v", kElements | kCounts | kRoot},
    {Op::ScatterV, "scatter_v", kElements | kCounts | kRoot, Op::ScatterSized},
    {Op::ReduceScatterV, "reduce_scatter_v", kElements | kCounts | kReduction},
    {Op::AllToAllV, "all_to_all_v", kElements | kCounts},
    {Op::Split, "split"},
    {Op::Send, "send", kElements},
    {Op::Recv, "recv", kElements},
    {Op::Sync, "sync"},
    {Op::Close, "close"},
    {Op::Join, "init"},
    {Op::ScatterSized, "scatter_v", kRoot, Op::ScatterEvenly},
    {Op::ScatterEvenly, "scatter", kRoot},
    {Op::GatherSized, "gather", kRoot},
    {Op::GatherRows, "gather_v", kElements | kRow | kRoot},
    {Op::AllGatherRows, "all_gather_v", kElements | kRow},
    {Op::AllToAllRows, "all_to_all_v", kElements | kRow},
    {Op::Scan, "scan", kElements | kReduction},
    {Op::Exscan, "exscan", kElements | kReduction},
    {Op::Shrink, "shrink"},
    {Op::Agree, "agree"},
    {Op::Restore, "restore"},
};
inline constexpr size_t kOps = std::size(kOperations);
static_assert([] {
    for (size_t i = 0; i < kOps; ++i)
        if (size_t(kOperations[i].op) != i) return false;
    return true;
}());

constexpr const OperationRow& row_of(Op op) { return kOperations[size_t(op)]; }
// "unknown" for what a stray write has put in place of an operation.
constexpr const char* name(Op op) { return size_t(op) < kOps ? row_of(op).name : "unknown"; }
constexpr bool is_message(Op op) { return op == Op::Send || op == Op::Recv; }
// The first operation of this name. Throws BadArgument.
Op op_named(const std::string& name);

// A call of a collective, as ranks compare it.
struct Call {
    uint64_t what;    // Op | dtype << 8 | op << 16 | root << 32
    uint64_t amount;  // number of elements, or a digest of the counts of a vector collective
    bool operator==(const Call&) const = default;
    Op op() const { return Op(what & 0xff); }
    DType dtype() const { return DType(what >> 8 & 0xff); }
    ReduceOp reduce() const { return ReduceOp(what >> 16 & 0x7); }
    int root() const { return int32_t(what >> 32); }
    bool has(Argument argument) const { return size_t(op()) < kOps && row_of(op()).has & argument; }
    std::string to_string() const;  // "all_reduce(count=3, dtype=float32, op=sum)"
};
// What the array level adds to a Call. The ranks compare it too, and a mismatch shows it.
struct Description {
    Op operation = Op::None;  // the operation that the program called, if it is composed of others
    int dims = 1;             // dimensions of the arrays; the count already describes a single one
    const int64_t* dim = nullptr;
    bool none() const { return operation == Op::None && dims == 1; }
    uint64_t digest() const;  // never 0
};

constexpr Call make_call(Op op, DType dtype = DType::U8, ReduceOp reduce = ReduceOp::SUM, int root = 0,
                         uint64_t amount = 0) {
    return {uint64_t(op) | uint64_t(dtype) << 8 | uint64_t(reduce) << 16 | uint64_t(uint32_t(root)) << 32, amount};
}

}  // namespace rankwise
