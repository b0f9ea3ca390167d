"""How the backends over other engines send and receive messages."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from rankwise.contract.errors import ClosedError, CollectiveTimeout, RankwiseError
from rankwise.contract.message import IncomingMessage, Message, late
from rankwise.contract.types import DType
from rankwise.contract.work import COMPLETE, Work, ended, wait_until


class Channel(ABC):
    """How an engine's adapter sends and receives messages, whose arguments have been checked: see Communicator."""

    def __init__(self, failed: Callable[[Exception, str], RankwiseError]) -> None:
        """failed: fails the group because of an error in this operation, and returns what to raise."""
        self.failed = failed
        self.pending: dict[int, Work[None]] = {}
        """What `sync` waits for: a message from `begun` until `over`."""
        self.lock = threading.RLock()
        self.waiting: list[PendingMessage] = []
        """Receives that no message has matched, in the order posted, where the adapter matches them; under the lock."""

    @property
    @abstractmethod
    def timeout(self) -> float:
        """Seconds that a message may take if its `wait` has no limit of its own; after that the group fails."""

    @abstractmethod
    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int, keep: object) -> Work[None]: ...
    @abstractmethod
    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int, keep: object) -> Work[None]: ...
    @abstractmethod
    def probe(self, src: int, tag: int) -> Message | None: ...
    @abstractmethod
    def start_arrived(self, src: int, tag: int) -> IncomingMessage | None: ...

    def begun(self, work: Work[None]) -> None:
        self.pending[id(work)] = work

    def over(self, work: Work[None]) -> None:
        self.pending.pop(id(work), None)

    def sync(self) -> None:
        for work in list(self.pending.values()):
            work.wait()

    def flush(self, end: float) -> None:
        """Wait for pending messages until `end` (of time.monotonic); CollectiveTimeout if some are still pending."""
        for work in list(self.pending.values()):
            wait_until(end, work, partial(CollectiveTimeout, "messages that were not received in time are dropped"))


class PendingMessage(Work[None]):
    """A message that its channel ends. Until a receive has been matched, its source and tag are as requested.

    source: of a send, its destination. keep: what owns the memory, as long as the channel has not ended it.
    """

    def __init__(
        self, channel: Channel, operation: str, ptr: int, count: int, dtype: DType, peer: int, tag: int, keep: object
    ) -> None:
        self.operation, self.ptr, self.count, self.dtype = operation, ptr, count, dtype
        self.source, self.tag, self.keep = peer, tag, keep
        self._channel = channel
        self._over = threading.Event()
        self._rest: Work[None] = COMPLETE
        channel.begun(self)

    def end(self, error: RankwiseError | None = None, rest: Work[None] = COMPLETE) -> None:
        """It has failed, or nothing is left to wait for but `rest`."""
        self._rest = rest if error is None else ended(error=error)
        self.keep = None
        self._over.set()
        self._channel.over(self)

    def wait(self, timeout: float | None = None) -> None:
        limit = self._channel.timeout if timeout is None else timeout
        end = time.monotonic() + limit
        if not self._over.wait(limit):
            error = late(self.operation, limit, self.source, self.tag)
            raise error if timeout is not None else self._channel.failed(error, self.operation)
        if timeout is None:
            self._rest.wait()
        else:
            wait_until(end, self._rest, lambda: late(self.operation, limit, self.source, self.tag))

    def cancel(self) -> bool:
        with self._channel.lock:
            if self not in self._channel.waiting:
                return False
            self._channel.waiting.remove(self)
        self.end(ClosedError(f"{self.operation} was cancelled"))
        return True

    def done(self) -> bool:
        return self._over.is_set() and self._rest.done()
