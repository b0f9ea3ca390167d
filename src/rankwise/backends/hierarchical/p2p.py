"""Point-to-point messages between ranks of several hosts: shared memory within a host, the engine between hosts.

A receive from any rank may match a message from either, and an engine may be unable to cancel a receive. So such a
receive is *deferred*: both are probed until its message has arrived, and then it is posted to the one that has the
message. A thread does this while receives are deferred, since the sender of a large message waits for its receive.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import ref

from rankwise._native import HostStream
from rankwise.backends.composed import p2p as composed
from rankwise.backends.composed.p2p import PendingMessage
from rankwise.backends.hierarchical.hosts import Layout
from rankwise.backends.hierarchical.inner_group import InnerGroup
from rankwise.contract.errors import RankwiseError
from rankwise.contract.message import ANY, IncomingMessage, Message, matches, overlap
from rankwise.contract.types import DType
from rankwise.contract.work import Work

SLEEP, LONGEST_SLEEP = 20e-6, 1e-3  # seconds between two probes, as long as they find nothing


class Channel(composed.Channel):
    """The messages of one rank. Ranks are numbered as in the group."""

    def __init__(
        self,
        local: InnerGroup,
        flat: InnerGroup,
        layout: Layout,
        failed: Callable[[Exception, str], RankwiseError],
    ) -> None:
        """local: this host's ranks. flat: all ranks. failed: as in every channel."""
        super().__init__(failed)
        self._local, self._flat, self._layout = local, flat, layout
        self._host = layout.host[flat.comm.rank]
        self._local_first = True
        self._prober = HostStream.create()
        self.closed = False

    @property
    def timeout(self) -> float:
        return self._local.comm.timeout

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int, keep: object) -> Work[None]:
        part, number = self._way(dest)
        return self._start(part, "send", ptr, count, dtype, number, tag, keep)

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int, keep: object) -> Work[None]:
        with self.lock:
            # A receive waits behind a deferred one that could match the same message.
            if src != ANY and not any(overlap(earlier, src, tag) for earlier in self.waiting):
                part, number = self._way(src)
                return self._start(part, "recv", ptr, count, dtype, number, tag, keep)
            receive = PendingMessage(self, "recv", ptr, count, dtype, src, tag, keep)
            self.waiting.append(receive)
        if not self.progress():
            self._prober.submit(partial(_probe, ref(self)))
        return receive

    def probe(self, src: int, tag: int) -> Message | None:
        while True:
            self.progress()
            with self.lock:
                message = self._find("probe", src, tag)
                if message is None or self._taker(message) is None:
                    return message

    def start_arrived(self, src: int, tag: int) -> IncomingMessage | None:
        self.progress()
        with self.lock:
            message = self._find("recv", src, tag)
            if message is None or self._taker(message) is not None:
                return None
            part, number = self._way(message.source)
            incoming = part.do("recv", part.comm.start_arrived, number, message.tag)
            if incoming is None:
                return None
            return incoming._replace(source=message.source, work=part.message("recv", incoming.work))

    def sync(self) -> None:
        super().sync()
        for part in (self._local, self._flat):
            part.do("sync", part.comm.sync)

    def progress(self) -> bool:
        """Begin the deferred receives whose messages have arrived. Returns True if all have begun."""
        with self.lock:
            for receive in list(self.waiting):
                try:
                    message = self._find("recv", receive.source, receive.tag)
                    taker = None if message is None else self._taker(message)
                    if message is not None and taker is not None:
                        self.waiting.remove(taker)
                        part, number = self._way(message.source)
                        inner = self._start(
                            part, "recv", taker.ptr, taker.count, taker.dtype, number, message.tag, taker.keep
                        )
                        taker.source, taker.tag = message.source, message.tag
                        taker.end(rest=inner)
                except RankwiseError as error:
                    if receive in self.waiting:  # `fail` has not ended it
                        self.waiting.remove(receive)
                        receive.end(error)
            return not self.waiting

    def fail(self, error: RankwiseError) -> None:
        """The group has failed: every deferred receive raises this error."""
        with self.lock:
            waiting, self.waiting = self.waiting, []
        for receive in waiting:
            receive.end(error)

    def close(self) -> None:
        """End the thread."""
        self.closed = True
        self._prober.close(1.0)

    def _find(self, operation: str, src: int, tag: int) -> Message | None:
        """The message that a receive would match now. operation: that looks for it, for errors."""
        if src != ANY:
            part, number = self._way(src)
            return self._probe(part, operation, number, tag)
        self._local_first = not self._local_first
        parts = (self._local, self._flat) if self._local_first else (self._flat, self._local)
        return next(
            (message for part in parts if (message := self._probe(part, operation, ANY, tag)) is not None), None
        )

    def _probe(self, part: InnerGroup, operation: str, src: int, tag: int) -> Message | None:
        """The message that `part` finds, with its sender's number in the group."""
        message = part.do(operation, part.comm.probe, src, tag)
        return None if message is None else replace(message, source=part.ranks[message.source])

    def _taker(self, message: Message) -> PendingMessage | None:
        return next((receive for receive in self.waiting if matches(message, receive.source, receive.tag)), None)

    def _start(self, part: InnerGroup, operation: str, *args: Any) -> Work[None]:
        return part.message(operation, part.do(operation, getattr(part.comm, operation), *args))

    def _way(self, peer: int) -> tuple[InnerGroup, int]:
        """The part for messages between this rank and another, and the other's number in it."""
        if self._layout.host[peer] == self._host:
            return self._local, self._layout.local(peer)
        return self._flat, peer


def _probe(channel: ref[Channel]) -> None:
    """Until no receive is deferred, or the channel is closed. It does not keep the channel alive."""
    sleep = SLEEP
    while (present := channel()) is not None and not present.closed:
        if present.progress():
            return
        del present
        time.sleep(sleep)
        sleep = min(2 * sleep, LONGEST_SLEEP)
