"""The collectives of a process group. In shapes n is the group's size; a list of outputs has one tensor per rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from itertools import chain
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, AllToAllOptions, BarrierOptions
from torch.distributed import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Work,
)

from rankwise.contract.errors import CollectiveTimeout, UnsupportedError
from rankwise.contract.operations import (
    ALL_GATHER,
    ALL_GATHER_V,
    ALL_REDUCE,
    ALL_TO_ALL,
    ALL_TO_ALL_V,
    BARRIER,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    REDUCE_SCATTER_V,
    SCATTER,
    Call,
    check_rank,
)
from rankwise.frontends.torch.core import UNSET, Core, a_list, with_options
from rankwise.frontends.torch.tensors import (
    Memory,
    check_same_type,
    copied,
    is_plain,
    moved,
    nbytes,
    overlap,
    reduction,
    source,
    sources,
    target,
    targets,
)


class MonitoredBarrierError(CollectiveTimeout, RuntimeError):
    """Ranks did not enter a monitored_barrier in time. It is a RuntimeError with gloo's message, as programs expect."""

    def __init__(self, error: CollectiveTimeout, rank: int, wait_all_ranks: bool) -> None:
        named = error.missing if wait_all_ranks else error.missing[:1]
        who = f"Rank{'s' if len(named) > 1 else ''} {', '.join(map(str, named))} failed to pass monitoredBarrier"
        text = f"Rank {rank} timed out in monitoredBarrier after {1e3 * error.limit:g} ms: {who}.\n{error}"
        super().__init__(text, **vars(error))


class TorchCollectives(Core):
    """Each method takes torch's options object, or the arguments of torch's short forms: root, op, timeout.

    The common case, a call on plain tensors, is one of the engine's TorchCalls.
    """

    def allreduce(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, op: Any = None
    ) -> Work | None:
        """Reduce each tensor over the ranks, in place. Sparse tensors: SUM."""
        if type(opts) is not AllreduceOptions:
            tensors = a_list(tensors)
            opts = with_options(AllreduceOptions, opts, timeout, reduceOp=op if opts is None else opts)
        if len(tensors) == 1:
            (tensor,) = tensors
            if tensor.is_sparse:
                return self._all_reduce_sparse(tensor, opts)
            how = reduction(opts.reduceOp, tensor.dtype)
            if how.in_place and is_plain(tensor):
                ptr = tensor.data_ptr()
                return self._run(Call(ALL_REDUCE, ptr, ptr, tensor.numel(), how.dtype, how.ours), opts, tensors)
        return self._reduce_each(tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work | None:
        return self._reduce_each(tensors, opts or AllreduceCoalescedOptions())

    def _reduce_each(self, tensors: list[Tensor], opts: Any) -> Work | None:
        calls, memories = [], []
        for tensor in tensors:
            how = reduction(opts.reduceOp, tensor.dtype)
            memory = how.both(tensor)
            calls.append(Call(ALL_REDUCE, memory.ptr, memory.ptr, memory.count, how.dtype, how.ours))
            memories.append(memory)
        return self._run_all(calls, opts, tensors, memories)

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, root: int = 0) -> Work | None:
        """Copy root's tensors to every rank, in place."""
        tensors = a_list(tensors)
        opts, root = self._rooted(BroadcastOptions, opts, timeout, root)
        if len(tensors) == 1 and is_plain(tensors[0]):
            (tensor,) = tensors
            ptr = tensor.data_ptr()
            call = Call(BROADCAST, ptr, ptr, tensor.numel(), moved(tensor.dtype), root=root)
            return self._run(call, opts, tensors)
        memories = [source(tensor) if root == self._rank else target(tensor) for tensor in tensors]
        calls = [Call(BROADCAST, each.ptr, each.ptr, each.count, moved(each.dtype), root=root) for each in memories]
        return self._run_all(calls, opts, tensors, memories)

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None, root: int = 0
    ) -> Work | None:
        """Reduce over the ranks, in place on root; the other ranks' tensors stay unchanged."""
        tensors = a_list(tensors)
        opts, root = self._rooted(ReduceOptions, opts, timeout, root, reduceOp=op)
        (tensor,) = tensors
        how = reduction(opts.reduceOp, tensor.dtype)
        memory = how.both(tensor) if root == self._rank else how.source(tensor)
        call = Call(REDUCE, memory.ptr, memory.ptr, memory.count, how.dtype, how.ours, root)
        return self._run(call, opts, tensors, memory)

    def allgather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work | None:
        """Collect every rank's input in every rank's outputs. The inputs may differ in size, as may the outputs."""
        output_tensors, input_tensors = _as_lists(output_tensors, input_tensors)
        opts = with_options(AllgatherOptions, opts, timeout or _time(opts))
        (outputs,), (given,) = output_tensors, input_tensors
        self._check_outputs(outputs, given)
        if outputs[self._rank].numel() != given.numel():
            raise ValueError(
                f"output {self._rank}: expected {given.numel()} elements, as this rank's input has, "
                f"got {outputs[self._rank].numel()}"
            )
        sent = source(given)
        memory = targets(outputs)
        counts = [output.numel() for output in outputs]
        even = len(set(counts)) == 1
        if (self._misplaced if even else overlap)(sent, memory):
            sent = copied([given])
        if even:
            call = Call(ALL_GATHER, sent.ptr, memory.ptr, sent.count, moved(sent.dtype))
        else:
            call = Call(ALL_GATHER_V, sent.ptr, memory.ptr, 0, moved(sent.dtype), counts=counts)
        return self._run(call, opts, outputs, sent, memory)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work | None:
        """Collect every rank's input, by rank, in one output. The input may be this rank's part of the output."""
        opts = opts or AllgatherOptions()
        _check_dtype(output, input)
        self._check_whole(output, input, "output", "input")
        sent = source(input)
        memory = target(output)
        if self._misplaced(sent, memory):
            sent = copied([input])
        call = Call(ALL_GATHER, sent.ptr, memory.ptr, sent.count, moved(sent.dtype))
        return self._run(call, opts, [output], sent, memory)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work | None:
        return self._each(
            self.all_gather_single, zip(outputs, inputs, strict=True), outputs, opts or AllgatherOptions()
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], input_list: list[Tensor], opts: Any = None
    ) -> Work | None:
        """output_lists[r][i] receives rank r's input_list[i]."""
        pairs = (([[row[i] for row in output_lists]], [given]) for i, given in enumerate(input_list))
        return self._each(self.allgather, pairs, list(chain(*output_lists)), opts or AllgatherOptions())

    def gather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        root: int = 0,
    ) -> Work | None:
        """Collect every rank's input in root's outputs."""
        output_tensors, input_tensors = _as_lists(output_tensors, input_tensors)
        opts, root = self._rooted(GatherOptions, opts, timeout, root)
        (given,) = input_tensors
        sent = source(given)
        outputs: list[Tensor] = []
        memories, where = [sent], 0
        if root == self._rank:
            (outputs,) = output_tensors
            self._check_outputs(outputs, given)
            _check_sizes(outputs, given)
            memory = targets(outputs)
            if self._misplaced(sent, memory):
                sent = copied([given])
            memories, where = [sent, memory], memory.ptr
        call = Call(GATHER, sent.ptr, where, sent.count, moved(sent.dtype), root=root)
        return self._run(call, opts, outputs, *memories)

    def scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        root: int = 0,
    ) -> Work | None:
        """Send root's inputs, one to each rank."""
        output_tensors, input_tensors = _as_lists(output_tensors, input_tensors)
        opts, root = self._rooted(ScatterOptions, opts, timeout, root)
        (output,) = output_tensors
        memory = target(output)
        memories, where = [memory], 0
        if root == self._rank:
            (inputs,) = input_tensors
            self._check_outputs(inputs, output)
            _check_sizes(inputs, output)
            sent = sources(inputs)
            if overlap(sent, memory):
                sent = copied(inputs)
            memories.append(sent)
            where = sent.ptr
        call = Call(SCATTER, where, memory.ptr, memory.count, moved(memory.dtype), root=root)
        return self._run(call, opts, [output], *memories)

    def reduce_scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        op: Any = None,
    ) -> Work | None:
        """Reduce input r over the ranks into rank r's output. The inputs may differ in size."""
        output_tensors, input_tensors = _as_lists(output_tensors, input_tensors)
        opts = with_options(ReduceScatterOptions, opts, timeout, reduceOp=op if opts is None else opts)
        (output,), (inputs,) = output_tensors, input_tensors
        self._check_outputs(inputs, output)
        if inputs[self._rank].numel() != output.numel():
            raise ValueError(
                f"output: expected {inputs[self._rank].numel()} elements, as input {self._rank} has, "
                f"got {output.numel()}"
            )
        how = reduction(opts.reduceOp, output.dtype)
        sent = how.source(*inputs)
        memory = how.target(output)
        counts = [tensor.numel() for tensor in inputs]
        even = len(set(counts)) == 1
        if (self._misplaced if even else overlap)(memory, sent):
            sent = copied(inputs)
        if even:
            call = Call(REDUCE_SCATTER, sent.ptr, memory.ptr, counts[0], how.dtype, how.ours)
        else:
            call = Call(REDUCE_SCATTER_V, sent.ptr, memory.ptr, 0, how.dtype, how.ours, counts=counts)
        return self._run(call, opts, [output], sent, memory)

    def reduce_scatter_single(self, outputTensor: Tensor, inputTensor: Tensor, opts: Any = None) -> Work | None:
        """Reduce one input over the ranks; rank r's output receives part r, and may be that part of the input."""
        output, given, opts = outputTensor, inputTensor, opts or ReduceScatterOptions()
        _check_dtype(output, given)
        self._check_whole(given, output, "input", "output")
        how = reduction(opts.reduceOp, output.dtype)
        sent = how.source(given)
        memory = how.target(output)
        if self._misplaced(memory, sent):
            sent = copied([given])
        call = Call(REDUCE_SCATTER, sent.ptr, memory.ptr, memory.count, how.dtype, how.ours)
        return self._run(call, opts, [output], sent, memory)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputTensors: list[Tensor], inputTensors: list[Tensor], opts: Any = None
    ) -> Work | None:
        pairs = zip(outputTensors, inputTensors, strict=True)
        return self._each(self.reduce_scatter_single, pairs, outputTensors, opts or ReduceScatterOptions())

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work | None:
        """Send rows of the input to each rank and receive rows of the output; empty splits mean equal parts."""
        opts = with_options(AllToAllOptions, opts, timeout or _time(opts))
        even = not output_split_sizes and not input_split_sizes
        _check_dtype(output, input)
        rows_out = self._rows(output, output_split_sizes, "output")
        rows_in = self._rows(input, input_split_sizes, "input")
        sent = source(input)
        memory = target(output)
        if overlap(sent, memory):
            sent = copied([input])
        call = Call(ALL_TO_ALL_V, sent.ptr, memory.ptr, 0, moved(sent.dtype), send_counts=rows_in, recv_counts=rows_out)
        if even and output.numel() == input.numel():
            call = Call(ALL_TO_ALL, sent.ptr, memory.ptr, sent.count // self._size, moved(sent.dtype))
        return self._run(call, opts, [output], sent, memory)

    alltoall_base = all_to_all_single

    def alltoall(
        self, output_tensors: list[Tensor], input_tensors: list[Tensor], opts: Any = None, timeout: Any = None
    ) -> Work | None:
        """Send input r to rank r, and receive output r from rank r."""
        opts = with_options(AllToAllOptions, opts, timeout or _time(opts))
        for name, given in (("output_tensors", output_tensors), ("input_tensors", input_tensors)):
            if len(given) != self._size:
                raise ValueError(f"{name}: expected a tensor for each of {self._size} ranks, got {len(given)}")
        dtype = moved(check_same_type([*output_tensors, *input_tensors]))
        sent = sources(input_tensors)
        memory = targets(output_tensors)
        if overlap(sent, memory):
            sent = copied(input_tensors)
        out, back = ([tensor.numel() for tensor in given] for given in (input_tensors, output_tensors))
        call = Call(ALL_TO_ALL_V, sent.ptr, memory.ptr, 0, dtype, send_counts=out, recv_counts=back)
        return self._run(call, opts, output_tensors, sent, memory)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work | None:
        opts = with_options(BarrierOptions, opts, timeout or _time(opts))
        return self._run(Call(BARRIER), opts, [])

    def monitored_barrier(
        self, timeout: timedelta | BarrierOptions | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier with its own timeout, after which MonitoredBarrierError names the missing ranks.

        timeout: or torch's options object with it, as torch's C++ passes it. wait_all_ranks: name all missing
        ranks in the first sentence, as torch does, instead of only the first.
        """
        limit = timeout.timeout if isinstance(timeout, BarrierOptions) else timeout
        opts = BarrierOptions()
        opts.asyncOp = False
        if limit is not None and limit != UNSET:
            opts.timeout = max(limit, timedelta(milliseconds=1))
        try:
            work = self.barrier(opts)
            if work is not None:
                work.wait()
        except CollectiveTimeout as error:
            raise MonitoredBarrierError(error, self._rank, wait_all_ranks) from error

    def _all_reduce_sparse(self, tensor: Tensor, opts: Any) -> Work | None:
        """Sum a COO tensor, in place: every rank gathers the entries of all, and adds them up in rank order."""
        if opts.reduceOp.op != ReduceOp.SUM:
            raise UnsupportedError(f"all_reduce of sparse tensors with {opts.reduceOp.op}", "rankwise", "", "use SUM")

        def body() -> None:
            with torch.no_grad():
                tensor.copy_(self._sparse_sum(tensor.detach().coalesce()))

        return self.run_body(partial(self.comm.call, body), opts, [tensor], "all_reduce")

    def _sparse_sum(self, given: Tensor) -> Tensor:
        # The shape goes along: ranks with different ones must not add them up.
        layout = torch.tensor([given._nnz(), given.sparse_dim(), *given.shape], dtype=torch.int64)
        size = self._size
        layouts = torch.empty((size, len(layout)), dtype=torch.int64)
        self._gather_entries(layout, layouts, [len(layout)] * size)
        if not torch.equal(layouts[:, 1:], layout[1:].expand(size, -1)):
            raise ValueError(f"sparse all_reduce: the ranks have different shapes: {layouts[:, 2:].tolist()}")
        entries = layouts[:, 0].tolist()
        indices, values = given.indices().t().contiguous(), given.values().contiguous()
        all_indices = indices.new_empty((sum(entries), indices.shape[1]))
        all_values = values.new_empty((sum(entries), *values.shape[1:]))
        self._gather_entries(indices, all_indices, [n * indices.shape[1] for n in entries])
        self._gather_entries(values, all_values, [n * prod(values.shape[1:]) for n in entries])
        return torch.sparse_coo_tensor(all_indices.t(), all_values, given.shape, check_invariants=False).coalesce()

    def _gather_entries(self, entries: Tensor, out: Tensor, counts: list[int]) -> None:
        self.collectives.all_gather_v(entries.data_ptr(), out.data_ptr(), counts, moved(entries.dtype))

    def _rooted(self, kind: Any, opts: Any, timeout: timedelta | None, root: int, **fields: Any) -> tuple[Any, int]:
        """The options of an operation with a root, which torch's short forms pass by position or by name; the root."""
        if type(opts) is not kind:
            opts = with_options(kind, None, timeout, rootRank=root if opts is None else opts, **fields)
        return opts, check_rank(opts.rootRank, self._size)

    def _misplaced(self, part: Memory, whole: Memory) -> bool:
        """Whether a part shares memory with the whole, which is n times as large, other than in its place there."""
        size, offset = nbytes(part), part.ptr - whole.ptr
        return -size < offset < self._size * size and offset != self._rank * size

    def _each(
        self, method: Callable[..., Work | None], pairs: Iterable[Any], outputs: list[Tensor], opts: Any
    ) -> Work | None:
        """Several operations on (output, input) as one."""
        return self._as_one([method(*pair, opts) for pair in pairs], outputs)

    def _check_whole(self, whole: Tensor, part: Tensor, name: str, part_name: str) -> None:
        if whole.numel() != part.numel() * self._size:
            raise ValueError(
                f"{name}: expected {self._size} times the {part_name}'s {part.numel()} elements, got {whole.numel()}"
            )

    def _check_outputs(self, tensors: list[Tensor], like: Tensor) -> None:
        if len(tensors) != self._size:
            raise ValueError(f"expected a tensor for each of {self._size} ranks, got {len(tensors)}")
        if check_same_type(tensors) != like.dtype:
            raise ValueError(f"expected tensors of dtype {like.dtype} throughout, got {tensors[0].dtype}")

    def _rows(self, tensor: Tensor, splits: Sequence[int], name: str) -> list[int]:
        """The number of elements of `tensor` for each rank."""
        length = tensor.shape[0] if tensor.dim() else 0
        if not splits:
            if length % self._size:
                raise ValueError(f"{name}: its {length} rows do not divide by {self._size} ranks; give split sizes")
            return [tensor.numel() // self._size if length else 0] * self._size
        if len(splits) != self._size or sum(splits) != length:
            raise ValueError(
                f"{name}_split_sizes={list(splits)}: expected {self._size} sizes that add up to {length} rows"
            )
        row = prod(tensor.shape[1:])
        return [rows * row for rows in splits]


def _as_lists(output: Any, given: Any) -> tuple[Any, Any]:
    """Outputs and inputs as lists, as in torch's long form; its short form passes one tensor and one list."""
    if type(output) is list and type(given) is list:
        return output, given
    if isinstance(output, Tensor) or isinstance(given, Tensor):
        return [output], [given]
    return output, given


def _time(opts: Any) -> timedelta | None:
    """The timeout, if a short form passes it in place of the options."""
    return opts if isinstance(opts, timedelta) else None


def _check_dtype(output: Tensor, given: Tensor) -> None:
    if output.dtype != given.dtype:
        raise ValueError(f"output: expected dtype {given.dtype}, as the input has, got {output.dtype}")


def _check_sizes(tensors: list[Tensor], like: Tensor) -> None:
    count = like.numel()
    for tensor in tensors:
        if tensor.numel() != count:
            raise ValueError(f"expected tensors of {count} elements throughout, got one of {tensor.numel()}")
