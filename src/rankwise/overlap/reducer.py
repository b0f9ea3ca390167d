"""GradientReducer averages the gradients of a model over the ranks while the backward pass is still running."""

from __future__ import annotations

import operator
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from rankwise.arrays import torch as tensors
from rankwise.arrays.buffers import source
from rankwise.contract.errors import MismatchError, RankwiseError
from rankwise.contract.stream_sync import THIS_THREAD, StreamSyncOps
from rankwise.contract.types import DType
from rankwise.contract.work import Work
from rankwise.group.default_group import default_group
from rankwise.group.group import Group
from rankwise.group.streams import Stream
from rankwise.overlap.plan import BucketLayout, GradientSpec, plan

if TYPE_CHECKING:
    import torch

BUCKET_BYTES = 25 << 20
OPS = ("sum", "mean")


class Bucket:
    """Gradients that are stored together and reduced at once.

    Attributes:
        flat: all elements, one-dimensional; the padding between gradients is zero.
        members: the numbers of the bucket's parameters.
        views: each member's gradient, as a view of flat in the parameter's shape.
        index: the bucket's position in the order of reduction, which is the same on all ranks.
        op: the reducer's, "mean" or "sum".

    Example:
        >>> reducer = rw.overlap.GradientReducer([np.zeros(3), np.zeros((2, 2))], group)
        >>> [bucket] = reducer.buckets
        >>> bucket.members, bucket.flat.shape, bucket.views[1].shape
        ((1, 0), (16,), (2, 2))
    """

    def __init__(
        self,
        index: int,
        layout: BucketLayout,
        parameters: Sequence[GradientSpec],
        flat: Any,
        op: Literal["sum", "mean"],
        sync: StreamSyncOps,
    ) -> None:
        self.index = index
        self.op = op
        self.members = layout.members
        self.flat = flat
        self.views: dict[int, Any] = {}
        for number, offset in zip(layout.members, layout.offsets, strict=True):
            parameter = parameters[number]
            self.views[number] = flat[offset : offset + parameter.count].reshape(parameter.shape)
        self.addresses = {number: _inspected(view, "view").address for number, view in self.views.items()}
        self.missing = len(self.members)
        self.deferred: list[Callable[[], None]] = []  # copy the gradients whose copy was deferred
        self.work: Work[Any] | None = None
        self._sync = sync
        self.ready, self.reduced = sync.create_event(), sync.create_event()

    def __del__(self, exits: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "reduced") and not exits():  # while the interpreter exits, modules may be gone
            with suppress(RankwiseError, ValueError):  # the group may be closed by now, and its events gone
                self._sync.destroy_event(self.ready)
                self._sync.destroy_event(self.reduced)


class BucketHook(Protocol):
    """Reduces a bucket in another way than by one all_reduce.

    `hook(bucket, group)` stores in bucket.flat the result that the reducer returns: the mean or sum over the ranks, as
    bucket.op says, with the same bits on all of them. It runs on the group's stream (with async_op=False: in the thread
    that fills the bucket), on every rank for the same buckets in the same order, and may call blocking operations of
    `group`. It may keep state between steps, for one reducer.

    Example:
        >>> def halves(bucket, group):
        ...     half = bucket.flat.astype(np.float16)
        ...     bucket.flat[...] = group.all_reduce(half, bucket.op)
        >>> reducer = rw.overlap.GradientReducer([np.zeros(3)], group, hook=halves)
        >>> reducer.mark_ready(0, np.full(3, 0.5 + group.rank))
        >>> reducer.wait_and_unpack()[0].tolist()
        [1.0, 1.0, 1.0]
    """

    def __call__(self, bucket: Bucket, group: Group, /) -> None: ...


class GradientReducer:
    """Averages gradients over the ranks of a group, bucket by bucket, while the next ones are being computed.

    In each step call `mark_ready(i, gradient)` for each parameter, in any order, and then `wait_and_unpack()`. A full
    bucket is reduced on the group's stream, by one all_reduce in registered memory, while the program continues; on a
    backend without streams the program waits for it, with the same results. All ranks reduce the buckets in the same
    order, so a bucket that is full early waits for those before it. Buckets are first packed from the last parameter to
    the first, the usual order of a backward pass, and from the second step on in the order in which rank 0's gradients
    became ready.

    Every rank creates its reducer at the same time, with the same parameters and options. `wait_and_unpack` raises the
    errors of reductions (with async_op=False, `mark_ready` does). Any thread may call mark_ready.

    Args:
        params: the parameters, NumPy arrays or tensors of any mixture of dtypes; only their shapes and dtypes matter.
        group: by default the group of all ranks.
        bucket_bytes: the size of a bucket, which holds one dtype.
        op: "mean" or "sum".
        hook: reduces a bucket in another way, see BucketHook.
        stream: the `rw.overlap.Stream` whose functions compute the gradients, if there is one.
        async_op: with False the thread that marks the last gradient of a bucket reduces the bucket before mark_ready
            returns. If computation occupies all cores, this is faster: no other thread needs a core, and the gradients
            are still in the cache, if buckets and gradients are no larger than half a core's L2 cache (for example 1
            MiB).

    Raises:
        MismatchError: the ranks' parameters or options differ.

    Example:
        >>> weights, bias = np.zeros((2, 3), np.float32), np.zeros(3, np.float32)
        >>> reducer = rw.overlap.GradientReducer([weights, bias], group)
        >>> reducer.mark_ready(1, np.full(3, group.rank, np.float32))
        >>> reducer.mark_ready(0, np.ones((2, 3), np.float32))
        >>> [gradient.tolist() for gradient in reducer.wait_and_unpack()]
        [[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [0.5, 0.5, 0.5]]
    """

    def __init__(
        self,
        params: Sequence[Any],
        group: Group | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        op: Literal["sum", "mean"] = "mean",
        *,
        hook: BucketHook | None = None,
        stream: Stream | None = None,
        async_op: bool = True,
    ) -> None:
        if group is None:
            group = default_group()
        if op not in OPS:
            raise ValueError(f"op={op!r}: expected one of {', '.join(OPS)}")
        if isinstance(bucket_bytes, bool) or not isinstance(bucket_bytes, int) or bucket_bytes < 1:
            raise ValueError(f"bucket_bytes={bucket_bytes!r}: expected a number of bytes of at least 1")
        if stream is not None and not async_op:
            raise ValueError("async_op=False: a stream always reduces asynchronously; pass one of the two")
        seen = [_inspected(param, f"params[{number}]") for number, param in enumerate(params)]
        self.group = group
        self.op: Literal["sum", "mean"] = op
        self.parameters = [entry.parameter for entry in seen]
        self._bucket_bytes = bucket_bytes
        self._hook = hook
        self._stream = stream
        self._async_op = async_op
        self._devices = {entry.device for entry in seen}
        if len(self._devices) > 1:
            raise ValueError(f"params: expected all of them on one device, got {sorted(map(str, self._devices))}")
        self._device = next(iter(self._devices), None)
        self._sync = group.stream.ops
        self._lock = threading.Lock()
        self._no_sync = False
        self._agree()
        self._order: list[int] | None = []  # the order in which gradients became ready; None once the plan follows it
        self._marked: set[int] = set()
        self._kept: set[int] = set()  # parameters whose view holds gradients that no_sync accumulated
        self._launched = 0
        self._pack(list(reversed(range(len(seen)))))

    def __repr__(self) -> str:
        return f"<GradientReducer of {len(self.parameters)} parameters in {len(self.buckets)} buckets, {self.group!r}>"

    def _agree(self) -> None:
        """Raise MismatchError on all ranks unless all have the same parameters and options."""
        description = [*map(str, self.parameters), f"bucket_bytes={self._bucket_bytes}", f"op={self.op}"]
        description.append(f"hook={type(self._hook).__name__}" if self._hook else "no hook")
        digest = np.array(zlib.crc32("\n".join(description).encode()), np.int64)
        if len(set(self.group.all_gather(digest).tolist())) < 2:
            return
        every = self.group.all_gather_object(description)
        at = next(at for at in range(max(map(len, every))) if len({tuple(names[at : at + 1]) for names in every}) > 1)
        calls = {
            rank: f"{len(names) - 3} parameters; number {at} on: {', '.join(names[at : at + 4])}"
            for rank, names in enumerate(every)
        }
        lines = "".join(f"\n  rank {rank}: {call}" for rank, call in calls.items())
        raise MismatchError(f"GradientReducer: the ranks passed different parameters or options{lines}", calls=calls)

    def _pack(self, order: Sequence[int]) -> None:
        layouts = plan(self.parameters, order, self._bucket_bytes)
        self.buckets = [
            Bucket(
                index,
                layout,
                self.parameters,
                _flat(self.group, layout.count, layout.dtype, self._device),
                self.op,
                self._sync,
            )
            for index, layout in enumerate(layouts)
        ]
        self._bucket_of = {number: bucket for bucket in self.buckets for number in bucket.members}

    def view(self, i: int) -> Any:
        """The memory of parameter `i`'s gradient in its bucket.

        A gradient that is computed into the view (`out=`) and marked with it is not copied. After no_sync the
        view holds the accumulated gradient, to which the caller must then add. Call view again in each step,
        since buckets may be repacked after the first step.
        """
        return self._bucket_of[i].views[i]

    @property
    def views(self) -> list[Any]:
        """The views of all parameters' gradients."""
        return [self.view(number) for number in range(len(self.parameters))]

    def mark_ready(self, i: int, grad: Any, *, defer_copy: bool = False) -> None:
        """Declare that the gradient of parameter `i` is computed. It is copied, and full buckets are reduced.

        With a `stream`, the gradient is taken when the work queued there has run; the call does not block.

        Args:
            defer_copy: copy the gradient later, in the background; it must not change before wait_and_unpack has
                returned.

        Raises:
            ValueError: the shape or dtype differs from the parameter's, or the parameter was already marked in this
                step.
        """
        if not 0 <= i < len(self.parameters):
            raise ValueError(f"i={i}: expected the number of a parameter, 0 to {len(self.parameters) - 1}")
        seen = None
        if grad is not self._bucket_of[i].views[i]:  # the bucket's own view, the usual case, needs no check
            seen, parameter = _inspected(grad, "grad"), self.parameters[i]
            if seen.parameter != parameter:
                raise ValueError(f"grad: expected {parameter} for parameter {i}, got {seen.parameter}")
        with self._lock:
            if i in self._marked and not self._no_sync:
                raise ValueError(f"i={i}: this parameter was already marked; wait_and_unpack() ends the step")
            bucket = self._bucket_of[i]
            if seen is not None and seen.address != bucket.addresses[i]:
                detached = grad.detach() if hasattr(grad, "detach") else grad  # without its autograd history
                fill = partial(operator.iadd if i in self._kept else _copy, bucket.views[i], detached)
                if defer_copy and self._on_host() and not self._no_sync:
                    bucket.deferred.append(fill)
                else:
                    self._do(fill)
            if self._no_sync:
                self._kept.add(i)
                return
            self._marked.add(i)
            if self._order is not None:
                self._order.append(i)
            bucket.missing -= 1
            self._launch_full()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which gradients are accumulated on this rank and nothing is sent.

        A parameter may be marked several times in it. The next step outside adds its own gradients and
        reduces the sums; a parameter that it does not mark contributes its accumulated gradient.
        """
        before, self._no_sync = self._no_sync, True
        try:
            yield
        finally:
            self._no_sync = before

    def wait_and_unpack(self) -> list[Any]:
        """End the step: each parameter's gradient, reduced over the ranks, in its shape, in the order of params.

        A parameter that this rank did not mark counts as what no_sync accumulated, or else as zeros. The
        results are views of the buckets: use or copy them before the first mark_ready of the next step.
        Returns when all reductions are done. With a `stream` it returns at once (but for the first step):
        work queued there later runs after the reductions, and the stream's `synchronize` raises their errors.
        """
        if self._no_sync:
            raise RuntimeError("wait_and_unpack() within no_sync(): no gradient is reduced there")
        with self._lock:
            for number in range(len(self.parameters)):
                if number not in self._marked:
                    bucket = self._bucket_of[number]
                    if number not in self._kept:
                        self._do(_copy, bucket.views[number], 0)
                    bucket.missing -= 1
            self._launch_full()
            stream = self._compute_stream()
            works = []
            for bucket in self.buckets:
                if bucket.work is not None:  # otherwise it has been reduced
                    works.append(bucket.work)
                    self._sync.stream_wait_event(stream, bucket.reduced)
            gradients = self.views
            self._end_step()
        for work in works:  # they are complete; only their errors matter
            self._do(work.wait)
        self._follow_rank_0()
        return gradients

    def _do(self, function: Callable[..., object], *args: Any) -> None:
        """Call the function in the order of the computation: here, or on the stream."""
        if self._stream is None:
            function(*args)
        else:
            self._stream.submit(function, *args)

    def _on_host(self) -> bool:
        """Whether any thread may read a gradient as soon as it is marked."""
        return self._stream is None and self._compute_stream() == THIS_THREAD

    def _compute_stream(self) -> int:
        return _compute_stream(self._device) if self._stream is None else self._stream.handle

    def _launch_full(self) -> None:
        """Start the reduction of every full bucket whose predecessors are full too."""
        while self._launched < len(self.buckets) and not self.buckets[self._launched].missing:
            bucket = self.buckets[self._launched]
            if not self._async_op:
                self._reduce(bucket)
                self._launched += 1  # only now, so that a failed bucket fails again in wait_and_unpack
                continue
            self._launched += 1
            self._sync.record_on_stream(bucket.ready, self._compute_stream())
            self._sync.comm_stream_wait_event(bucket.ready)
            if self._hook is None and not bucket.deferred:
                bucket.work = self.group.all_reduce(bucket.flat, self.op, async_op=True)
            else:
                bucket.work = self.group.comm.start_call(partial(self._reduce, bucket))
            self._sync.record_on_comm_stream(bucket.reduced)

    def _reduce(self, bucket: Bucket) -> None:
        for fill in bucket.deferred:
            fill()
        bucket.deferred.clear()
        if self._hook is None:
            self.group.all_reduce(bucket.flat, self.op)
        else:
            self._hook(bucket, self.group)

    def _end_step(self) -> None:
        self._marked.clear()
        self._kept.clear()
        self._launched = 0
        for bucket in self.buckets:
            bucket.missing = len(bucket.members)
            bucket.work = None

    def _follow_rank_0(self) -> None:
        """After the first step, repack in the order in which rank 0's gradients became ready, if it differs."""
        if self._order is None:
            return
        count = len(self.parameters)
        unmarked = set(range(count)).difference(self._order)
        order = np.array([*self._order, *sorted(unmarked, reverse=True)], np.int64)
        self._order = None
        self.group.broadcast(order)
        if order.tolist() != list(reversed(range(count))):
            self._pack(order.tolist())


def _copy(view: Any, content: Any) -> None:
    view[...] = content


# ---- the arrays that the reducer takes: NumPy arrays, and torch tensors on any device ----


class _ArrayInfo(NamedTuple):
    """A parameter's or gradient's array: shape and dtype, address, and device (torch's, or None for NumPy)."""

    parameter: GradientSpec
    address: int
    device: torch.device | None


def _inspected(array: Any, name: str) -> _ArrayInfo:
    """The properties of an array. Raises TypeError, with its name, if it is not an array of a supported dtype."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        if array.layout is not torch.strided:
            raise TypeError(
                f"{name}: expected a dense tensor, got layout {array.layout}; "
                "torch.nn.Embedding and EmbeddingBag give dense gradients with sparse=False"
            )
        return _ArrayInfo(
            GradientSpec(tuple(array.shape), tensors.dtype_of(array.dtype)), array.data_ptr(), array.device
        )
    buffer = source(array, name)
    if buffer.device is not None:
        kind = type(array).__name__
        raise TypeError(f"{name}: expected a NumPy array, or a torch tensor on any device, got a {kind} on a device")
    return _ArrayInfo(GradientSpec(buffer.shape, buffer.dtype), buffer.ptr, None)


def _flat(group: Group, count: int, dtype: DType, device: torch.device | None) -> Any:
    """Zeroed memory for one bucket; registered memory if it is on the host."""
    if device is None:
        return group.empty(count, dtype)
    if device.type == "cpu":
        return group.empty(count, tensors.to_torch(dtype))
    return tensors.new_tensor((count,), dtype, device, zeros=True)


def _compute_stream(device: torch.device | None) -> int:
    """The handle (see StreamSyncOps) of the stream on which this thread computes on that device."""
    if device is None or device.type == "cpu":
        return THIS_THREAD
    import torch

    return int(torch.cuda.current_stream(device).cuda_stream)
