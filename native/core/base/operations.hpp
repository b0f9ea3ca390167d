// The operations, and a call of one as ranks compare it.
#pragma once
#include <cstdint>
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
    ScatterDescribed,
    Scan,
    Exscan,  // composed of other operations; only a Description names them
    Shrink,
    Agree,
    Restore,  // not collectives; only the trace names them
};
const char* name(Op op);

// A call of a collective, as ranks compare it.
struct Call {
    uint64_t what;    // Op | dtype << 8 | op << 16 | root << 32
    uint64_t amount;  // number of elements, or a digest of the counts of a vector collective
    bool operator==(const Call&) const = default;
    Op op() const { return Op(what & 0xff); }
    DType dtype() const { return DType(what >> 8 & 0xff); }
    ReduceOp reduce() const { return ReduceOp(what >> 16 & 0x7); }
    int root() const { return int32_t(what >> 32); }
    bool has_dtype() const;  // then it has a count too
    bool reduces() const;
    bool has_root() const;
    bool by_rank() const { return op() >= Op::AllGatherV && op() <= Op::AllToAllV; }  // amount is a digest
    std::string to_string() const;  // "all_reduce(count=3, dtype=float32, op=sum)"
};
// What the array level adds to a Call. The ranks compare it too, and a mismatch shows it.
struct Description {
    Op operation = Op::None;  // the operation that the program called, if it is composed of others
    int dims = 1;             // dimensions of the arrays; the count already describes a single one
    const int64_t* dim = nullptr;
    uint64_t digest() const;  // never 0
};
// The description of the next collective that this thread calls, which consumes it; null for none.
[[gnu::tls_model("initial-exec")]] inline thread_local constinit const Description* next_description = nullptr;

Call make_call(Op op, DType dtype = DType::U8, ReduceOp reduce = ReduceOp::SUM, int root = 0, uint64_t amount = 0);

}  // namespace rankwise
