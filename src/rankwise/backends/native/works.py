"""The Works of the native engine, and its receives of messages of any length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankwise import _native
from rankwise.contract.message import Arrival, Message, Receives
from rankwise.contract.types import DType
from rankwise.contract.work import Work, adopt

adopt(_native.Task)
adopt(_native.Request)
Arrival.register(_native.Request)


class EngineCall(Work[None]):
    """A Python function that runs on the communicator's stream; `wait` raises what it raised."""

    def __init__(self, comm: _native.Comm, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function
        self._error: BaseException | None = None
        self._over = False
        self._task = comm.start_call(self._run)

    def _run(self) -> None:
        function, self._function = self._function, None  # and release what it references
        assert function is not None  # it runs once
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - whatever it is, `wait` raises it
            self._error = error
        self._over = True  # set before the function is released, which may close the group

    def done(self) -> bool:
        return self._over or self._task.done()

    def wait(self, timeout: float | None = None) -> None:
        if not self._over:
            self._task.wait(timeout)
        if self._error is not None:
            raise self._error


_ANY_DTYPE = -1


class EngineReceives(Receives):
    """The receives of one of the engine's communicators."""

    def __init__(self, comm: _native.Comm) -> None:
        self._comm = comm

    def recv_any(self, dtype: DType | None, src: int, tag: int) -> Arrival:
        return self._comm.recv_any(False, _ANY_DTYPE if dtype is None else dtype, src, tag)

    def recv_object(self, src: int, tag: int) -> Arrival:
        return self._comm.recv_any(True, _ANY_DTYPE, src, tag)

    def recv_message(self, src: int, tag: int) -> Arrival:
        return self._comm.recv_message(src, tag)

    def recv_arrived(self, src: int, tag: int) -> tuple[Arrival, tuple[int, int, int]] | None:
        return self._comm.recv_arrived(src, tag)

    def probe(self, src: int, tag: int, timeout: float) -> Message | None:
        found = self._comm.probe(src, tag, timeout)
        return None if found is None else Message(*found[:3], DType(found[3]))

    def send_object(self, parts: list[Any], dest: int, tag: int, synchronous: bool = False) -> Work[None]:
        return self._comm.send_object(parts, dest, tag, synchronous)

    def send_object_now(self, parts: list[Any], dest: int, tag: int) -> None:
        self._comm.send_object_now(parts, dest, tag)
