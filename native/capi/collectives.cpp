// The collectives of rankwise.h.
#include <numeric>

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

// Elements of all ranks together.
uint64_t whole(const Comm& comm, uint64_t count) { return checked_bytes(checked(count), size_t(comm.world_size())); }
uint64_t sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), uint64_t(0)); }

// Throws BadArgument unless the memory that a call reads, of this many elements, and the memory that it writes are
// there, and apart.
void check_both(const void* send, uint64_t sent, const void* recv, uint64_t received, rankwise_dtype dtype) {
    const size_t item = itemsize(checked(dtype));
    const auto from = reinterpret_cast<uintptr_t>(memory(send, sent, "send")),
               to = reinterpret_cast<uintptr_t>(memory(recv, received, "recv"));
    const size_t read = checked_bytes(sent, item), written = checked_bytes(received, item);
    if (read && written && from < to + written && to < from + read)
        throw BadArgument("send and recv: memory that overlaps given, expected memory of its own for each");
}

}  // namespace

int rankwise_barrier(rankwise_comm comm) {
    return on(comm, [&](Comm& c) { c.barrier(); });
}

int rankwise_broadcast(rankwise_comm comm, void* data, uint64_t count, rankwise_dtype dtype, int root) {
    return on(comm, [&](Comm& c) { c.broadcast(memory(data, count, "data"), count, checked(dtype), root); });
}

int rankwise_all_reduce(rankwise_comm comm, void* data, uint64_t count, rankwise_dtype dtype, rankwise_op op) {
    return on(comm, [&](Comm& c) { c.all_reduce(memory(data, count, "data"), count, checked(dtype), checked(op)); });
}

int rankwise_reduce(rankwise_comm comm, void* data, uint64_t count, rankwise_dtype dtype, rankwise_op op, int root) {
    return on(comm, [&](Comm& c) { c.reduce(memory(data, count, "data"), count, checked(dtype), checked(op), root); });
}

int rankwise_all_gather(rankwise_comm comm, const void* send, void* recv, uint64_t count, rankwise_dtype dtype) {
    return on(comm, [&](Comm& c) {
        check_both(send, count, recv, whole(c, count), dtype);
        c.all_gather(send, recv, count, checked(dtype));
    });
}

int rankwise_gather(rankwise_comm comm, const void* send, void* recv, uint64_t count, rankwise_dtype dtype, int root) {
    return on(comm, [&](Comm& c) {
        const bool all = c.rank() == root;
        check_both(send, count, recv, all ? whole(c, count) : 0, dtype);
        c.gather(send, recv, count, checked(dtype), root);
    });
}

int rankwise_scatter(rankwise_comm comm, const void* send, void* recv, uint64_t count, rankwise_dtype dtype, int root) {
    return on(comm, [&](Comm& c) {
        const bool all = c.rank() == root;
        check_both(send, all ? whole(c, count) : 0, recv, count, dtype);
        c.scatter(send, recv, count, checked(dtype), root);
    });
}

int rankwise_reduce_scatter(rankwise_comm comm, const void* send, void* recv, uint64_t count, rankwise_dtype dtype,
                            rankwise_op op) {
    return on(comm, [&](Comm& c) {
        check_both(send, whole(c, count), recv, count, dtype);
        c.reduce_scatter(send, recv, count, checked(dtype), checked(op));
    });
}

int rankwise_all_to_all(rankwise_comm comm, const void* send, void* recv, uint64_t count, rankwise_dtype dtype) {
    return on(comm, [&](Comm& c) {
        check_both(send, whole(c, count), recv, whole(c, count), dtype);
        c.all_to_all(send, recv, count, checked(dtype));
    });
}

int rankwise_all_gather_v(rankwise_comm comm, const void* send, void* recv, const uint64_t* counts,
                          rankwise_dtype dtype) {
    return on(comm, [&](Comm& c) {
        const Counts all = counts_of(c, counts, "counts");
        check_both(send, all[size_t(c.rank())], recv, sum(all), dtype);
        c.all_gather_v(send, recv, all, checked(dtype));
    });
}

int rankwise_gather_v(rankwise_comm comm, const void* send, void* recv, const uint64_t* counts, rankwise_dtype dtype,
                      int root) {
    return on(comm, [&](Comm& c) {
        const Counts all = counts_of(c, counts, "counts");
        check_both(send, all[size_t(c.rank())], recv, c.rank() == root ? sum(all) : 0, dtype);
        c.gather_v(send, recv, all, checked(dtype), root);
    });
}

int rankwise_scatter_v(rankwise_comm comm, const void* send, void* recv, const uint64_t* counts, rankwise_dtype dtype,
                       int root) {
    return on(comm, [&](Comm& c) {
        const Counts all = counts_of(c, counts, "counts");
        check_both(send, c.rank() == root ? sum(all) : 0, recv, all[size_t(c.rank())], dtype);
        c.scatter_v(send, recv, all, checked(dtype), root);
    });
}

int rankwise_reduce_scatter_v(rankwise_comm comm, const void* send, void* recv, const uint64_t* counts,
                              rankwise_dtype dtype, rankwise_op op) {
    return on(comm, [&](Comm& c) {
        const Counts all = counts_of(c, counts, "counts");
        check_both(send, sum(all), recv, all[size_t(c.rank())], dtype);
        c.reduce_scatter_v(send, recv, all, checked(dtype), checked(op));
    });
}

int rankwise_all_to_all_v(rankwise_comm comm, const void* send, void* recv, const uint64_t* send_counts,
                          const uint64_t* recv_counts, rankwise_dtype dtype) {
    return on(comm, [&](Comm& c) {
        const Counts out = counts_of(c, send_counts, "send_counts"), in = counts_of(c, recv_counts, "recv_counts");
        check_both(send, sum(out), recv, sum(in), dtype);
        c.all_to_all_v(send, recv, out, in, checked(dtype));
    });
}
