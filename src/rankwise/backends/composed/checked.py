"""CheckedCommunicator: the ranks of any communicator compare their calls before each collective."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise.backends.composed.comparing import ComparingCommunicator
from rankwise.contract.communicator import Communicator, bind, complete
from rankwise.contract.message import IncomingMessage, Message
from rankwise.contract.operations import Call
from rankwise.contract.types import DType
from rankwise.contract.work import Work


class CheckedCommunicator(ComparingCommunicator):
    """One rank's communicator in the same group, whose collectives raise MismatchError if the ranks' calls differ.

    The comparison, its envelopes and its errors are the same as in the backends over other engines; here the engine
    is another communicator. Its collectives are complete when they return. It owns the communicator that it wraps. It
    need not inform the other ranks of a failure: the inner group knows its own, and every rank finds a difference.
    """

    def __init__(self, inner: Communicator) -> None:
        self._inner, self._complete = inner, complete(inner)
        self.backend = inner.backend
        self.any_source, self.device_memory, self.traced = inner.any_source, inner.device_memory, inner.traced
        bind(self, inner, "agree", "allocate", "allocating", "await_arrival", "failed", "host_memory", "left")
        bind(self, inner, "name_group", "words")
        super().__init__(inner.rank, inner.world_size, inner.timeout, checks=True)

    def _timeout_set(self, timeout: float) -> None:
        self._inner.timeout = timeout

    # ---- point-to-point ----

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int = 0, keep: object = None) -> Work[None]:
        self._check_usable()
        return self._inner.send(ptr, count, dtype, dest, tag, keep)

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int = 0, keep: object = None) -> Work[None]:
        self._check_usable()
        return self._inner.recv(ptr, count, dtype, src, tag, keep)

    def probe(self, src: int, tag: int) -> Message | None:
        self._check_usable()
        return self._inner.probe(src, tag)

    def start_arrived(self, src: int, tag: int) -> IncomingMessage | None:
        self._check_usable()
        return self._inner.start_arrived(src, tag)

    def sync(self) -> None:
        self._drain()
        self._check_usable()
        self._inner.sync()

    # ---- collectives ----

    def run(self, call: Call) -> None:
        call.check(self._world_size)
        self._run(call, self._complete.run, (call,))

    def _collect(self, own: int, everybody: int, size: int) -> None:
        self._complete.all_gather(own, everybody, size, DType.U8)

    # ---- going on after a loss ----

    def shrink(self, exclude: Sequence[int] = ()) -> CheckedCommunicator:
        return self._follow(self._inner.shrink(exclude))

    def restore(self) -> CheckedCommunicator:
        return self._follow(self._inner.restore())

    def abort(self, reason: str) -> None:
        super().abort(reason)
        self._inner.abort(reason)

    def _follow(self, new: Communicator) -> CheckedCommunicator:
        checked = CheckedCommunicator(new)
        checked.former_ranks = new.former_ranks
        return checked

    # ---- groups, ends ----

    def _part(self, color: int, members: Sequence[int]) -> CheckedCommunicator:
        part = self._inner.split(color, members.index(self._rank))
        assert part is not None
        return CheckedCommunicator(part)

    def _no_part(self) -> None:
        self._inner.split(-1)

    def _release(self, timeout: float, healthy: bool) -> None:
        self._inner.close(timeout)
