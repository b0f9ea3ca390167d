// The operations of a group as one function that XLA calls, in the order of the token that it takes and gives.
//
// library.py compiles it against the headers of the jaxlib that is installed.
#define RANKWISE_NO_SITES  // the program has made the call, not this file
#include <rankwise.h>

#include <cstring>
#include <string>
#include <string_view>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

enum What {
    kBarrier,
    kBroadcast,
    kAllReduce,
    kAllGather,
    kReduceScatter,
    kAllToAll,
    kSendrecv,
    kNothing
};  // as in calls.py

int dtype_of(ffi::DataType type) {
    switch (type) {
    case ffi::F64: return RANKWISE_F64;
    case ffi::F32: return RANKWISE_F32;
    case ffi::F16: return RANKWISE_F16;
    case ffi::BF16: return RANKWISE_BF16;
    case ffi::F8E4M3FN: return RANKWISE_FP8E4M3;
    case ffi::F8E5M2: return RANKWISE_FP8E5M2;
    case ffi::S64: return RANKWISE_I64;
    case ffi::S32: return RANKWISE_I32;
    case ffi::S16: return RANKWISE_I16;
    case ffi::S8: return RANKWISE_I8;
    case ffi::U64: return RANKWISE_U64;
    case ffi::U32: return RANKWISE_U32;
    case ffi::U16: return RANKWISE_U16;
    case ffi::U8: return RANKWISE_U8;
    case ffi::PRED: return RANKWISE_BOOL;
    case ffi::C64: return RANKWISE_C64;
    case ffi::C128: return RANKWISE_C128;
    default: return -1;
    }
}

ffi::Error outcome(int status) {
    return status == RANKWISE_OK ? ffi::Error::Success() : ffi::Error::Internal(rankwise_error_message());
}

// The status and text of the first error; what has been started ends before this returns.
ffi::Error sendrecv(rankwise_comm comm, const void* x, void* y, uint64_t count, rankwise_dtype dtype, int dest,
                    int source, int tag) {
    rankwise_request sent = nullptr, received = nullptr;
    ffi::Error result;
    if (dest >= 0) result = outcome(rankwise_isend(comm, x, count, dtype, dest, tag, &sent));
    if (result.success() && source >= 0)
        result = outcome(rankwise_irecv(comm, y, count, dtype, source, tag, &received));
    if (result.success() && received) result = outcome(rankwise_wait(&received, -1, nullptr));
    if (result.success() && sent) result = outcome(rankwise_wait(&sent, -1, nullptr));
    if (received) rankwise_cancel(&received);
    if (sent) rankwise_cancel(&sent);
    return result;
}

ffi::Error call(int64_t what, int64_t handle, int64_t op, int64_t peer, int64_t source, int64_t tag,
                std::string_view file, int64_t line, std::string_view function, ffi::RemainingArgs args,
                ffi::RemainingRets rets) {
    if (what == kNothing) return ffi::Error::Success();
    const rankwise_comm comm = rankwise_from_handle(uint64_t(handle));
    const std::string at(file), in(function);
    rankwise_at(at.c_str(), int(line), in.c_str());
    if (what == kBarrier) return outcome(rankwise_barrier(comm));
    const auto given = args.get<ffi::AnyBuffer>(0);
    auto taken = rets.get<ffi::AnyBuffer>(0);
    if (!given || !taken) return ffi::Error::Internal("rankwise: a call without an array");
    const void* const x = given->untyped_data();
    void* const y = (*taken)->untyped_data();
    const auto dtype = rankwise_dtype(dtype_of(given->element_type()));
    const auto reduction = rankwise_op(op);
    const uint64_t count = given->element_count();
    if ((what == kBroadcast || what == kAllReduce) && x != y) std::memcpy(y, x, given->size_bytes());
    if (what == kSendrecv && source < 0) std::memset(y, 0, given->size_bytes());
    switch (what) {
    case kBroadcast: return outcome(rankwise_broadcast(comm, y, count, dtype, int(peer)));
    case kAllReduce: return outcome(rankwise_all_reduce(comm, y, count, dtype, reduction));
    case kAllGather: return outcome(rankwise_all_gather(comm, x, y, count, dtype));
    case kReduceScatter:
        return outcome(rankwise_reduce_scatter(comm, x, y, (*taken)->element_count(), dtype, reduction));
    case kAllToAll: return outcome(rankwise_all_to_all(comm, x, y, count / uint64_t(rankwise_world_size(comm)), dtype));
    case kSendrecv: return sendrecv(comm, x, y, count, dtype, int(peer), int(source), int(tag));
    default: return ffi::Error::Internal("rankwise: an unknown operation");
    }
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(rankwise_jax_call, call,
                              ffi::Ffi::Bind()
                                  .Attr<int64_t>("what")
                                  .Attr<int64_t>("handle")
                                  .Attr<int64_t>("op")
                                  .Attr<int64_t>("peer")
                                  .Attr<int64_t>("source")
                                  .Attr<int64_t>("tag")
                                  .Attr<std::string_view>("file")
                                  .Attr<int64_t>("line")
                                  .Attr<std::string_view>("function")
                                  .RemainingArgs()
                                  .RemainingRets());
