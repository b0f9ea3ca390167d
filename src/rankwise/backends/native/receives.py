"""The engine's own receives of messages of any length, and its objects."""

from __future__ import annotations

from typing import Any

from rankwise import _native
from rankwise.backends.native.works import EngineMessageWork
from rankwise.contract.message import Arrival, Message, Receives
from rankwise.contract.types import DType
from rankwise.contract.work import Work

_ANY_DTYPE = -1


class EngineArrival(EngineMessageWork, Arrival):
    """A receive in progress, whose memory the engine allocates."""

    __slots__ = ()

    def memory(self) -> Any:
        return self._task.memory()

    @property
    def dtype(self) -> DType:
        return DType(self._task.dtype)


class EngineReceives(Receives):
    """The receives of one of the engine's communicators."""

    def __init__(self, comm: _native.Comm) -> None:
        self._comm = comm

    def recv_any(self, dtype: DType | None, src: int, tag: int) -> Arrival:
        return EngineArrival(self._comm.recv_any(False, _ANY_DTYPE if dtype is None else dtype, src, tag))

    def recv_object(self, src: int, tag: int) -> Arrival:
        return EngineArrival(self._comm.recv_any(True, _ANY_DTYPE, src, tag))

    def probe(self, src: int, tag: int, timeout: float) -> Message | None:
        found = self._comm.probe(src, tag, timeout)
        return None if found is None else Message(*found[:3], DType(found[3]))

    def send_object(self, parts: list[Any], dest: int, tag: int) -> Work[None]:
        return EngineMessageWork(self._comm.send_object(parts, dest, tag))

    def send_object_now(self, parts: list[Any], dest: int, tag: int) -> None:
        self._comm.send_object_now(parts, dest, tag)
