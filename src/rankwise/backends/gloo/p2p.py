"""Point-to-point messages over gloo: envelopes, which contain small data and are followed by large data.

gloo has neither a probe nor a receive with any tag, and it ends a process that receives more than it expects. So a
message is announced by an *envelope*, which holds small data as well (eager); large data follows on a tag of its own
once a receive has matched the envelope (rendezvous), of which the receiver sends the sender a notice. The notice also
says how much eager data has been received. While more than GLOO_UNRECEIVED bytes may not have been, small data follows
too, so that neither side keeps more than that.
For each peer that this rank receives from, or sends large data to, a thread takes the envelopes and notices. It starts
with the first such message.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

from rankwise._native import HostStream, address
from rankwise.backends import tuning
from rankwise.backends.composed import p2p as composed
from rankwise.backends.composed.matching import Matching, mismatch
from rankwise.backends.composed.p2p import PendingMessage
from rankwise.backends.gloo.transport import Transport
from rankwise.contract.errors import RankwiseError
from rankwise.contract.message import ANY, IncomingMessage, Message
from rankwise.contract.types import ITEMSIZE, DType
from rankwise.contract.work import COMPLETE, Work

MATCHED = -1
"""In place of a dtype: this is a notice that a receive has matched the message `number`. eager: what the receiver has
received since its last notice, as the sum of these fields.
"""

HEADER = np.dtype([(name, np.int64) for name in ("tag", "count", "dtype", "number", "eager")])
"""An envelope's header: the message's tag, count and dtype, how many its sender sent to this rank before, and how many
bytes of memory an eager message takes; 0 if its data follows.
"""

OVERHEAD = 3 << 10  # bytes of memory that an eager message takes besides its data, on either side; measured

ENVELOPE_TAG = 0
DATA_TAGS = 1 << 30  # the data of message `number` has the tag 1 + number % DATA_TAGS


@dataclass(eq=False)
class Envelope:
    """An announced message. data: the address of its bytes, if this rank has them; keep: what owns them, or None."""

    source: int
    tag: int
    count: int
    dtype: DType
    number: int = 0
    eager: int = 0
    data: int | None = None
    keep: object = None
    sending: PendingMessage | None = None  # of a large message to oneself

    def own(self) -> None:
        """Copy eager data, since its memory is about to be used again."""
        if self.eager and self.data is not None:
            memory = np.empty(self.count * ITEMSIZE[self.dtype], np.uint8)
            ctypes.memmove(address(memory), self.data, memory.nbytes)
            self.data, self.keep = address(memory), memory


class Channel(composed.Channel):
    """The messages of one rank of a gloo group. Any thread may call."""

    def __init__(
        self,
        transport: Transport,
        failed: Callable[[Exception, str], RankwiseError],
        has_left: Callable[[int], bool],
    ) -> None:
        """failed: as in every channel. has_left: whether a peer, whose connection has ended, had closed the group."""
        super().__init__(failed)
        self.transport = transport
        self._has_left = has_left
        self._rank = transport.rank
        self._arrived = threading.Condition(self.lock)  # a message for which no receive was posted
        self._matching: Matching[PendingMessage, Envelope] = Matching()
        self.waiting = self._matching.receives
        self._outgoing = HostStream.create()  # releases each envelope once it has been sent
        self._transfers: dict[int, HostStream] = {}  # by peer: waits for data that gloo is moving
        # Sends of large data and torch's Works that do them, by target and number.
        self._unmatched: dict[tuple[int, int], tuple[PendingMessage, Any]] = {}
        self._lost: list[object] = []  # memory that gloo may still use, although starting the message was interrupted
        self._sent = [0] * transport.world_size
        # Of eager messages, by peer: the bytes that it may not have received, and those that it does not know that this
        # rank has received.
        self._unreceived, self._received = [0] * transport.world_size, [0] * transport.world_size
        self._listeners: dict[int, threading.Thread] = {}  # by peer
        self._left: dict[int, Exception] = {}  # the peers whose connections have ended, and the error
        self._failure: RankwiseError | None = None
        self._closed = False

    @property
    def timeout(self) -> float:
        return self.transport.timeout

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int, keep: object) -> Work[None]:
        size = count * ITEMSIZE[dtype]
        eager = size + OVERHEAD if size <= tuning.GLOO_EAGER else 0
        if dest == self._rank:
            sent = None if eager else PendingMessage(self, "send", ptr, count, dtype, dest, tag, keep)
            self._arrive(Envelope(dest, tag, count, dtype, eager=eager, data=ptr, sending=sent))
            return sent or COMPLETE
        with self.lock:  # envelopes leave in the order of their numbers
            number = self._sent[dest]
            self._sent[dest] += 1
            if self._unreceived[dest] + eager > tuning.GLOO_UNRECEIVED:
                eager = 0
            self._unreceived[dest] += eager
            memory = _header(tag, count, dtype, number, eager, size if eager else 0)
            failure: Exception | None = None
            try:
                if eager:
                    ctypes.memmove(address(memory) + HEADER.itemsize, ptr, size)
                    self._post(dest, memory)
                    return COMPLETE
                data = self.transport.send(ptr, size, dest, _data_tag(number))
                self._post(dest, memory)
                sending = PendingMessage(self, "send", ptr, count, dtype, dest, tag, keep)
                self._unmatched[dest, number] = sending, data
            except RuntimeError as error:
                failure = error
            except BaseException:  # a signal handler's
                self._lost.append((memory, keep))
                raise
        if failure is not None:
            raise self.failed(failure, "send") from failure
        self.listen(dest)
        return sending

    def _post(self, peer: int, envelope: np.ndarray[Any, Any]) -> None:
        sent = self.transport.send(address(envelope), envelope.nbytes, peer, ENVELOPE_TAG)
        self._outgoing.submit(partial(_release_sent, self.transport, sent, envelope))

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int, keep: object) -> Work[None]:
        receive = PendingMessage(self, "recv", ptr, count, dtype, src, tag, keep)
        with self.lock:
            failure = self._failure
            envelope = None if failure is not None else self._matching.post(receive)
            left = None if envelope is not None else self._out_of_reach(src)
        if failure is not None:
            receive.end(failure)
        elif envelope is not None:
            self._deliver(receive, envelope)
        elif left is not None:
            self.failed(left, "recv")  # which calls `fail`
        else:
            self.listen(src)
        return receive

    def probe(self, src: int, tag: int) -> Message | None:
        self.listen(src)
        with self.lock:
            message = self._matching.find(src, tag)
        return None if message is None else Message(message.source, message.tag, message.count, message.dtype)

    def start_arrived(self, src: int, tag: int) -> IncomingMessage | None:
        self.listen(src)
        with self.lock:
            message = self._matching.find(src, tag)
            if message is None:
                return None
            memory = np.empty(message.count * ITEMSIZE[message.dtype], np.uint8)
            receive = self.recv(address(memory), message.count, message.dtype, message.source, message.tag, memory)
        return IncomingMessage(message.source, message.tag, message.dtype, memory, receive)

    def await_arrival(self, seconds: float) -> None:
        with self._arrived:
            self._arrived.wait(seconds)

    def left(self) -> list[int]:
        """The peers whose connections have ended; all messages from them have been found before that."""
        return list(self._left)

    def flush(self, end: float) -> None:
        super().flush(end)
        self._outgoing.sync(max(0.0, end - time.monotonic()))

    def fail(self, error: RankwiseError) -> None:
        """The group has failed: its connections end, and every message that waits for its match raises this error."""
        with self.lock:
            self._failure = error
            waiting = [*self._matching.receives, *(sending for sending, _ in self._unmatched.values())]
            self._matching.receives.clear()
            self._unmatched.clear()
        self.transport.disconnect()
        for message in waiting:
            message.end(error)

    def close(self, timeout: float) -> None:
        """End the connections, if threads of this channel wait in gloo, and the threads."""
        self._closed = True
        end = time.monotonic() + timeout
        if self.pending or self._listeners or not self._outgoing.idle():
            self.transport.disconnect()
        for stream in (self._outgoing, *self._transfers.values()):
            stream.close(max(0.0, end - time.monotonic()))
        for listener in self._listeners.values():
            listener.join(max(0.0, end - time.monotonic()))

    def _follow(self, message: PendingMessage, data: Any) -> None:
        """A message has been matched, and gloo moves its data now. data: torch's Work.

        gloo reports completion only to a thread that waits, and a wait that times out ends the group. So a thread of
        the channel waits, one for each peer.
        """
        transfers = self._transfers.get(message.source)
        if transfers is None:
            transfers = self._transfers.setdefault(message.source, HostStream.create())
        transfers.submit(partial(self._complete, message, data))

    def _complete(self, message: PendingMessage, data: Any) -> None:
        """Wait for the data. An error fails the group and is kept."""
        try:
            self.transport.wait(data)
        except RuntimeError as error:
            message.end(self.failed(error, message.operation))
        else:
            message.end()

    # ---- envelopes ----

    def listen(self, src: int) -> None:
        """From now on receive the envelopes of this rank; with ANY, of all ranks."""
        with self.lock:
            for peer in range(self.transport.world_size) if src == ANY else (src,):
                if peer != self._rank and peer not in self._listeners and not self._closed:
                    name, args = f"rankwise gloo messages from {peer}", (ref(self), self.transport, peer)
                    self._listeners[peer] = threading.Thread(
                        target=_receive_envelopes, args=args, name=name, daemon=True
                    )
                    self._listeners[peer].start()

    def receive_envelope(self, peer: int, memory: np.ndarray[Any, Any]) -> None:
        """`memory` holds an envelope that has arrived from this peer."""
        tag, count, code, number, eager = (int(value) for value in memory[: HEADER.itemsize].view(HEADER)[0])
        if code == MATCHED:
            with self.lock:
                self._unreceived[peer] -= eager
                sending = self._unmatched.pop((peer, number), None)
            if sending is not None:
                self._follow(*sending)
            return
        data = address(memory) + HEADER.itemsize if eager else None
        self._arrive(Envelope(peer, tag, count, DType(code), number, eager, data))

    def _arrive(self, envelope: Envelope) -> None:
        with self.lock:
            receive = self._matching.arrive(envelope)
            if receive is None:
                envelope.own()
                self._arrived.notify_all()
        if receive is not None:
            self._deliver(receive, envelope)

    def _deliver(self, receive: PendingMessage, envelope: Envelope) -> None:
        """Complete the receive with this envelope's message, or start receiving its data."""
        receive.source, receive.tag = envelope.source, envelope.tag
        wrong = mismatch(envelope.tag, envelope.count, envelope.dtype, receive.count, receive.dtype)
        if wrong is not None:
            receive.end(self.failed(wrong, "recv"))
            return
        size = receive.count * ITEMSIZE[receive.dtype]
        if envelope.data is not None:
            ctypes.memmove(receive.ptr, envelope.data, size)
            if envelope.sending is not None:
                envelope.sending.end()
            with self.lock:
                self._received[envelope.source] += envelope.eager
            receive.end()
            return
        try:
            self._follow(receive, self.transport.recv(receive.ptr, size, envelope.source, _data_tag(envelope.number)))
            with self.lock:
                received, self._received[envelope.source] = self._received[envelope.source], 0
            self._post(envelope.source, _header(0, 0, MATCHED, envelope.number, received))
        except RuntimeError as error:
            receive.end(self.failed(error, "recv"))

    def disconnected(self, peer: int, error: Exception) -> None:
        with self.lock:
            self._left[peer] = error
            ended = self._closed or self._failure is not None
            wanted = any(self._out_of_reach(receive.source) for receive in self._matching.receives)
            wanted = wanted or any(dest == peer for dest, _ in self._unmatched)
        if not ended and (not self._has_left(peer) or wanted):
            self.failed(error, "a message")  # which calls `fail`

    def _out_of_reach(self, src: int) -> Exception | None:
        """How the connection ended on which a message from `src` would arrive; None if one can still arrive."""
        if src != ANY:
            return self._left.get(src)
        if 0 < len(self._left) == self.transport.world_size - 1:
            return next(iter(self._left.values()))
        return None


def _receive_envelopes(channel: ref[Channel], transport: Transport, peer: int) -> None:
    """The thread for one peer. It does not keep the channel alive, and ends with the connection."""
    memory = np.empty(HEADER.itemsize + tuning.GLOO_EAGER, np.uint8)
    while True:
        ended: RuntimeError | None = None
        try:
            transport.wait(transport.recv(address(memory), memory.nbytes, peer, ENVELOPE_TAG))
        except RuntimeError as error:
            ended = error
        receiver = channel()
        if receiver is None:
            return
        if ended is not None:
            receiver.disconnected(peer, ended)
            return
        receiver.receive_envelope(peer, memory)
        del receiver


def _release_sent(transport: Transport, work: Any, memory: object) -> None:
    """Wait until an envelope has been sent. work: torch's Work, which reads `memory`."""
    with suppress(RuntimeError):  # the group has failed or is closed, which its next operation reports
        transport.wait(work)


def _header(tag: int, count: int, dtype: int, number: int, eager: int, room: int = 0) -> np.ndarray[Any, Any]:
    """An envelope with room for so many bytes of data."""
    memory = np.empty(HEADER.itemsize + room, np.uint8)
    memory[: HEADER.itemsize].view(HEADER)[0] = (tag, count, dtype, number, eager)
    return memory


def _data_tag(number: int) -> int:
    return 1 + number % DATA_TAGS
