"""Collectives on objects: mpi4py's methods in lower case."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as combine
from typing import Any

from rankwise.frontends.mpi4py.errors import check_length
from rankwise.frontends.mpi4py.messages import Messages
from rankwise.frontends.mpi4py.ops import SUM, Op
from rankwise.frontends.mpi4py.pickling import PICKLE, unwrap, wrap
from rankwise.group.objects import exchange_objects


class ObjectCollectives(Messages):
    """Objects travel in rankwise's encoding, unless MPI.pickle has been given another pickle.

    Reductions are computed in the order of the ranks, wherever their result is wanted; `op` may be any function of two.
    """

    def barrier(self) -> None:
        (self._h or self._live()).barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        c = self._h or self._live()
        if not PICKLE.replaced:
            return c.group.broadcast_object(obj, c.root(root))
        received = c.group.broadcast_object(PICKLE.dumps(obj) if c.root(root) == c.rank else None, root)
        return obj if root == c.rank else PICKLE.loads(received)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        c = self._h or self._live()
        wrapped: Any = c.group.gather_object(wrap(sendobj), c.root(root))
        return wrapped if not PICKLE.replaced or wrapped is None else [*map(unwrap, wrapped)]

    def allgather(self, sendobj: Any) -> list[Any]:
        wrapped: Any = (self._h or self._live()).group.all_gather_object(wrap(sendobj))
        return [*map(unwrap, wrapped)] if PICKLE.replaced else wrapped

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        c = self._h or self._live()
        objs = _one_each(sendobj, c.size) if c.root(root) == c.rank else None
        return unwrap(c.group.scatter_object(objs, root))

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        c = self._h or self._live()
        objects = exchange_objects(c.group, _one_each(sendobj, c.size))
        return [*map(unwrap, objects)] if PICKLE.replaced else objects

    def reduce(self, sendobj: Any, op: Op = SUM, root: int = 0) -> Any:
        of_two = _function(op)
        objects = self.gather(sendobj, root)
        return None if objects is None else combine(of_two, objects)

    def allreduce(self, sendobj: Any, op: Op = SUM) -> Any:
        return combine(_function(op), self.allgather(sendobj))

    def scan(self, sendobj: Any, op: Op = SUM) -> Any:
        return combine(_function(op), self.allgather(sendobj)[: self._live().rank + 1])

    def exscan(self, sendobj: Any, op: Op = SUM) -> Any:
        of_two = _function(op)
        before = self.allgather(sendobj)[: self._live().rank]
        return combine(of_two, before) if before else None


def _function(op: Any) -> Any:
    """What combines two objects: faster than `op` itself, where it is an Op."""
    return op._live().of_two if type(op) is Op else op


def _one_each(objs: Any, size: int) -> list[Any]:
    """What travels in place of `objs`, as a list; of None, `size` times None."""
    objects = [None] * size if objs is None else list(objs)
    check_length(objects, size)
    return [*map(wrap, objects)] if PICKLE.replaced else objects
