"""The shortcuts of a communicator in Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rankwise._native import PlainArrays
from rankwise.contract.communicator import Collectives, Communicator
from rankwise.contract.operations import BY_NAME, Call
from rankwise.contract.shortcuts import Shortcuts
from rankwise.contract.types import DType, ReduceOp

COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")


class _Described(Collectives):
    """The collectives of a communicator, of an array of this shape, which the ranks compare."""

    def __init__(self, run: Callable[[Call], None], shape: tuple[int, ...] | None) -> None:
        self._run, self._shape = run, shape

    def run(self, call: Call) -> None:
        self._run(call._replace(shape=self._shape))


def _described(run: Callable[[Call], None], name: str, *args: Any) -> None:
    getattr(_Described(run, args[-1]), name)(*args[:-1])


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


def _planned(comm: Communicator, method: int, send: int, recv: int, nbytes: int, root: int) -> Callable[[], None]:
    operation = BY_NAME[COLLECTIVES[method]]
    return comm.plan(Call(operation, send, recv, nbytes, DType.U8, None, root if root >= 0 else None))


def plain_arrays(comm: Communicator) -> Shortcuts:
    """Shortcuts that check the arrays in native code. The communicator must be blocking."""
    shapes = getattr(comm, "checks", True)  # the ranks compare their calls, so the shapes matter
    collectives = (partial(_described, comm.run, name) if shapes else getattr(comm, name) for name in COLLECTIVES)
    methods = (*collectives, comm.send_now, comm.recv_now, comm.call, partial(_planned, comm))
    args = comm.rank, comm.world_size, methods, shapes, list(DType), list(ReduceOp)
    announce = getattr(comm, "announce_array", None)
    if announce is None:
        return _Plain(*args)
    return _Announcing(announce, *args)
