"""Encodes Python objects: plain data so that any sender is safe, and other objects by pickle if that is allowed.

Encoded, an object is a stream, which is a pickle of protocol 5, and the memory of its large arrays. Pickle has opcodes
for the basic types; every other plain type (plain_types.py) becomes a call of `make`. Without leave, a stream is loaded
only after check_plain has walked its opcodes and found nothing but those of the basic types and calls of `make`.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rankwise._native import check_plain
from rankwise.group.plain_types import make, take_apart

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

IN_STREAM = 4096  # bytes; smaller arrays are copied into the stream


def encode(obj: Any, allow_pickle: bool) -> tuple[bytes, list[Bytes]]:
    """Encode an object: its stream and its buffers, which may share memory with its arrays.

    Unless it may be pickled, raises TypeError, which names the first value that is not plain data, and ValueError if it
    is nested too deep.
    """
    try:
        return _encode_plain(obj)
    except (TypeError, ValueError):
        if not allow_pickle:
            raise
    return pickled(obj)


def pickled(obj: Any) -> tuple[bytes, list[Bytes]]:
    """The stream and the buffers of any object, by its own pickle; only a receiver that allows pickles loads it."""
    buffers: list[Bytes] = []
    return pickle.dumps(obj, 5, buffer_callback=_keeper(buffers)), buffers


def decode(stream: Any, buffers: Sequence[Bytes], allow_pickle: bool, rank: int) -> Any:
    """Decode an object that `rank` encoded. Its arrays use the memory of the buffers, so that must be writable.

    stream: bytes, or other memory, which is copied unless pickles are allowed: nobody may change it after the check.

    Unless pickles are allowed, raises TypeError for an object that is not plain data, and ValueError for invalid data.
    """
    if allow_pickle:
        return pickle.loads(stream, buffers=buffers)
    stream = bytes(stream)
    try:
        calls = check_plain(stream, len(buffers), CONSTRUCTOR)
    except TypeError as error:
        raise TypeError(
            f"rank {rank} sent an object that is not plain data ({error}); "
            "pass allow_pickle=True on this rank too if that rank may be trusted"
        ) from None
    except ValueError as error:
        raise ValueError(f"rank {rank} sent an invalid object: {error}") from None
    try:
        return _PlainUnpickler(io.BytesIO(stream), buffers=buffers).load() if calls else pickle.loads(stream)
    except Exception as error:
        raise ValueError(f"rank {rank} sent an invalid object: {error}") from error


CONSTRUCTOR = (make.__module__, make.__qualname__)
"""The one global that a stream of plain data may name."""


class _PlainPickler(pickle.Pickler):
    """Writes plain data. reducer_override is called only for values that have no opcodes of their own."""

    def reducer_override(self, value: Any) -> Any:
        if value is make:
            return NotImplemented  # as a global
        name, parts = take_apart(value)
        return make, (name, *parts)


class _PlainUnpickler(pickle.Unpickler):
    """Knows `make` alone. check_plain has refused everything else; this is a second wall."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != CONSTRUCTOR:
            raise pickle.UnpicklingError(f"{module}.{name} is not plain data")
        return make


def _encode_plain(obj: Any) -> tuple[bytes, list[Bytes]]:
    file, buffers = io.BytesIO(), list[Bytes]()
    try:
        _PlainPickler(file, 5, buffer_callback=_keeper(buffers)).dump(obj)
    except RecursionError:
        raise ValueError("obj: it is nested too deep, or contains itself") from None
    stream = file.getvalue()
    try:
        check_plain(stream, len(buffers), CONSTRUCTOR)
    except ValueError as error:
        raise ValueError(f"obj: {error}") from None
    return stream, buffers


def _keeper(buffers: list[Bytes]) -> Callable[[pickle.PickleBuffer], bool]:
    """For a pickler, which calls it for each buffer: it keeps large ones, and leaves small ones in the stream."""

    def in_stream(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if memory.nbytes < IN_STREAM:
            return True
        buffers.append(np.frombuffer(memory, np.uint8))
        return False

    return in_stream
