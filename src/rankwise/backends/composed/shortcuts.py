"""The shortcuts of a communicator in Python."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rankwise._native import PlainArrays
from rankwise.contract.communicator import Collectives, Communicator
from rankwise.contract.operations import Call
from rankwise.contract.shortcuts import Shortcuts
from rankwise.contract.types import DType, ReduceOp


class _Described(Collectives):
    """The collectives of a communicator; each thread may describe the arrays of its next call."""

    def __init__(self, comm: Communicator) -> None:
        self._run, self._next = comm.run, threading.local()

    def describe(self, shape: tuple[int, ...]) -> None:
        self._next.shape = shape

    def run(self, call: Call) -> None:
        shape = vars(self._next).pop("shape", None)
        self._run(call if shape is None else call._replace(shape=shape))


def _ignore(shape: tuple[int, ...]) -> None:
    """The shape of the next call, which nobody compares."""


class _Plain(PlainArrays, Shortcuts):
    """The native methods come first."""


class _Announcing(_Plain):
    """The shortcuts of a communicator that announces the array of a scatter faster than by a broadcast."""

    def __init__(self, announce: Callable[[Any, int, int, int], bytes | None], *args: Any) -> None:
        super().__init__(*args)
        self._announce = announce

    def announce_array(self, header: Any, send: int, recv: int, src: int) -> bytes | None:
        return self._announce(header, send, recv, src)

    def scatter_array(self, *args: Any) -> bool:
        return False  # the general path announces the array


def plain_arrays(comm: Communicator) -> Shortcuts:
    """Shortcuts that check the arrays in native code. The communicator must be blocking."""

    of: Collectives = comm
    describe = _ignore
    if getattr(comm, "checks", True):  # the ranks compare their calls, so the shapes matter
        of = described = _Described(comm)
        describe = described.describe
    collectives = (
        *(of.all_reduce, of.reduce, of.broadcast, of.all_gather, of.gather, of.scatter),
        *(of.reduce_scatter, of.all_to_all),
    )
    methods = (*collectives, comm.send_now, comm.recv_now, describe, comm.call)
    args = comm.rank, comm.world_size, methods, list(DType), list(ReduceOp)
    announce = getattr(comm, "announce_array", None)
    if announce is None:
        return _Plain(*args)
    return _Announcing(announce, *args)
