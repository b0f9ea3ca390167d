"""Messages that describe themselves: arrays of unknown size, and Python objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.arrays import buffers, dtypes
from rankwise.arrays.base import Buffer
from rankwise.arrays.numpy import NUMPY
from rankwise.contract.communicator import ANY, Message
from rankwise.contract.errors import MismatchError
from rankwise.contract.types import DType
from rankwise.contract.work import Completed, Work
from rankwise.group.base import GroupBase, check_tag, label, nothing
from rankwise.group.encoding import Bytes, Encoded, decode, encode
from rankwise.group.p2p import ReceiveWork
from rankwise.group.work import ArrayWork, wait_or_withdraw


@dataclass(frozen=True, eq=False)
class Received:
    """What `recv_any` received: the data, a one-dimensional array, and the message's source and tag.

    From the null rank, source and tag are None, and the data is empty.

    >>> sending = group.isend(np.arange(3), dst=group.rank, tag=4)
    >>> message = group.recv_any(src=group.rank)
    >>> message.data.tolist(), message.source == group.rank, message.tag
    ([0, 1, 2], True, 4)
    """

    data: Any
    source: int | None
    tag: int | None


class Messages(GroupBase):
    """Messages whose receiver does not know their size or content in advance.

    An object is sent as one message, in the encoding of the object collectives, and matched like any other message.
    Large arrays in it are copied once, into the message; `send` and `recv_any` transfer an array without that copy.
    These receives make progress only while a thread waits for one of them or asks whether it is done.
    """

    def recv_any(
        self, src: int | None = ANY, tag: int = ANY, *, dtype: Any = None, timeout: float | None = None
    ) -> Received:
        """Receive the next array from `src` with `tag`, whatever its length; returns Received(data, source, tag).

        Shapes are not sent, so the data has one dimension; a number arrives as one element. Several threads may
        receive: each message goes to one of them. dtype: the dtype expected; a torch dtype gives a tensor. A message of
        another dtype, or with an object, raises MismatchError, and the next receive of any kind that matches the
        message gets it. timeout: seconds until CollectiveTimeout, by default the group's timeout; the group stays
        usable, and the next receive gets the message, even if its data had begun to arrive.

        >>> sending = group.isend(np.full(group.rank + 1, 7.5), dst=0)
        >>> if group.rank == 0:
        ...     received = [group.recv_any() for _ in range(2)]
        ...     assert all(each.data.size == each.source + 1 for each in received)
        >>> sending.wait()
        """
        wanted, kind = (None, NUMPY) if dtype is None else buffers.dtype_argument(dtype)
        source, number = self._source(src), label(tag)
        if source is None:
            return Received(kind.empty((0,), DType.F64 if wanted is None else wanted).finish(), None, None)

        def accept(message: Message) -> Buffer:
            if wanted is not None and message.dtype is not wanted:
                raise MismatchError(f"recv_any: {_described(message)}, expected dtype {dtypes.name(wanted)}")
            return kind.empty((message.count,), message.dtype)

        def check(message: Message, buffer: Buffer) -> None:
            if _is_object(message, buffer):
                sender = f"the message from rank {message.source} with tag {message.tag}"
                raise MismatchError(f"recv_any: {sender} is an object; receive it with recv_object")

        receive = self._receives.post("recv_any", source, number, accept, check)

        def finish() -> Received:
            assert receive.buffer is not None
            return Received(receive.buffer.finish(), receive.source, receive.tag)

        return wait_or_withdraw(ArrayWork(receive, finish, self._pending, self), timeout)

    def send_object(self, obj: Any, dst: int | None, tag: int = 0, *, allow_pickle: bool | None = None) -> None:
        """Send a Python object to rank `dst`, which receives it with `recv_object`.

        Plain data and allow_pickle are as in the object collectives: see `broadcast_object`. After an error the object
        may still be delivered, as in `send`.

        >>> if group.rank == 0:
        ...     group.send_object({"rows": [1, 2], "of": np.eye(2)}, dst=1)
        ... else:
        ...     assert group.recv_object(src=0)["rows"] == [1, 2]
        """
        wait_or_withdraw(self.isend_object(obj, dst, tag, allow_pickle=allow_pickle))

    def isend_object(self, obj: Any, dst: int | None, tag: int = 0, *, allow_pickle: bool | None = None) -> Work[None]:
        """Start to send an object, with its present content; it may be changed after the call returns.

        >>> sending = group.isend_object(("rank", group.rank), dst=1 - group.rank)
        >>> group.recv_object(src=1 - group.rank) == ("rank", 1 - group.rank)
        True
        >>> sending.wait()
        """
        to, number = self._destination(dst), check_tag(tag)
        message = to_message(encode(obj, self._trusted(allow_pickle)))
        if to is None:
            return Completed()
        inner = self.comm.send(message.ctypes.data, message.size, DType.U8, to, number, message)
        return ArrayWork(inner, nothing, self._pending, (self, message)).started()

    def recv_object(
        self,
        src: int | None = ANY,
        tag: int = 0,
        *,
        allow_pickle: bool | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Receive the next object that `src` sent with `tag`, either of which may be rw.ANY.

        The Work of `irecv_object` also has the object's source and tag. Returns None from the null rank. If the message
        is an array, MismatchError is raised, and the next `recv` or `recv_any` receives it. A pickle that is not
        allowed raises TypeError. timeout: as in `recv_any`.

        >>> sending = group.isend_object({"loss": 0.5}, dst=group.rank)
        >>> group.recv_object(group.rank)
        {'loss': 0.5}
        """
        return wait_or_withdraw(self.irecv_object(src, tag, allow_pickle=allow_pickle), timeout)

    def irecv_object(
        self, src: int | None = ANY, tag: int = 0, *, allow_pickle: bool | None = None
    ) -> ReceiveWork[Any]:
        """Start to receive an object. The Work's result is the object; its `source` and `tag` are the message's.

        Receives of objects match in the order in which they were started. Until this one is done, do not receive an
        array with the same src and tag: that receive could match the object.

        >>> work = group.irecv_object(tag=rw.ANY)
        >>> group.send_object("to myself", dst=group.rank, tag=6)
        >>> work.wait(), work.source == group.rank, work.tag
        ('to myself', True, 6)
        """
        source, number = self._source(src), label(tag)
        if source is None:
            return ReceiveWork(Completed(), nothing, self._pending, self, None, None)
        trusted = self._trusted(allow_pickle)
        receive = self._receives.post("recv_object", source, number, _memory_for_object, _check_object)

        def finish() -> Any:
            assert receive.buffer is not None
            stream, *buffers = from_message(receive.buffer.array)
            return decode(stream.tobytes(), buffers, trusted, receive.source)

        return ReceiveWork(receive, finish, self._pending, self, source, number).started()


# ---- an object as one message ----

MAGIC = np.frombuffer(b"\x93rankwise object", np.uint8)
ALIGNMENT = 64  # bytes; a cache line, and enough for any element


def to_message(encoded: Encoded) -> Bytes:
    """MAGIC, then a header of int64 (the number of parts, their sizes), then the parts; each is aligned."""
    parts = encoded.parts
    head = np.array([len(parts), *(part.size for part in parts)], np.int64).view(np.uint8)
    blocks = [MAGIC, head, *parts]
    message = np.zeros(sum(_aligned(block.size) for block in blocks), np.uint8)
    at = 0
    for block in blocks:
        message[at : at + block.size] = block
        at += _aligned(block.size)
    return message


def from_message(message: Bytes) -> list[Bytes]:
    """The parts, which share the message's memory. Raises ValueError if it is invalid."""
    head = message[_aligned(MAGIC.size) :]
    count = int(head[:8].view(np.int64)[0]) if head.size >= 8 else 0
    if not 0 < count <= (head.size - 8) // 8:
        raise ValueError("encoded object: its header is invalid")
    parts: list[Bytes] = []
    at = _aligned(MAGIC.size) + _aligned(8 + 8 * count)
    for size in head[8 : 8 + 8 * count].view(np.int64).tolist():
        if not 0 <= size <= message.size - at:
            raise ValueError(f"encoded object: a part of {size} bytes at {at} of {message.size}")
        parts.append(message[at : at + size])
        at += _aligned(size)
    return parts


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _is_object(message: Message, buffer: Buffer) -> bool:
    if message.dtype is not DType.U8 or message.count < MAGIC.size:
        return False
    return np.asarray(buffer.array)[: MAGIC.size].tobytes() == MAGIC.tobytes()


def _memory_for_object(message: Message) -> Buffer:
    if message.dtype is not DType.U8 or message.count < MAGIC.size:
        raise MismatchError(f"recv_object: {_described(message)}, not an object; receive it with recv or recv_any")
    return NUMPY.empty((message.count,), DType.U8)


def _check_object(message: Message, buffer: Buffer) -> None:
    if not _is_object(message, buffer):
        raise MismatchError(f"recv_object: {_described(message)}, not an object; receive it with recv_any")


def _described(message: Message) -> str:
    what = f"an array of {message.count} x {dtypes.name(message.dtype)}"
    return f"the message from rank {message.source} with tag {message.tag} is {what}"
