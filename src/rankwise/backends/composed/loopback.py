"""Messages of a rank to itself, for engines that have none."""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict, deque
from collections.abc import Callable

from rankwise.backends.composed.calls import DTYPE_NAMES, ITEMSIZE
from rankwise.contract.errors import CollectiveTimeout, MismatchError
from rankwise.contract.types import DType
from rankwise.contract.work import Work


class SelfMessage(Work[None]):
    """One side of a message to oneself; both sides are over when they have met."""

    def __init__(self, ptr: int, count: int, dtype: DType, limit: Callable[[], float]) -> None:
        self.ptr, self.count, self.dtype = ptr, count, dtype
        self.error: Exception | None = None
        self.over = threading.Event()
        self._limit = limit

    def wait(self, timeout: float | None = None) -> None:
        limit = self._limit() if timeout is None else timeout
        if not self.over.wait(limit):
            raise CollectiveTimeout(f"a message to oneself met no other side within {limit:g} s", limit=limit)
        if self.error is not None:
            raise self.error

    def done(self) -> bool:
        return self.over.is_set()


class Loopback:
    """Where a rank's messages to itself meet: by tag, in the order posted. The data is copied once."""

    def __init__(self, limit: Callable[[], float]) -> None:
        """limit: gives the seconds that `wait` waits where it is not told."""
        self._limit = limit
        self._lock = threading.Lock()
        self._sends: dict[int, deque[SelfMessage]] = defaultdict(deque)
        self._recvs: dict[int, deque[SelfMessage]] = defaultdict(deque)

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int) -> SelfMessage:
        mine = SelfMessage(ptr, count, dtype, self._limit)
        with self._lock:
            self._sends[tag].append(mine)
            self._meet(tag)
        return mine

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int) -> SelfMessage:
        mine = SelfMessage(ptr, count, dtype, self._limit)
        with self._lock:
            self._recvs[tag].append(mine)
            self._meet(tag)
        return mine

    def _meet(self, tag: int) -> None:
        if not (self._sends[tag] and self._recvs[tag]):
            return
        sent, received = self._sends[tag].popleft(), self._recvs[tag].popleft()
        received.error = mismatch(tag, sent.count, sent.dtype, received.count, received.dtype)
        if received.error is None:
            ctypes.memmove(received.ptr, sent.ptr, sent.count * ITEMSIZE[sent.dtype])
        sent.over.set()
        received.over.set()


def mismatch(tag: int, sent: int, sent_dtype: DType, expected: int, dtype: DType) -> MismatchError | None:
    """What is wrong where a message of `sent` elements comes to a receive of `expected`; None where nothing is."""
    if (sent, sent_dtype) == (expected, dtype):
        return None
    return MismatchError(
        f"recv: the message is (count={sent}, dtype={DTYPE_NAMES[sent_dtype]}, tag={tag}), "
        f"the receive expects (count={expected}, dtype={DTYPE_NAMES[dtype]})"
    )
