// The operations of a group as one function that XLA calls, in the order of the token that it takes and gives.
//
// The structures are the part that this needs of XLA's C interface (include/xla/ffi/api/c_api.h of jaxlib), whose minor
// versions only append to them: the function serves every jaxlib, and is compiled without one.
#include <cstring>
#include <string>

#include "bindings.hpp"
#include "rankwise.h"

namespace {

namespace xla {

constexpr int kMetadata = 1, kInternalError = 13;
constexpr int kOldest = 1;  // minor version, of jaxlib 0.8, which does not say its version

struct Metadata {
    size_t size, version_size;
    void* version_extension;
    int major, minor;
    uint32_t traits;
    int64_t state;
};
struct Extension {
    size_t size;
    int type;
    Extension* next;
    Metadata* metadata;
};
struct Text {
    const char* data;
    size_t length;
};
struct Integers {
    int dtype;
    size_t count;
    const void* data;
};
struct Buffer {
    void* head[2];
    int dtype;
    void* data;
};
struct Buffers {
    void* head[2];
    int64_t count;
    const int* types;
    Buffer** all;
};
struct Attributes {
    void* head[2];
    int64_t count;
    const int* types;
    Text** names;  // in alphabetical order
    void** values;
};
struct Error;
struct ErrorText {
    size_t size;
    void* extension;
    const char* text;
    int code;
};
struct Api {
    void *head[2], *version_head[2];
    int major, minor;
    const void* internal;
    Error* (*make_error)(ErrorText*);
};
struct Frame {
    size_t size;
    const Extension* extension;
    const Api* api;
    void* context;
    int stage;
    Buffers arguments, results;
    Attributes attributes;
};

}  // namespace xla

enum What {
    kBarrier,
    kBroadcast,
    kAllReduce,
    kAllGather,
    kReduceScatter,
    kAllToAll,
    kSendrecv,
    kNothing
};  // as in frontends/jax/calls.py

struct Call {
    int64_t what, handle, op, dtype, count, bytes, peer, source, tag, line;
};  // as in frontends/jax/calls.py; bytes: of the argument

// The status of the first error; the receive has ended when this returns.
int sendrecv(rankwise_comm comm, const Call& call, const void* x, void* y) {
    const auto dtype = rankwise_dtype(call.dtype);
    const auto count = uint64_t(call.count);
    rankwise_request received = nullptr;
    int status = RANKWISE_OK;
    if (call.source >= 0) status = rankwise_irecv(comm, y, count, dtype, int(call.source), int(call.tag), &received);
    if (!status && call.peer >= 0) status = rankwise_send(comm, x, count, dtype, int(call.peer), int(call.tag));
    if (!status) status = rankwise_wait(&received, -1, nullptr);
    rankwise_cancel(&received);
    return status;
}

int run(const Call& call, const void* x, void* y) {
    const rankwise_comm comm = rankwise_from_handle(uint64_t(call.handle));
    const auto dtype = rankwise_dtype(call.dtype);
    const auto op = rankwise_op(call.op);
    const auto count = uint64_t(call.count);
    if ((call.what == kBroadcast || call.what == kAllReduce) && x != y) std::memcpy(y, x, size_t(call.bytes));
    if (call.what == kSendrecv && call.source < 0) std::memset(y, 0, size_t(call.bytes));
    switch (call.what) {
    case kBarrier: return rankwise_barrier(comm);
    case kBroadcast: return rankwise_broadcast(comm, y, count, dtype, int(call.peer));
    case kAllReduce: return rankwise_all_reduce(comm, y, count, dtype, op);
    case kAllGather: return rankwise_all_gather(comm, x, y, count, dtype);
    case kReduceScatter: return rankwise_reduce_scatter(comm, x, y, count, dtype, op);
    case kAllToAll: return rankwise_all_to_all(comm, x, y, count, dtype);
    case kSendrecv: return sendrecv(comm, call, x, y);
    default: return RANKWISE_OK;
    }
}

xla::Error* called_by_xla(xla::Frame* frame) {
    if (frame->extension && frame->extension->type == xla::kMetadata) {
        const int minor = frame->api ? frame->api->minor : xla::kOldest;
        *frame->extension->metadata = {sizeof(xla::Metadata), 3 * sizeof(void*), nullptr, 0, minor, 0, 0};
        return nullptr;
    }
    void* const* const attributes = frame->attributes.values;
    const auto text = [&](int i) {
        const auto& given = *static_cast<const xla::Text*>(attributes[i]);
        return std::string(given.data, given.length);
    };
    const std::string file = text(0), function = text(1);
    const auto& call = *static_cast<const Call*>(static_cast<const xla::Integers*>(attributes[2])->data);
    rankwise_at(file.c_str(), int(call.line), function.c_str());
    if (!run(call, frame->arguments.all[0]->data, frame->results.all[0]->data)) return nullptr;
    xla::ErrorText error{sizeof(xla::ErrorText), nullptr, rankwise_error_message(), xla::kInternalError};
    return frame->api->make_error(&error);
}

}  // namespace

void bind_jax(nb::module_& m) {
    m.attr("jax_call") = nb::capsule(reinterpret_cast<void*>(&called_by_xla), "xla._CUSTOM_CALL_TARGET");
}
