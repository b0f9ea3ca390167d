"""The base of all families of a group's operations."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from math import prod
from typing import Any, TypeVar

import numpy as np

from rankwise.arrays import buffers, dtypes
from rankwise.arrays.base import Buffer, Kind, Shape
from rankwise.arrays.dtypes import DTYPES
from rankwise.arrays.numpy import NUMPY, address
from rankwise.contract.communicator import Communicator, complete
from rankwise.contract.errors import RankwiseError, UnsupportedError, shown
from rankwise.contract.message import ANY, Receives, no_probe
from rankwise.contract.operations import Call, divided
from rankwise.contract.shortcuts import NOT_TAKEN
from rankwise.contract.types import DType
from rankwise.contract.work import COMPLETE, Work
from rankwise.group.object_block import PLAIN, TRUSTING, Codec
from rankwise.group.receives import ReceiveQueue
from rankwise.group.work import ArrayWork, Pending
from rankwise.system.once import once

T = TypeVar("T")
IntArray = np.ndarray[Any, np.dtype[np.int64]]


class GroupBase:
    """One rank's view of a group: its communicator, its pending operations, and checks of common arguments.

    An operation checks its arguments when it is called. Everything else happens where the communicator's
    calls run: in the calling thread, or with async_op on the communicator's stream. This includes packing
    arrays that are not contiguous and unpacking results, because earlier and later work on the stream may
    write or read the caller's memory. `_call` makes one call of the communicator; `_run` runs a function
    that makes several, within `_one_operation`.

    Attributes with an underscore belong to the package `group`. comm, pending, receives, trusting, and a Group's
    related and membership are there for the rest of rankwise, such as front-ends; they are not public.
    """

    def __init__(self, comm: Communicator, name: str, allow_pickle: bool = False) -> None:
        self.name = name
        self.allow_pickle = allow_pickle
        """Whether object operations allow pickles unless their argument says otherwise; the same on all ranks."""
        self.trusting = TRUSTING
        """How objects travel where pickles are allowed."""
        self.comm = comm
        self.rank = comm.rank
        self.world_size = comm.world_size
        self.pending = Pending(f"group {name!r}", comm)
        """The group's Works in progress. A front-end adds its own, so that closing the group ends them too."""
        self._queue = ReceiveQueue(comm) if comm.receives is None else None
        self.receives: Receives = self._queue or comm.receives  # type: ignore[assignment]  # one of them exists
        """The receives of messages of any length: the communicator's, or else a queue that makes them of its others."""
        self._collectives = complete(comm)
        self._shortcuts = comm.shortcuts
        self._barrier = self._shortcuts.barrier_without_sync or comm.barrier_without_sync

    @once
    def _one_operation(self) -> _OneOperation:
        return _OneOperation(self.comm)

    @once
    def _sent(self) -> ArrayWork[None]:
        """The Work of every send that was complete when it had started: most short ones."""
        work: ArrayWork[None] = ArrayWork(COMPLETE, nothing, self.pending)
        work.wait()
        return work

    def _call(self, call: Call, reads: Buffer | None, writes: Buffer | None, async_op: bool) -> Any:
        """Make one call of the communicator. Its result is the content of `writes`, or None if nothing is written."""
        finish = nothing if writes is None else writes.finish
        given = writes if reads is None else reads
        self._check_memory(given)
        if given is not None:
            call = shaped(call, given.shape)
        packed = (reads is not None and reads.packed) or (writes is not None and writes.packed)
        # A started operation whose result is a new object (a number) makes it at the end.
        if packed or (async_op and writes is not None and not writes.in_place):

            def body() -> Any:
                if writes is not reads:
                    self._await_stream_of(writes)
                self._collectives.run(call)
                return finish()

            return self._run(body, reads, async_op)
        self._await_stream_of(reads)
        if writes is not reads:
            self._await_stream_of(writes)
        if async_op:
            # Nothing is left to do for `wait`: not even marking a tensor as written, which may by then have been used
            # in a computation that autograd follows.
            return self.pending.own(self.comm.start(call, (reads, writes), finish()), self)
        self._collectives.run(call)
        return finish()

    def _run(self, body: Callable[[], T], reads: Buffer | None, async_op: bool, sends: int = 0) -> T | Work[T]:
        """Pack `reads`, then run a body that makes several calls: now, or on the communicator's stream.

        sends: the bytes that this rank sends, if not those of `reads`.
        """
        if reads is not None:  # the body keeps its memory alive
            self._check_memory(reads)
            body = partial(_after, partial(self._pack, reads), body)
            sends = reads.nbytes
        if not async_op:
            return self.comm.call(body)
        return self.pending.own(self.comm.start_call(body, at_once=sends >= _OVERLAPPED))

    def _broadcast_ints(self, values: IntArray, src: int) -> IntArray:
        """Broadcast contiguous int64 metadata in place, as a part of another operation; returns it."""
        if not self._shortcuts.broadcast_array(values, src):
            self._collectives.broadcast(address(values), values.size, DType.I64, src)
        return values

    def _all_gather_ints(self, values: IntArray) -> IntArray:
        """All ranks' contiguous int64 metadata, of the same shape on each: shape (world_size, *values.shape)."""
        gathered: IntArray = self._shortcuts.all_gather_result(values, None)
        if gathered is NOT_TAKEN:
            gathered = np.empty((self.world_size, *values.shape), np.int64)
            self._collectives.all_gather(address(values), address(gathered), values.size, DType.I64)
        return gathered

    def _exchange_ints(self, values: IntArray) -> IntArray:
        """Send one int64 to each rank: values[j] goes to rank j. Returns the ints received, by rank."""
        received = np.empty(self.world_size, np.int64)
        self._collectives.all_to_all(address(values), address(received), 1, DType.I64)
        return received

    def _check_memory(self, buffer: Buffer | None) -> None:
        """Raise UnsupportedError if the communicator cannot access the buffer's memory."""
        if buffer is not None and buffer.device is not None and not self.comm.device_memory:
            raise UnsupportedError(
                f"an array in device memory ({buffer.device.name})",
                self.comm.backend,
                "it works on host memory",
                "copy the array to the host first, or open the group with backend='nccl'",
            )

    def _check_receive(self, buffer: Buffer, src: int | None, tag: int) -> None:
        """Raise UnsupportedError if the communicator cannot receive such a message into the buffer."""
        if src is not None and ANY in (src, tag) and not self.comm.any_source:
            raise no_probe("recv from any rank or with any tag", self.comm.backend)
        self._check_memory(buffer)

    def _receive(self, buffer: Buffer, src: int, tag: int) -> Work[None]:
        """Start to receive a message of the buffer's length and dtype."""
        if self._queue is not None:
            return self._queue.recv(buffer, src, tag)
        return self.comm.recv(buffer.ptr, buffer.count, buffer.dtype, src, tag, buffer)

    def _await_stream_of(self, buffer: Buffer | None) -> None:
        """Make the communicator's stream wait for the program's work on the array's stream, if it is on a device."""
        if buffer is None or buffer.device is None:
            return
        streams = self.comm.stream_sync
        assert streams is not None, "a communicator that reaches device memory has a stream"
        event = streams.create_event()
        streams.record_on_stream(event, buffer.device.stream)
        streams.comm_stream_wait_event(event)
        streams.destroy_event(event)

    def _on_host(self, buffer: Buffer) -> Buffer:
        """Host memory in place of device memory, for an operation that computes on the host."""
        self._check_memory(buffer)
        if buffer.device is not None and buffer.origin is not None:
            buffer.pack()
            buffer.origin = None
        return buffer.kind.staged(buffer)

    def _pack(self, buffer: Buffer) -> None:
        """Prepare the buffer for the communicator to read."""
        buffer.pack()
        self._await_stream_of(buffer)

    def _finished(self, buffer: Buffer, refused: Exception | None = None) -> Any:
        """The operation's result, once its calls are complete. refused: an error to raise instead."""
        if refused is not None:
            raise refused
        return buffer.finish()

    def _codec(self, allow_pickle: bool | None) -> Codec:
        """How objects travel. allow_pickle: whether the other ranks may be trusted; None: as the group allows."""
        return self.trusting if (self.allow_pickle if allow_pickle is None else allow_pickle) else PLAIN

    def _destination(self, dst: int | None) -> int | None:
        """Check a message's destination; None is the null rank."""
        return None if dst is None else self._rank(dst, "dst")

    def _source(self, src: int | None) -> int | None:
        """Check a receive's source; None is the null rank."""
        return src if src is None or src is ANY else self._rank(src, "src")

    def _rank(self, value: int, name: str) -> int:
        number = value if type(value) is int else integer(value, name)
        if 0 <= number < self.world_size:
            return number
        raise ValueError(f"{name}={shown(number)}: expected a rank of the group, 0 to {self.world_size - 1}")

    def _part(self, shape: Shape) -> Shape:
        """The shape of this rank's part when axis 0 is split as by numpy.array_split."""
        rows, longer = divmod(shape[0], self.world_size)
        return (rows + (self.rank < longer), *shape[1:])

    def _late_result(self, out: Any, shape: Shape, like: Buffer) -> tuple[Buffer, Exception | None]:
        """Like buffers.result, for a shape received from other ranks, which now depend on this rank.

        An error about `out` is therefore returned instead of raised, and raised after the operation.
        """
        try:
            result = buffers.result(out, shape, like)
            self._check_memory(result)
        except (TypeError, ValueError, ImportError, UnsupportedError) as error:
            return buffers.scratch(shape, like.dtype), error
        self._await_stream_of(result)
        return result, None


class _OneOperation:
    """A context of several calls that are one operation.

    If an exception leaves it, such as a signal handler's, the group fails: the other ranks wait for the rest, which
    this rank's next operation is not. An error of this rank alone that must not do that is raised after it.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, RankwiseError):  # which has failed the group, or refuses
            with suppress(RankwiseError):
                self._comm.abort("it was interrupted between the calls of one operation")


def shaped(call: Call, shape: Shape) -> Call:
    """The call, in which the ranks compare the shape too, unless the count already implies it."""
    return call if len(shape) == 1 else call._replace(shape=shape)


def _after(first: Callable[[], object], then: Callable[[], T]) -> T:
    first()
    return then()


def array_for_part(x: Any, out: Any, shape: Shape, dtype: int) -> Any:
    """The array for a part: `out`, or a new one of the kind of x, which may be None. Raises an error about `out`."""
    if out is None and (x is None or type(x) is np.ndarray):
        return np.empty(shape, dtypes.to_numpy(DTYPES[dtype]))
    kind = NUMPY if x is None else buffers.source(x).kind
    return buffers.result(out, shape, without_memory(shape, DTYPES[dtype], kind)).finish()


def without_memory(shape: Shape, dtype: DType, kind: Kind) -> Buffer:
    return Buffer(0, 0, dtype, shape, None, kind, None)


def nothing() -> None:
    """The result of an operation that has none: None."""


MAX_TAG = 2**31 - 1

_OVERLAPPED = 512 << 10
"""Started operations on this many bytes run beside the program; shorter ones may be left to whoever waits. The same as
the engine's own."""


def check_one_source(src: int | None) -> int | None:
    """Refuse rw.ANY as the source of a receive whose result does not tell it."""
    if src is ANY:
        raise ValueError(
            "src=rw.ANY: expected a rank; recv_any receives from any rank, and tells from which, and so do "
            "the Works of irecv and irecv_object"
        )
    return src


def check_tag(value: int, name: str = "tag") -> int:
    tag = integer(value, name)
    if not 0 <= tag <= MAX_TAG:
        raise ValueError(f"{name}={tag}: expected 0 to {MAX_TAG}")
    return tag


def check_recv_tag(tag: int, name: str = "tag") -> int:
    """Check a receive's tag, which may be rw.ANY."""
    if tag is None:
        raise TypeError(f"{name}=None: expected 0 to {MAX_TAG}, or rw.ANY for a message with any tag")
    return tag if tag is ANY else check_tag(tag, name)


def of_kind(value: T, name: str, kinds: Any, expected: str) -> T:
    """Check the class of an argument. A TypeError names it if it is not an instance of `kinds`."""
    if not isinstance(value, kinds):
        raise TypeError(f"{name}={value!r}: expected {expected}, got {type(value).__name__}")
    return value


def each_of(values: Iterable[T], name: str, expected: str) -> Iterator[T]:
    """iter(values), of an argument. A TypeError names it if it has no elements."""
    try:
        return iter(values)
    except TypeError:
        raise TypeError(f"{name}={values!r}: expected {expected}, got {type(values).__name__}") from None


def integer(value: int, name: str) -> int:
    """Check an int argument. A TypeError names it if it is not an int."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: expected an int, got {type(value).__name__}") from None


def integer_64(value: int, name: str) -> int:
    """Check an int argument that must fit into a signed 64-bit integer; raises ValueError if it does not."""
    number = integer(value, name)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{name}={shown(number)}: expected an int from -2**63 to 2**63 - 1")
    return number


def check_axis_0(given: Buffer) -> Buffer:
    """Return the buffer; raise ValueError if it has no axis 0."""
    if not given.shape:
        raise ValueError("x: expected an array with an axis 0, got a number or a 0-d array")
    return given


def split_counts(shape: Shape, parts: int) -> list[int]:
    """The number of elements in each part when axis 0 is split as by numpy.array_split."""
    row = prod(shape[1:])
    return [rows * row for rows in divided(shape[0], parts)]
