"""The common case of the array level over any communicator: whole plain NumPy arrays, by their addresses."""

from __future__ import annotations

from rankwise._native import describe_gather, describe_whole
from rankwise.contract.communicator import Communicator
from rankwise.contract.shortcuts import Shortcuts
from rankwise.contract.types import DType, ReduceOp

_DTYPES = tuple(DType)
_OPS = {"sum": ReduceOp.SUM, "mean": ReduceOp.MEAN, "max": ReduceOp.MAX, "min": ReduceOp.MIN}


class PlainArrays(Shortcuts):
    """For communicators whose collectives are complete when they return."""

    def __init__(self, comm: Communicator) -> None:
        self._all_reduce = comm.all_reduce
        self._broadcast = comm.broadcast
        self._all_gather = comm.all_gather
        self._world_size = comm.world_size

    def all_reduce_array(self, x: object, op: object) -> bool:
        found = describe_whole(x)
        if found is None or type(op) is not str:
            return False
        ptr, count, number = found
        how, dtype = _OPS.get(op), _DTYPES[number]
        if how is None or (how is not ReduceOp.SUM and how.refused_for(dtype) is not None):
            return False
        self._all_reduce(ptr, count, dtype, how)
        return True

    def broadcast_array(self, x: object, src: int) -> bool:
        found = describe_whole(x)
        if found is None:  # perhaps because src only reads it
            return False
        self._broadcast(found[0], found[1], _DTYPES[found[2]], src)
        return True

    def all_gather_array(self, x: object, out: object) -> bool:
        found = describe_gather(x, out, self._world_size)
        if found is None:
            return False
        given, taken, count, dtype = found
        self._all_gather(given, taken, count, _DTYPES[dtype])
        return True
