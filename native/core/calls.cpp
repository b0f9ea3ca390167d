// The communicator's collectives: each call checks its arguments and describes itself to the other ranks.
#include <exception>
#include <numeric>

#include "base/copy.hpp"
#include "base/mix.hpp"
#include "call_guard.hpp"

namespace rankwise {

namespace {

ReduceKernel checked_kernel(DType dtype, ReduceOp op) {
    if (ReduceKernel kernel = reduce_kernel(dtype, op)) return kernel;
    throw BadArgument(std::string("op: ") + name(op) + " is not defined for " + name(dtype));
}

}  // namespace

void Comm::barrier(const CallOptions& options) {
    barrier_without_sync(options);
    messages_->sync(timeout(), options);
}

void Comm::barrier_without_sync(const CallOptions& options) {
    const CallGuard call(*this, make_call(Op::Barrier), 0, options, collectives::kInHeader);
    call.run([&] { collectives::barrier(transport_); });
}

// A call of a collective: checks its arguments, and describes it to the other ranks, as the table of operations says.
// amount: a number of elements, or one for each rank.
template <Op operation> struct Comm::Collective {
    template <class Amount>
    Collective(Comm& comm, const CallOptions& options, const Amount& amount, DType dtype, ReduceOp op = ReduceOp::SUM,
               int root = 0)
        : kernel(checked(comm, dtype, op, root)), item(itemsize(dtype)), blocks(comm.blocks_of(amount, item)),
          call(comm, make_call(operation, dtype, op, root, agreed(amount)),
               operation == Op::AllToAll ? blocks.total() : blocks.size(comm.rank()), options,
               options.started ? collectives::bytes_of_only_step(comm.transport_, operation, blocks)
                               : collectives::kSeveral) {}

    const ReduceKernel kernel;  // null without a reduction
    const size_t item;
    const Blocks blocks;  // each rank's
    const CallGuard call;

private:
    static ReduceKernel checked(const Comm& comm, DType dtype, ReduceOp op, int root) {
        if (row_of(operation).has & kRoot) comm.check_root(root);
        return row_of(operation).has & kReduction ? checked_kernel(dtype, op) : nullptr;
    }
    static uint64_t agreed(uint64_t count) { return count; }
    static uint64_t agreed(const Counts& counts) { return digest(counts); }
};

Blocks Comm::blocks_of(const Counts& counts, size_t item) const {
    check_counts(counts, "counts");
    return Blocks(counts.data(), world_size(), item);
}

void Comm::broadcast(void* data, uint64_t count, DType dtype, int root, const CallOptions& options) {
    const Collective<Op::Broadcast> c(*this, options, count, dtype, ReduceOp::SUM, root);
    if (transport_.n == 1) return;
    c.call.run([&] { collectives::broadcast(transport_, bytes(data), c.blocks.size(0), root); });
}

void Comm::all_reduce(void* data, uint64_t count, DType dtype, ReduceOp op, const CallOptions& options) {
    const Collective<Op::AllReduce> c(*this, options, count, dtype, op);
    if (transport_.n == 1) return;
    c.call.run([&] { collectives::all_reduce(transport_, bytes(data), count, c.item, c.kernel); });
}

void Comm::reduce(void* data, uint64_t count, DType dtype, ReduceOp op, int root, const CallOptions& options) {
    const Collective<Op::Reduce> c(*this, options, count, dtype, op, root);
    if (transport_.n == 1) return;
    c.call.run([&] { collectives::reduce(transport_, bytes(data), count, c.item, c.kernel, root); });
}

void Comm::all_gather(const void* send, void* recv, uint64_t count, DType dtype, const CallOptions& options) {
    const Collective<Op::AllGather> c(*this, options, count, dtype);
    c.call.run([&] { collectives::all_gather(transport_, bytes(send), bytes(recv), c.blocks); });
}

void Comm::gather(const void* send, void* recv, uint64_t count, DType dtype, int root, const CallOptions& options) {
    const Collective<Op::Gather> c(*this, options, count, dtype, ReduceOp::SUM, root);
    c.call.run([&] { collectives::gather(transport_, bytes(send), bytes(recv), c.blocks, root); });
}

void Comm::scatter(const void* send, void* recv, uint64_t count, DType dtype, int root, const CallOptions& options) {
    const Collective<Op::Scatter> c(*this, options, count, dtype, ReduceOp::SUM, root);
    c.call.run([&] { collectives::scatter(transport_, bytes(send), bytes(recv), c.blocks, root); });
}

void Comm::reduce_scatter(const void* send, void* recv, uint64_t count, DType dtype, ReduceOp op,
                          const CallOptions& options) {
    const Collective<Op::ReduceScatter> c(*this, options, count, dtype, op);
    c.call.run([&] {
        if (transport_.n == 1) move_bytes(recv, send, c.blocks.size(0));
        else collectives::reduce_scatter(transport_, bytes(send), bytes(recv), c.blocks, c.item, c.kernel);
    });
}

template <Op operation>
void Comm::scan_as(const void* send, void* recv, uint64_t count, DType dtype, ReduceOp op, const CallOptions& options) {
    if (op == ReduceOp::MEAN) throw BadArgument("op: mean is not defined for a scan");
    const Collective<operation> c(*this, options, count, dtype, op);
    constexpr bool exclusive = operation == Op::Exscan;
    c.call.run([&] {
        if (transport_.n > 1)
            collectives::scan(transport_, bytes(send), bytes(recv), count, c.item, c.kernel, exclusive);
        else if (!exclusive) move_bytes(recv, send, c.blocks.size(0));
    });
}

void Comm::scan(const void* send, void* recv, uint64_t count, DType dtype, ReduceOp op, const CallOptions& options) {
    scan_as<Op::Scan>(send, recv, count, dtype, op, options);
}

void Comm::exscan(const void* send, void* recv, uint64_t count, DType dtype, ReduceOp op, const CallOptions& options) {
    scan_as<Op::Exscan>(send, recv, count, dtype, op, options);
}

void Comm::all_to_all(const void* send, void* recv, uint64_t count, DType dtype, const CallOptions& options) {
    const Collective<Op::AllToAll> c(*this, options, count, dtype);
    c.call.run([&] {
        if (transport_.n == 1) move_bytes(recv, send, c.blocks.size(0));
        else collectives::all_to_all(transport_, bytes(send), bytes(recv), c.blocks);
    });
}

void Comm::fail_in_call(const std::exception& why) {
    if (fork_.is_child() || group_.failed()) return;
    const char* const operation = name(transport_.log.op());
    const auto fail = [&](Cause cause, std::initializer_list<std::string_view> how) {
        fail_group(group_, cause, rank(), transport_.log.number(), how);
    };
    if (dynamic_cast<const Mismatch*>(&why)) {
        fail(Cause::Mismatch, {operation, ": ", why.what()});
        failures_.throw_failure(operation);
    }
    if (dynamic_cast<const std::bad_alloc*>(&why) || dynamic_cast<const OutOfMemory*>(&why))
        return fail(Cause::PeerLost, {"had no memory for ", operation});
    fail(Cause::PeerLost, {"gave up ", operation, ": ", why.what()});
}

void Comm::gather_sized(const void* block, uint64_t count, const std::optional<Row>& row,
                        const collectives::RoomForEach& room, int root, const CallOptions& options) {
    check_root(root);
    const size_t item = row ? row->bytes() : 1, size = checked_bytes(count, item);
    const CallGuard call(
        *this,
        row ? make_call(Op::GatherRows, row->dtype, {}, root, row->elements) : make_call(Op::GatherSized, {}, {}, root),
        size, options);
    call.run(
        [&] { collectives::gather_sized(transport_, *messages_, bytes(block), count, item, room, root, options); });
}

void Comm::all_gather_sized(const void* block, uint64_t count, const Row& row, const collectives::Room& room,
                            const CallOptions& options) {
    const size_t item = row.bytes(), size = checked_bytes(count, item);
    const CallGuard call(*this, make_call(Op::AllGatherRows, row.dtype, {}, 0, row.elements), size, options);
    call.run([&] { collectives::all_gather_sized(transport_, bytes(block), count, item, room); });
}

void Comm::all_to_all_sized(const void* blocks, const Counts& counts, const Row& row, const collectives::Room& room,
                            const CallOptions& options) {
    const size_t item = row.bytes(), size = blocks_of(counts, item).total();
    const CallGuard call(*this, make_call(Op::AllToAllRows, row.dtype, {}, 0, row.elements), size, options);
    call.run([&] { collectives::all_to_all_sized(transport_, bytes(blocks), counts, item, room); });
}

void Comm::scatter_sized(collectives::Division& division, const void* data, const collectives::PartBuffer& part_buffer,
                         int root, const CallOptions& options) {
    check_root(root);
    if (!division.items && rank() == root) check_counts(division.counts, "counts");
    const Blocks blocks = rank() == root ? division.blocks(world_size()) : Blocks(0, uint64_t(0), 0);
    const Op op = division.items ? Op::ScatterEvenly : Op::ScatterSized;
    const CallGuard call(*this, make_call(op, {}, {}, root), blocks.total(), options);
    const auto known_part = [&](size_t part) {
        if (rank() != root) transport_.log.set_bytes(part);
        return part_buffer(part);
    };
    call.run([&] { collectives::scatter_sized(transport_, division, bytes(data), blocks, known_part, root); });
}

void Comm::all_gather_v(const void* send, void* recv, const Counts& counts, DType dtype, const CallOptions& options) {
    const Collective<Op::AllGatherV> c(*this, options, counts, dtype);
    c.call.run([&] { collectives::all_gather(transport_, bytes(send), bytes(recv), c.blocks); });
}

void Comm::gather_v(const void* send, void* recv, const Counts& counts, DType dtype, int root,
                    const CallOptions& options) {
    const Collective<Op::GatherV> c(*this, options, counts, dtype, ReduceOp::SUM, root);
    c.call.run([&] { collectives::gather(transport_, bytes(send), bytes(recv), c.blocks, root); });
}

void Comm::scatter_v(const void* send, void* recv, const Counts& counts, DType dtype, int root,
                     const CallOptions& options) {
    const Collective<Op::ScatterV> c(*this, options, counts, dtype, ReduceOp::SUM, root);
    c.call.run([&] { collectives::scatter(transport_, bytes(send), bytes(recv), c.blocks, root); });
}

void Comm::reduce_scatter_v(const void* send, void* recv, const Counts& counts, DType dtype, ReduceOp op,
                            const CallOptions& options) {
    const Collective<Op::ReduceScatterV> c(*this, options, counts, dtype, op);
    c.call.run([&] {
        if (transport_.n == 1) move_bytes(recv, send, c.blocks.size(0));
        else collectives::reduce_scatter(transport_, bytes(send), bytes(recv), c.blocks, c.item, c.kernel);
    });
}

void Comm::all_to_all_v(const void* send, void* recv, const Counts& out, const Counts& in, DType dtype,
                        const CallOptions& options) {
    check_counts(out, "send_counts");
    check_counts(in, "recv_counts");
    const size_t item = itemsize(dtype);
    const Blocks blocks_out = blocks_of(out, item);
    const CallGuard call(*this, make_call(Op::AllToAllV, dtype), blocks_out.total(), options);
    const auto room = [&](const Counts& receives) {
        for (int from = 0; from < transport_.n; ++from) {
            const uint64_t sent = receives[size_t(from)], expected = in[size_t(from)];
            if (sent == expected) continue;
            const std::string text = "all_to_all_v: rank " + std::to_string(from) + " sends " + std::to_string(sent) +
                                     " elements to rank " + std::to_string(rank()) + ", which expects " +
                                     std::to_string(expected);
            fail_group(group_, Cause::Mismatch, rank(), transport_.log.number(), text);
            failures_.throw_failure(name(Op::AllToAllV));
        }
        return bytes(recv);
    };
    call.run([&] { collectives::all_to_all_sized(transport_, bytes(send), out, item, room); });
}

}  // namespace rankwise
