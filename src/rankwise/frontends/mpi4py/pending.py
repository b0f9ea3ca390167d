"""What requests wait for."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from rankwise import ClosedError
from rankwise.frontends.mpi4py.buffers import Bytes
from rankwise.frontends.mpi4py.pickling import CODEC, PICKLE, unwrap
from rankwise.frontends.mpi4py.specs import Blocks, simple, truncated
from rankwise.frontends.mpi4py.status import EMPTY


class Started(Protocol):
    """An operation in progress: a Pending, or the engine's send or receive of a plain array.

    message: of a complete receive, the source, tag and bytes of its message; else EMPTY. cancelled: whether it was
    cancelled.
    """

    @property
    def message(self) -> tuple[int, int, int]: ...
    @property
    def cancelled(self) -> bool: ...
    def done(self) -> bool: ...
    def wait(self) -> None: ...
    def cancel(self) -> object: ...


class Pending:
    """A Started in Python. work: rankwise's, or None if it is complete. result: the object, if it receives one."""

    message: tuple[int, int, int] = EMPTY
    result: Any = None
    cancelled = False

    def __init__(self, work: Any = None, message: tuple[int, int, int] = EMPTY) -> None:
        self.work, self.message = work, message

    def done(self) -> bool:
        return self.work is None or bool(self.work.done())

    def wait(self) -> None:
        """Return when it is complete, or raise its error."""
        if self.work is not None and not self.cancelled:
            self.work.wait()

    def cancel(self) -> None:
        self.cancelled = self.work is not None and bool(self.work.cancel())

    def awaited(self) -> list[Any]:
        """The works that it waits for."""
        return [] if self.work is None else [self.work]


SENT = Pending()
"""Stands for every send that was complete as soon as it started, as most short ones are."""


def arrived(operation: Started) -> Started:
    """Wait for an operation of the engine, unless it was cancelled.

    Returns it, or what delivers its message if that is not in its array.
    """
    if isinstance(operation, Pending):
        return operation
    try:
        operation.wait()
    except ClosedError:
        if not operation.cancelled:
            raise
    engine: Any = operation
    return operation if engine.given is None else Arriving(engine, simple(engine.given, True))


def completed(operation: Started) -> Started:
    """Wait for an operation, unless it was cancelled. Returns it, or the receive that has taken its place."""
    operation = arrived(operation)
    if isinstance(operation, Pending):
        operation.wait()
    return operation


def object_of(operation: Started) -> Any:
    """The object that a complete operation has received, or None."""
    return operation.result if isinstance(operation, Pending) else None


def works_of(operation: Started) -> list[Any]:
    """The works that an operation waits for: the engine's own is one itself."""
    return operation.awaited() if isinstance(operation, Pending) else [operation]


class Arriving(Pending):
    """A receive of whatever comes, by the engine's `work`. blocks: the buffer that it is for, or None for an object."""

    def __init__(self, work: Any, blocks: Blocks | None = None) -> None:
        super().__init__(work)
        self.blocks = blocks
        self.memory: Any = None
        self.delivered = False

    def wait(self) -> None:
        """Return when the message is where it belongs."""
        if self.cancelled or self.delivered:
            return
        self.work.wait()
        if self.memory is None:
            self.memory = self.work.memory()
            self.message = (self.work.source, self.work.tag, len(self.memory))
        if self.blocks is None:
            self.result = self.object_in(self.memory)
        else:
            self.fill(self.blocks, self.memory)
        self.delivered, self.memory = True, None

    def fill(self, blocks: Blocks, memory: Any) -> None:
        data = np.frombuffer(memory, np.uint8) if len(memory) else _NO_BYTES
        if self.work.is_object and data.tobytes() == _NONE:
            data, self.message = _NO_BYTES, (*self.message[:2], 0)  # mpi4py sends None as nothing
        if data.size > blocks.nbytes:
            raise truncated(self.message, blocks.nbytes)
        blocks.unpack(data)

    def object_in(self, memory: Any) -> Any:
        if self.work.is_object:
            return unwrap(CODEC.read(memory, self.work.source))
        return PICKLE.loads(bytes(memory)) if len(memory) else None


_NO_BYTES = np.zeros(0, np.uint8)
_NONE = pickle.dumps(None, 5)


class Receiving(Pending):
    """A receive by the engine into contiguous memory, from which `wait` then fills the blocks of a buffer."""

    def __init__(self, work: Started, blocks: Blocks, room: Bytes) -> None:
        super().__init__(work)
        self.blocks, self.room = blocks, room

    def wait(self) -> None:
        if self.work is not None and not self.cancelled:
            self.work = arrived(self.work)
            self.message = completed(self.work).message
            self.blocks.unpack(self.room[: self.message[2]])
            self.work = None


class Persistent(Pending):
    """A request that can be started again and again. begin: starts it once more."""

    def __init__(self, begin: Callable[[], Started]) -> None:
        super().__init__()
        self.begin = begin
        self.active: Started | None = None

    def start(self) -> None:
        self.active = self.begin()

    def done(self) -> bool:
        return self.active is None or self.active.done()

    def wait(self) -> None:
        active, self.active = self.active or SENT, None
        active = completed(active)
        self.message, self.result, self.cancelled = active.message, object_of(active), active.cancelled

    def cancel(self) -> None:
        if self.active is not None:
            self.active.cancel()

    def awaited(self) -> list[Any]:
        return [] if self.active is None else works_of(self.active)


class Together(Pending):
    """Several as one; the message is that of the last."""

    def __init__(self, *parts: Started) -> None:
        super().__init__()
        self.parts = [*parts]

    def done(self) -> bool:
        done = [part.done() for part in self.parts]  # each makes progress
        return all(done)

    def wait(self) -> None:
        self.parts = [completed(part) for part in self.parts]
        self.message = self.parts[-1].message

    def awaited(self) -> list[Any]:
        return [work for part in self.parts if not part.done() for work in works_of(part)]
