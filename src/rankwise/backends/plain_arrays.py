"""The common case of the array level over any communicator: whole plain NumPy arrays, by their addresses."""

from __future__ import annotations

from rankwise._native import describe
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
        self._rank = comm.rank
        self._world_size = comm.world_size

    def all_reduce_array(self, x: object, op: object) -> bool:
        found = describe(x)
        if found is None or not (found[4] and found[5]) or type(op) is not str:
            return False
        how, dtype = _OPS.get(op), _DTYPES[found[2]]
        if how is None or (how is not ReduceOp.SUM and how.refused_for(dtype) is not None):
            return False
        self._all_reduce(found[0], found[1], dtype, how)
        return True

    def broadcast_array(self, x: object, src: int) -> bool:
        found = describe(x)
        if found is None or not (found[4] and (found[5] or src == self._rank)):
            return False
        self._broadcast(found[0], found[1], _DTYPES[found[2]], src)
        return True

    def all_gather_array(self, x: object, out: object) -> bool:
        given, taken = describe(x), describe(out)
        if given is None or taken is None or not (given[4] and taken[4] and taken[5]):
            return False
        ptr, count, dtype, shape = given[:4]
        if taken[2] != dtype or taken[3] != (self._world_size, *shape):
            return False
        size = count * _DTYPES[dtype].itemsize
        if ptr < taken[0] + size * self._world_size and taken[0] < ptr + size:
            return False  # they overlap
        self._all_gather(ptr, taken[0], count, _DTYPES[dtype])
        return True
