"""The shortcuts of a communicator in Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rankwise._native import PlainArrays
from rankwise.contract.communicator import Communicator
from rankwise.contract.operations import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    Call,
    Operation,
)
from rankwise.contract.shortcuts import Shortcuts
from rankwise.contract.types import DType, ReduceOp

COLLECTIVES = (ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, GATHER, SCATTER, REDUCE_SCATTER, ALL_TO_ALL)
"""In the order in which native code expects them."""


def _described(run: Callable[[Call], None], operation: Operation, *args: Any) -> None:
    """A collective of an array whose shape the ranks compare. args: its method's arguments, then the shape."""
    call = Call(operation, shape=args[-1], **dict(zip(operation.takes, args, strict=False)))
    run(call if "recv" in operation.takes else call._replace(recv=call.send))


class _Plain(PlainArrays, Shortcuts):
    """The native methods come first."""


class _Announcing(_Plain):
    """The shortcuts of a communicator that announces the array of a scatter faster than by a broadcast."""

    def scatter_array(self, *args: Any) -> bool:
        return False  # the general path announces the array


def plain_arrays(comm: Communicator) -> Shortcuts:
    """Shortcuts that check the arrays in native code. The communicator must be blocking."""
    shapes = getattr(comm, "checks", True)  # the ranks compare their calls, so the shapes matter
    collectives = (partial(_described, comm.run, each) if shapes else getattr(comm, each.name) for each in COLLECTIVES)
    methods = (*collectives, comm.send_now, comm.recv_now, comm.call)
    args = comm.rank, comm.world_size, methods, shapes, list(DType), list(ReduceOp)
    announce = getattr(comm, "announce_array", None)
    if announce is None:
        return _Plain(*args)
    announcing = _Announcing(*args)
    announcing.announce_array = announce
    return announcing
