"""The base of a process group's operations, which runs calls of the communicator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import cache, partial
from operator import attrgetter
from threading import Lock, Thread, get_ident
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.distributed import Work

from rankwise.contract.communicator import Communicator, run_keeping
from rankwise.contract.communicator import complete as with_all
from rankwise.contract.operations import Call
from rankwise.contract.work import Work as OurWork
from rankwise.frontends.torch.tensors import Memory, packed
from rankwise.frontends.torch.work import Started, complete, started
from rankwise.group.work import Pending, several

UNSET = timedelta(milliseconds=-1)  # the timeout in an options object if the caller gave none

is_async: Callable[[Any], bool] = attrgetter("asyncOp")
"""Whether a call must not block, according to its options; torch takes None for the Work of one that blocks."""

Results = Sequence[Tensor]


class Core:
    """How operations run on `comm`.

    torch passes an options object with root, op, timeout and asyncOp to every call.

    A blocking call runs in the calling thread and is complete when it returns. An asynchronous one
    runs on the communicator's stream, in the order of the calls, and all of it does: packing what is not
    plain memory, and putting it back, whether or not anybody waits for the Work. A call from a
    future's callback runs at once, because it is already on the stream, at the same position on every rank.
    """

    dispatched = False
    """Whether torch's dispatcher makes the calls; it warns in a backward pass itself."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._rank = comm.rank
        self._size = comm.world_size
        self.collectives = with_all(comm)
        self._pending = Pending("a torch process group", comm)
        self._expected: WeakSet[Started] = WeakSet()  # works with a future that somebody may wait for
        self._stream: int | None = None  # the thread that runs a future's callbacks now
        self._together: list[Started] | None = None  # works between _start_coalescing and _end_coalescing
        self._sequence = 0
        self._limiting = Lock()
        self._limits: list[float] = []  # of calls in progress with a timeout of their own
        self._usual = 0.0  # the timeout of all others, while there are some

    def _run(self, call: Call, opts: Any, results: Results, *memories: Memory) -> Work | None:
        """Make one call of the communicator. memories: those it uses, besides plain tensors in `results`.

        None after a blocking call, which torch.distributed takes for complete.
        """
        if opts.timeout != UNSET or packed(memories):
            return self._run_all([call], opts, results, memories)
        self._count(results, call.operation.name)
        if is_async(opts) and get_ident() != self._stream:
            return self._begun(self.comm.start(call, (self, results, memories)), results)
        self.collectives.run(call)
        return complete(results) if is_async(opts) else None

    def _run_all(
        self, calls: Sequence[Call], opts: Any, results: Results, memories: Sequence[Memory] = ()
    ) -> Work | None:
        """Make several calls as one operation, which packs its memories first and puts back what it wrote."""
        operation = calls[0].operation.name if calls else ""
        limit = opts.timeout.total_seconds() if opts.timeout != UNSET else None
        if limit is None and not packed(memories) and is_async(opts) and get_ident() != self._stream:
            self._count(results, operation)
            keep = (self, results, memories)
            return self._begun(several([self.comm.start(call, keep) for call in calls]), results)
        return self.run_body(partial(self._call_all, calls, memories, limit), opts, results, operation, memories)

    def run_body(
        self, body: Callable[[], None], opts: Any, results: Results, operation: str, keep: object = None
    ) -> Work | None:
        """Run a function that makes several blocking calls by `comm.call`, as one operation."""
        self._count(results, operation)
        if is_async(opts) and get_ident() != self._stream:
            return self._begun(self.comm.start_call(partial(run_keeping, body, (), keep)), results)
        body()
        return complete(results) if is_async(opts) else None

    def _count(self, results: Results, operation: str) -> None:
        """Begin an operation: it gets a number, and autograd a warning."""
        self._sequence += 1
        if not self.dispatched:
            warn_in_backward(results, operation)

    def _as_one(self, works: Sequence[Work | None], results: Results) -> Work:
        """Combine works of this group, in the order in which they were started, into one."""
        pending = [work for work in works if isinstance(work, Started)]
        if not pending:
            return complete(results)
        message = any(work.message for work in pending)
        return self._begun(several([work.inner for work in pending]), results, message)

    def _call_all(self, calls: Sequence[Call], memories: Sequence[Memory], limit: float | None) -> None:
        with nullcontext() if limit is None else self._limited(limit):
            self.comm.call(partial(self._steps, calls, memories))

    @contextmanager
    def _limited(self, limit: float) -> Iterator[None]:
        """Let the communicator's timeout be `limit`, also while another thread's call has a limit of its own."""
        with self._limiting:
            if not self._limits:
                self._usual = self.comm.timeout
            self.comm.timeout = limit
            self._limits.append(limit)
        try:
            yield
        finally:
            with self._limiting:
                self._limits.remove(limit)
                self.comm.timeout = self._limits[-1] if self._limits else self._usual

    def _steps(self, calls: Sequence[Call], memories: Sequence[Memory]) -> None:
        for memory in memories:
            if memory.pack is not None:
                memory.pack()
        for call in calls:
            self.collectives.run(call)
        for memory in memories:
            if memory.finish is not None:
                memory.finish()

    def _begun(self, inner: OurWork[Any], results: Results, message: bool = False) -> Work:
        """torch's Work for a pending operation. message: it is not on the stream."""
        work = started(self._pending.own(inner), results, self, message)
        if self._together is not None:
            self._together.append(work)
        return work

    def settle_later(self, work: Started) -> None:
        """Call the work's `settle` when it is complete, and all work that is on the stream now."""
        self._expected.add(work)

        def on_stream() -> None:
            self._stream = get_ident()
            work.settle()
            self._stream = None  # the thread may run another stream next

        def in_a_thread() -> None:
            with suppress(Exception):  # the future obtains the error from the work
                work.inner.wait()
            work.settle()

        if work.message:
            Thread(target=in_a_thread, name="rankwise future", daemon=True).start()
        else:
            self.comm.start_call(on_stream)


def with_options(kind: Any, opts: Any, timeout: timedelta | None, **fields: Any) -> Any:
    """`opts` if it is torch's options object, else an options object made from a short form's arguments."""
    if type(opts) is kind:
        return opts
    made = kind()
    for name, value in fields.items():
        if value is not None:
            setattr(made, name, value)
    if timeout is not None:
        made.timeout = timeout
    return made


def a_list(value: Any) -> list[Tensor]:
    return value if type(value) is list or not isinstance(value, torch.Tensor) else [value]


def warn_in_backward(written: Sequence[Tensor], operation: str) -> None:
    """Have the backward pass warn where it comes by one of the tensors that `operation` writes in place.

    Autograd did not record that. For backends that torch's C++ calls, its dispatcher gives this warning; torch calls
    the methods of a Python ProcessGroup without it.
    """
    for tensor in written:
        if tensor.requires_grad and torch.is_grad_enabled():
            hook = _hook(operation)
            followed = tensor if tensor._base is None else tensor._base  # gradients of a view pass through its base
            if followed.requires_grad and hook not in (followed._backward_hooks or {}).values():
                followed.register_hook(hook)  # type: ignore[no-untyped-call]


@cache
def _hook(operation: str) -> Callable[[Tensor], None]:
    def warn(grad: Tensor) -> None:
        warnings.warn(
            f"rankwise {operation}: an autograd kernel was not registered to the Autograd key(s) but we are trying to "
            "backprop through it. Its gradient is that of a program without the operation. Call it within "
            "torch.no_grad(), or use torch.distributed.nn.functional, whose operations have gradients",
            stacklevel=2,
        )

    return warn
