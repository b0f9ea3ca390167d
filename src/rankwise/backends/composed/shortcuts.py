"""The shortcuts of a communicator in Python."""

from __future__ import annotations

from typing import Any

from rankwise._native import PlainArrays
from rankwise.contract.communicator import Communicator
from rankwise.contract.shortcuts import Shortcuts
from rankwise.contract.types import DType, ReduceOp


def plain_arrays(comm: Communicator) -> Shortcuts:
    """Shortcuts that check the arrays in native code. The communicator must be blocking."""

    def send(*args: Any) -> None:
        comm.send(*args).wait()

    def recv(*args: Any) -> None:
        comm.recv(*args).wait()

    collectives = (
        *(comm.all_reduce, comm.reduce, comm.broadcast, comm.all_gather, comm.gather, comm.scatter),
        *(comm.reduce_scatter, comm.all_to_all),
    )
    methods = (*collectives, send, recv, comm.describe, comm.call)
    return PlainArrays(  # type: ignore[return-value]  # has the same methods
        comm.rank, comm.world_size, methods, list(DType), list(ReduceOp)
    )
