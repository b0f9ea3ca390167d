"""Messages between a client and a rank over a socket that keeps them apart (SOCK_SEQPACKET).

Each has a kind, the number of the call that it belongs to, in an answer the time that the call took, and parts. An
object is a pickle and its out-of-band buffers, so that the memory of an array is not copied into the pickle. A short
message is sent whole or not at all; the parts of a long one lie in a file in memory, which its receiver maps.
"""

from __future__ import annotations

import errno
import os
import pickle
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rankwise._native import FileCopy

CALL, TASK, MEET, RESULT, FAILED_GROUP, ERROR = b"C", b"T", b"M", b"R", b"F", b"E"
"""What a message is: a call on all ranks; a task; the ranks meet in a new group; the result of a call; the result of a
call in which an operation of a group failed; the error of a call. In lower case: the last part is a new sys.path."""

MOST_PARTS = 512
SHORT = 1 << 15  # bytes of the longest message without a file; the kernel has room for 200 KiB in a socket

_HEADER = struct.Struct("<c?HIQ")  # the kind, whether there is a file, how many parts there are, microseconds, number
"""The parts' lengths follow, unless there is one, and no file."""
HEADER = _HEADER.size
MOST = (1 << 32) - 1  # microseconds
_ALIGNED = 64  # the parts in a file
_ROOM = socket.CMSG_SPACE(4)  # for one descriptor
NOW = int(socket.MSG_DONTWAIT)
_CLOSED_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)

Parts = Sequence[Any]
"""Bytes, or views of bytes: a pickle and its out-of-band buffers."""

Message = tuple[bytes, int, int, list[Any]]
"""The kind, the microseconds, the number, and the parts."""


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


def send(connection: socket.socket, kind: bytes, number: int, parts: Parts, flags: int = 0, took: int = 0) -> None:
    """Send a message. took: microseconds. Raises ConnectionError if the other end is gone."""
    count, took = len(parts), min(took, MOST)
    if count == 1 and len(parts[0]) <= SHORT - HEADER:
        connection.send(_HEADER.pack(kind, False, 1, took, number) + parts[0], flags)
        return
    lengths = [*map(len, parts)]
    long = HEADER + 8 * count + sum(lengths) > SHORT
    header = _HEADER.pack(kind, long, count, took, number) + struct.pack(f"<{count}Q", *lengths)
    if not long:
        connection.send(b"".join((header, *parts)), flags)
        return
    fd = os.memfd_create("rankwise-call")
    with open(fd, "wb") as file:
        for part in parts:
            file.write(part)
            file.write(bytes(-len(part) % _ALIGNED))
        file.flush()
        socket.send_fds(connection, [header], [fd], flags)


def receive(connection: socket.socket, flags: int = 0) -> Message | None:
    """The next message; None if the other end is gone."""
    try:
        data, sent, _, _ = connection.recvmsg(SHORT, _ROOM, flags | _CLOSED_ON_EXEC)
    except ConnectionError:
        return None
    if not data:
        return None
    kind, long, count, took, number = _HEADER.unpack_from(data)
    if count == 1 and not long:
        return kind, took, number, [data[HEADER:]]
    lengths = struct.unpack_from(f"<{count}Q", data, HEADER)
    if long:
        if not sent:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return kind, took, number, _mapped(struct.unpack("i", sent[0][2])[0], lengths)
    at, parts = HEADER + 8 * count, list[Any]()
    for length in lengths:
        part = data[at : at + length]
        parts.append(bytearray(part) if parts else part)  # what a buffer becomes must be writable
        at += length
    return kind, took, number, parts


def number_of(message: bytes) -> int:
    """The number of a message of which at least its header was received."""
    number: int = _HEADER.unpack_from(message)[4]
    return number


def _mapped(fd: int, lengths: Sequence[int]) -> list[Any]:
    """The parts in this file, in memory of this process's own, aligned and writable as arrays need it."""
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length + -length % _ALIGNED)
    try:
        if not 0 < starts[-1] <= os.fstat(fd).st_size:  # whoever used the memory would end by a SIGBUS
            raise OSError(errno.EIO, "the file of a message is shorter than its parts")
        memory = np.asarray(FileCopy(fd, starts[-1])).data
    finally:
        os.close(fd)
    return [memory[start : start + length] for start, length in zip(starts, lengths, strict=False)]
