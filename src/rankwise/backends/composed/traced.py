"""TracedCommunicator: what any communicator does is written to the trace of its job."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count as numbers_from
from typing import Any, TypeVar

from rankwise._native import TraceWriter, WrittenOperation, uncounted
from rankwise.contract.closing import CLOSE_TIMEOUT
from rankwise.contract.communicator import Communicator, bind
from rankwise.contract.message import ANY, IncomingMessage
from rankwise.contract.operations import SPLIT, Call
from rankwise.contract.types import DType
from rankwise.contract.work import OuterWork, Work

T = TypeVar("T")

_LAUNCHED = 64  # operations that a rank may have launched without a `sync`; then the first of them counts as ended


class TracedCommunicator(Communicator):
    """One rank's end of the same group, whose operations `rankwise status` and `rankwise trace` show.

    It is for backends that do not write to the trace themselves. It knows when an operation began and ended, and not
    how much of that time this rank waited for others: all of it counts as waiting. An operation of a communicator that
    is not blocking ends with the next `sync`. It owns the communicator that it wraps.
    """

    traced = True

    def __init__(self, inner: Communicator, writer: TraceWriter, group: int = 0) -> None:
        """writer: the rank's, for all of its groups. group: this one's number in the trace, the same on its ranks."""
        self._inner, self._writer, self._group = inner, writer, group
        self.backend = inner.backend
        self._numbers = numbers_from(1)
        self._launched: deque[WrittenOperation] = deque()
        self.blocking, self.device_memory, self.any_source = inner.blocking, inner.device_memory, inner.any_source
        self.stream_sync = inner.stream_sync
        bind(self, inner, "allocate", "allocating", "await_arrival", "call", "failed", "left", "probe", "start_call")
        bind(self, inner, "host_memory", "words")
        if inner.announce_array is not None:
            self.announce_array = partial(self._announced, inner.announce_array)

    @classmethod
    def in_segment(cls, inner: Communicator, segment_fd: int, index: int | None = None) -> TracedCommunicator:
        """`inner`, the communicator of all ranks of a job, traced.

        segment_fd: descriptor of the launcher's shared memory. index: this rank's number there, by default its rank.
        """
        writer = TraceWriter(segment_fd, inner.rank if index is None else index)
        writer.begin("init", 0, 0, 0).end()
        return cls(inner, writer)

    def __getattr__(self, name: str) -> Any:
        """What a backend has beyond the contract."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return f"<traced {self._inner!r}>"

    @property
    def closed(self) -> bool:  # type: ignore[override]  # it is the inner communicator's
        return self._inner.closed

    @property
    def rank(self) -> int:
        return self._inner.rank

    @property
    def world_size(self) -> int:
        return self._inner.world_size

    @property
    def timeout(self) -> float:
        return self._inner.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._inner.timeout = seconds

    # ---- collectives ----

    def run(self, call: Call) -> None:
        self._collective(call, self._inner.run, call)

    def split(self, color: int, key: int = 0) -> Communicator | None:
        part = self._collective(Call(SPLIT), self._inner.split, color, key)
        if part is None:
            return None
        number = array("q", [self._writer.new_group() if part.rank == 0 else 0])
        uncounted(part.broadcast, number.buffer_info()[0], 1, DType.I64, 0)
        uncounted(part.sync)
        return TracedCommunicator(part, self._writer, number[0])

    def _announced(self, announce: Callable[..., bytes | None], *args: Any) -> bytes | None:
        entry = self._writer.begin("scatter", self._group, next(self._numbers), 0, peer=args[-1])
        result = self._entered(entry, announce, *args)
        entry.end()
        return result

    # ---- going on after a loss ----

    def agree(self, flag: int) -> int:
        return self._recovering("agree", flag)  # type: ignore[no-any-return]

    def shrink(self, exclude: Sequence[int] = ()) -> Communicator:
        return self._follow(self._recovering("shrink", exclude))

    def restore(self) -> Communicator:
        return self._follow(self._recovering("restore"))

    def abort(self, reason: str) -> None:
        self._inner.abort(reason)

    def _recovering(self, operation: str, *args: Any) -> Any:
        entry = self._writer.begin(operation, self._group, 0, 0)
        result = self._entered(entry, getattr(self._inner, operation), *args)
        entry.end()
        return result

    def _follow(self, new: Communicator) -> Communicator:
        """The communicator in which the survivors go on. It may fail at any moment, so it gets no number of its own."""
        traced = TracedCommunicator(new, self._writer, self._group)
        traced.former_ranks = new.former_ranks
        return traced

    def start(self, call: Call, keep: object = None, result: Any = None) -> Work[Any]:
        entry = self._begin(call, background=True)
        return _in_progress(self._entered(entry, self._inner.start, call, keep, result), entry)

    def name_group(self, name: str) -> None:
        self._writer.name_group(self._group, name)

    # ---- messages ----

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int = 0, keep: object = None) -> Work[None]:
        entry = self._message("send", count, dtype, dest, tag)
        return _in_progress(self._entered(entry, self._inner.send, ptr, count, dtype, dest, tag, keep), entry)

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int = 0, keep: object = None) -> Work[None]:
        entry = self._message("recv", count, dtype, src, tag)
        work = self._entered(entry, self._inner.recv, ptr, count, dtype, src, tag, keep)
        return _in_progress(work, entry, matches=ANY in (src, tag))

    def start_arrived(self, src: int, tag: int) -> IncomingMessage | None:
        incoming = self._inner.start_arrived(src, tag)
        if incoming is None:
            return None
        message = incoming.message
        entry = self._message("recv", message.count, message.dtype, message.source, message.tag)
        return incoming._replace(work=_in_progress(incoming.work, entry))

    # ---- the rest of the contract ----

    def sync(self) -> None:
        self._inner.sync()
        while self._launched:
            self._launched.popleft().end()

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        self._inner.close(timeout)

    # ---- entries of the trace ----

    def _collective(self, call: Call, function: Callable[..., T], *args: Any) -> T:
        """function(*args), which makes this call."""
        entry = self._begin(call)
        result = self._entered(entry, function, *args)
        if self.blocking:
            entry.end()
        else:
            self._launched.append(entry)
            if len(self._launched) > _LAUNCHED:
                self._launched.popleft().end()
        return result

    def _entered(self, entry: WrittenOperation, function: Callable[..., T], *args: Any) -> T:
        """function(*args), whose error is the operation's."""
        try:
            return function(*args)
        except BaseException:
            entry.end(failed=True)
            raise

    def _begin(self, call: Call, *, background: bool = False) -> WrittenOperation:
        """A collective begins."""
        nbytes = call.own_bytes(self.rank, self.world_size)
        what = call.operation.name, self._group, next(self._numbers), nbytes, call.dtype
        return self._writer.begin(*what, call.op or 0, call.root or 0, background=background)

    def _message(self, operation: str, count: int, dtype: DType, peer: int, tag: int) -> WrittenOperation:
        nbytes = count * dtype.itemsize
        return self._writer.begin(operation, self._group, 0, nbytes, dtype, 0, peer, tag, background=True)


def _in_progress(work: Any, entry: WrittenOperation, *, matches: bool = False) -> Work[Any]:
    """An operation in progress, whose entry in the trace ends when the operation has been waited for.

    matches: it is a receive from any rank or with any tag, whose message is known when it is complete.
    """

    def wait(timeout: float | None) -> Any:
        entry.wait()
        try:
            result = work.wait(timeout)
        except BaseException:
            if work.done():
                entry.end(failed=True)
            raise
        if matches:
            entry.matched(work.source, work.tag)
        entry.end()
        return result

    return OuterWork(wait, work, cancelled=partial(entry.end, failed=True))
