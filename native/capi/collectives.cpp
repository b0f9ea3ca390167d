// The collectives of rankwise.h.
#include "handles.hpp"

using namespace rankwise;
using namespace rankwise::capi;

namespace {

Counts counts_of(const Comm& comm, const uint64_t* counts, const char* argument) {
    if (!counts) throw BadArgument(std::string(argument) + ": NULL given, expected a count for each rank");
    Counts all(counts, counts + comm.world_size());
    for (const uint64_t count : all) checked(count);
    return all;
}

}  // namespace

int rankwise_barrier(rankwise_comm comm) {
    return guarded([&] { checked(comm).barrier(); });
}

int rankwise_broadcast(rankwise_comm comm, void* data, uint64_t count, rankwise_dtype dtype, int root) {
    return guarded([&] { checked(comm).broadcast(memory(data, count, "data"), count, checked(dtype), root); });
}

int rankwise_all_reduce(rankwise_comm comm, void* data, uint64_t count, rankwise_dtype dtype, rankwise_op op) {
    return guarded([&] { checked(comm).all_reduce(memory(data, count, "data"), count, checked(dtype), checked(op)); });
}

int rankwise_reduce(rankwise_comm comm, void* data, uint64_t count, rankwise_dtype dtype, rankwise_op op, int root) {
    return guarded(
        [&] { checked(comm).reduce(memory(data, count, "data"), count, checked(dtype), checked(op), root); });
}

int rankwise_all_gather(rankwise_comm comm, const void* send, void* recv, uint64_t count, rankwise_dtype dtype) {
    return guarded([&] {
        checked(comm).all_gather(memory(send, count, "send"), memory(recv, count, "recv"), count, checked(dtype));
    });
}

int rankwise_gather(rankwise_comm comm, const void* send, void* recv, uint64_t count, rankwise_dtype dtype, int root) {
    return guarded([&] {
        Comm& c = checked(comm);
        if (c.rank() == root) memory(recv, count, "recv");
        c.gather(memory(send, count, "send"), recv, count, checked(dtype), root);
    });
}

int rankwise_scatter(rankwise_comm comm, const void* send, void* recv, uint64_t count, rankwise_dtype dtype, int root) {
    return guarded([&] {
        Comm& c = checked(comm);
        if (c.rank() == root) memory(send, count, "send");
        c.scatter(send, memory(recv, count, "recv"), count, checked(dtype), root);
    });
}

int rankwise_reduce_scatter(rankwise_comm comm, const void* send, void* recv, uint64_t count, rankwise_dtype dtype,
                            rankwise_op op) {
    return guarded([&] {
        checked(comm).reduce_scatter(memory(send, count, "send"), memory(recv, count, "recv"), count, checked(dtype),
                                     checked(op));
    });
}

int rankwise_all_to_all(rankwise_comm comm, const void* send, void* recv, uint64_t count, rankwise_dtype dtype) {
    return guarded([&] {
        checked(comm).all_to_all(memory(send, count, "send"), memory(recv, count, "recv"), count, checked(dtype));
    });
}

int rankwise_all_gather_v(rankwise_comm comm, const void* send, void* recv, const uint64_t* counts,
                          rankwise_dtype dtype) {
    return guarded([&] {
        Comm& c = checked(comm);
        c.all_gather_v(send, recv, counts_of(c, counts, "counts"), checked(dtype));
    });
}

int rankwise_gather_v(rankwise_comm comm, const void* send, void* recv, const uint64_t* counts, rankwise_dtype dtype,
                      int root) {
    return guarded([&] {
        Comm& c = checked(comm);
        c.gather_v(send, recv, counts_of(c, counts, "counts"), checked(dtype), root);
    });
}

int rankwise_scatter_v(rankwise_comm comm, const void* send, void* recv, const uint64_t* counts, rankwise_dtype dtype,
                       int root) {
    return guarded([&] {
        Comm& c = checked(comm);
        c.scatter_v(send, recv, counts_of(c, counts, "counts"), checked(dtype), root);
    });
}

int rankwise_reduce_scatter_v(rankwise_comm comm, const void* send, void* recv, const uint64_t* counts,
                              rankwise_dtype dtype, rankwise_op op) {
    return guarded([&] {
        Comm& c = checked(comm);
        c.reduce_scatter_v(send, recv, counts_of(c, counts, "counts"), checked(dtype), checked(op));
    });
}

int rankwise_all_to_all_v(rankwise_comm comm, const void* send, void* recv, const uint64_t* send_counts,
                          const uint64_t* recv_counts, rankwise_dtype dtype) {
    return guarded([&] {
        Comm& c = checked(comm);
        c.all_to_all_v(send, recv, counts_of(c, send_counts, "send_counts"), counts_of(c, recv_counts, "recv_counts"),
                       checked(dtype));
    });
}
