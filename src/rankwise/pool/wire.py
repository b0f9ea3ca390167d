"""Messages between a client and a rank over a stream socket: a kind, and parts that are not copied when they are sent.

An object is a pickle and its out-of-band buffers, so that the memory of an array is not copied into the pickle.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

CALL, TASK, MEET, RESULT, FAILED_GROUP, ERROR = b"C", b"T", b"M", b"R", b"F", b"E"
"""What a message is: a call on all ranks; a task; the ranks meet in a new group; the result of a call; the result of a
call in which an operation of a group failed; the error of a call."""

FIRST = 1 << 16  # bytes that are read at once; an end sends its next message only after the other end's
MOST_PARTS = 512  # the kernel takes 1024 pieces at once

_HEADER = struct.Struct("<cxxxI")  # the kind, and how many parts there are; their lengths follow

Parts = Sequence[Any]
"""Objects that have the buffer protocol: a pickle and its out-of-band buffers."""


def packed(obj: Any, dumps: Callable[..., bytes] = pickle.dumps) -> list[Any]:
    """The parts of an object. dumps: pickle.dumps or cloudpickle.dumps."""
    buffers: list[pickle.PickleBuffer] = []
    data = dumps(obj, protocol=5, buffer_callback=buffers.append)
    if len(buffers) >= MOST_PARTS:
        return [dumps(obj, protocol=5)]
    return [data, *(buffer.raw() for buffer in buffers)] if buffers else [data]


def unpacked(parts: Parts) -> Any:
    """The object. Its arrays share the memory of the parts."""
    return pickle.loads(parts[0], buffers=parts[1:])


def send(connection: socket.socket, kind: bytes, parts: Parts) -> None:
    """Send a message. Raises ConnectionError if the other end is gone."""
    for rest in begin_to_send(connection, kind, parts):
        connection.sendall(rest)


def begin_to_send(connection: socket.socket, kind: bytes, parts: Parts) -> list[memoryview]:
    """Send of a message what the other end has room for now; returns what is left."""
    lengths = [memoryview(part).nbytes for part in parts]
    header = _HEADER.pack(kind, len(parts)) + struct.pack(f"<{len(parts)}Q", *lengths)
    try:
        done = connection.sendmsg([header, *parts], [], socket.MSG_DONTWAIT)
    except BlockingIOError:
        done = 0
    left: list[memoryview] = []
    if done < len(header) + sum(lengths):
        for part in (header, *parts):
            view = memoryview(part).cast("B")
            left += [view[done:]] if done < len(view) else []
            done = max(0, done - len(view))
    return left


def receive(connection: socket.socket) -> tuple[bytes, list[Any]] | None:
    """The next message; None if the other end is gone."""
    try:
        first = memoryview(connection.recv(FIRST))
        if len(first) < _HEADER.size:
            first = _completed(connection, first, _HEADER.size)
        kind, count = _HEADER.unpack_from(first)
        at = _HEADER.size + 8 * count
        if len(first) < at:
            first = _completed(connection, first, at)
        parts: list[Any] = []
        for length in struct.unpack_from(f"<{count}Q", first, _HEADER.size):
            part = first[at : at + length]
            parts.append(_completed(connection, part, length) if len(part) < length or len(parts) else part)
            at += length
    except (EOFError, ConnectionError):
        return None
    return kind, parts


def _completed(connection: socket.socket, begun: memoryview, length: int) -> Any:
    """`length` bytes in memory of their own, aligned and writable as arrays need it; `begun` is their beginning."""
    whole = np.empty(length, np.uint8)
    view = whole.data
    view[: len(begun)] = begun
    done = len(begun)
    while done < length:
        got = connection.recv_into(view[done:], 0, socket.MSG_WAITALL)
        if not got:
            raise EOFError
        done += got
    return view
