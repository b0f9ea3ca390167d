"""Point-to-point messages between ranks of several hosts: shared memory within a host, the engine between hosts.

A receive from any rank may match a message from either, and a receive that was posted cannot be cancelled. So such a
receive is *deferred*: both are probed until its message has arrived, and then it is posted to the one that has the
message. A thread does this while receives are deferred, since the sender of a large message waits for its receive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import ref

from rankwise.backends.composed import communicator as composed
from rankwise.backends.composed.outer_work import OuterWork
from rankwise.backends.composed.part_errors import of_the_group
from rankwise.backends.hierarchical.hosts import Layout
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import CollectiveTimeout, RankwiseError
from rankwise.contract.message import ANY, Message, Taken, matches, overlap
from rankwise.contract.types import DType
from rankwise.contract.work import Work

T = TypeVar("T")

SLEEP, LONGEST_SLEEP = 20e-6, 1e-3  # seconds between two probes, as long as they find nothing


class Channel(composed.Channel):
    """The messages of one rank. Ranks are numbered as in the group."""

    def __init__(
        self,
        local: Communicator,
        flat: Communicator,
        layout: Layout,
        failed: Callable[[RankwiseError, str], RankwiseError],
    ) -> None:
        """local: this host's ranks. flat: all ranks. failed: fails the group because of an error in this operation, and
        returns what to raise."""
        super().__init__()
        self._local, self._flat, self._layout = local, flat, layout
        self._host = layout.host[flat.rank]
        self._members = layout.members[self._host]
        self.failed = failed
        self._lock = threading.Lock()
        self._deferred: list[DeferredReceive] = []  # in the order posted
        self._local_first = True
        self._prober: threading.Thread | None = None
        self.closed = False

    @property
    def timeout(self) -> float:
        return self._local.timeout

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int, keep: object) -> Work[None]:
        part, number = self._way(dest)
        return self._start(part, "send", part.send, ptr, count, dtype, number, tag, keep)

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int, keep: object) -> Work[None]:
        with self._lock:
            # A receive waits behind a deferred one that could match the same message.
            if src != ANY and not any(overlap(earlier, src, tag) for earlier in self._deferred):
                part, number = self._way(src)
                return self._start(part, "recv", part.recv, ptr, count, dtype, number, tag, keep)
            receive = DeferredReceive(self, ptr, count, dtype, src, tag, keep)
            self._deferred.append(receive)
        self.progress()
        self._start_prober()
        return receive

    def probe(self, src: int, tag: int) -> Message | None:
        while True:
            self.progress()
            with self._lock:
                found = self._find(src, tag)
                if found is None or self._taker(found) is None:
                    return found

    def take(self, src: int, tag: int) -> Taken | None:
        self.progress()
        with self._lock:
            found = self._find(src, tag)
            if found is None or self._taker(found) is not None:
                return None
            part, number = self._way(found.source)
            taken = self._begin(part, "recv", part.take, number, found.tag)
            if taken is None:
                return None
            work = PartWork(taken.work, self._ranks(part), "recv")
            return taken._replace(source=found.source, work=work)

    def sync(self) -> None:
        for receive in list(self._deferred):
            receive.wait()
        self._local.sync()
        self._flat.sync()

    def progress(self) -> bool:
        """Begin the deferred receives whose messages have arrived. Returns True if all have begun."""
        with self._lock:
            for receive in list(self._deferred):
                try:
                    found = self._find(receive.source, receive.tag)
                    taker = None if found is None else self._taker(found)
                    if found is not None and taker is not None:
                        self._deferred.remove(taker)
                        part, number = self._way(found.source)
                        inner = self._start(
                            part, "recv", part.recv, taker.ptr, taker.count, taker.dtype, number, found.tag, taker.keep
                        )
                        taker.begin(found.source, found.tag, inner)
                except RankwiseError as error:
                    self._deferred.remove(receive)
                    receive.end(error)
            return not self._deferred

    def fail(self, error: RankwiseError) -> None:
        """The group has failed: every deferred receive raises this error."""
        with self._lock:
            waiting, self._deferred = self._deferred, []
        for receive in waiting:
            receive.end(error)

    def close(self) -> None:
        """End the thread."""
        self.closed = True
        prober = self._prober
        if prober is not None and prober is not threading.current_thread():
            prober.join(1.0)

    def _start_prober(self) -> None:
        with self._lock:
            if self._deferred and self._prober is None and not self.closed:
                self._prober = threading.Thread(target=_probe, args=(ref(self),), name="rankwise receives", daemon=True)
                self._prober.start()

    def stop_prober(self) -> bool:
        """End the thread, unless a receive has been deferred meanwhile."""
        with self._lock:
            if self._deferred and not self.closed:
                return False
            self._prober = None
            return True

    def _find(self, src: int, tag: int) -> Message | None:
        """The message that a receive would match now."""
        if src != ANY:
            part, number = self._way(src)
            return self._numbered(part, part.probe(number, tag))
        self._local_first = not self._local_first
        parts = (self._local, self._flat) if self._local_first else (self._flat, self._local)
        for part in parts:
            found = self._numbered(part, part.probe(ANY, tag))
            if found is not None:
                return found
        return None

    def _taker(self, found: Message) -> DeferredReceive | None:
        return next((one for one in self._deferred if matches(found, one.source, one.tag)), None)

    def _begin(self, part: Communicator, operation: str, begin: Callable[..., T], *args: Any) -> T:
        """A call of a part, whose errors have the group's rank numbers."""
        try:
            return begin(*args)
        except RankwiseError as error:
            found = of_the_group(error, self._ranks(part), operation)
            raise found from found.__cause__

    def _start(self, part: Communicator, operation: str, start: Callable[..., Work[None]], *args: Any) -> PartWork:
        return PartWork(self._begin(part, operation, start, *args), self._ranks(part), operation)

    def _ranks(self, part: Communicator) -> Sequence[int]:
        return self._members if part is self._local else range(self._flat.world_size)

    def _way(self, peer: int) -> tuple[Communicator, int]:
        """The communicator for messages between this rank and another, and the other's number in it."""
        if self._layout.host[peer] == self._host:
            return self._local, self._layout.local(peer)
        return self._flat, peer

    def _numbered(self, part: Communicator, found: Message | None) -> Message | None:
        """A message that `part` found, with its sender's number in the group."""
        if found is None or part is self._flat:
            return found
        return Message(self._members[found.source], found.tag, found.count, found.dtype)


class PartWork(OuterWork):
    """A Work of a part of the group. ranks: the part's ranks, numbered in the group. operation: for errors."""

    def __init__(self, inner: Work[None], ranks: Sequence[int], operation: str) -> None:
        super().__init__(inner)
        self._ranks, self._operation = ranks, operation

    @property
    def source(self) -> int:
        """A receive's source, numbered in the group."""
        return self._ranks[self.inner.source]  # type: ignore[attr-defined]  # see Communicator.recv

    def wait(self, timeout: float | None = None) -> None:
        try:
            super().wait(timeout)
        except RankwiseError as error:
            found = of_the_group(error, self._ranks, self._operation)
            raise found from found.__cause__


class DeferredReceive(Work[None]):
    """A receive whose message has not arrived. Until then source and tag are as requested, then the message's."""

    def __init__(
        self, channel: Channel, ptr: int, count: int, dtype: DType, source: int, tag: int, keep: object
    ) -> None:
        self.ptr, self.count, self.dtype, self.keep = ptr, count, dtype, keep
        self.source, self.tag = source, tag
        self._channel = channel
        self._inner: Work[None] | None = None
        self._error: RankwiseError | None = None
        self._begun = threading.Event()

    def begin(self, source: int, tag: int, inner: Work[None]) -> None:
        self.source, self.tag, self._inner = source, tag, inner
        self.keep = None
        self._begun.set()

    def end(self, error: RankwiseError) -> None:
        self._error = error
        self._begun.set()

    def wait(self, timeout: float | None = None) -> None:
        start = time.monotonic()
        limit = self._channel.timeout if timeout is None else timeout
        if not self._begun.wait(limit):
            error = CollectiveTimeout(f"recv was not complete within {limit:.3g} s", limit=limit, operation="recv")
            raise error if timeout is not None else self._channel.failed(error, "recv")
        if self._error is not None:
            raise self._error
        assert self._inner is not None
        self._inner.wait(None if timeout is None else max(0.0, timeout - (time.monotonic() - start)))

    def done(self) -> bool:
        return self._begun.is_set() and (self._inner is None or self._inner.done())


def _probe(channel: ref[Channel]) -> None:
    """The thread: it ends when no receive is deferred, and does not keep the channel alive."""
    sleep = SLEEP
    while (present := channel()) is not None and not present.closed:
        if present.progress() and present.stop_prober():
            return
        del present
        time.sleep(sleep)
        sleep = min(2 * sleep, LONGEST_SLEEP)
