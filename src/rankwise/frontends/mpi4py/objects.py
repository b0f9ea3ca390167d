"""Collectives on objects: mpi4py's methods in lower case."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as combine
from typing import Any

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
        found = c.group.broadcast_object(PICKLE.dumps(obj) if c.root(root) == c.rank else None, root)
        return obj if root == c.rank else PICKLE.loads(found)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        c = self._h or self._live()
        found: Any = c.group.gather_object(wrap(sendobj), c.root(root))
        return found if not PICKLE.replaced or found is None else [*map(unwrap, found)]

    def allgather(self, sendobj: Any) -> list[Any]:
        found: Any = (self._h or self._live()).group.all_gather_object(wrap(sendobj))
        return [*map(unwrap, found)] if PICKLE.replaced else found

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        c = self._h or self._live()
        objs = _one_each(sendobj, c.size) if c.root(root) == c.rank else None
        return unwrap(c.group.scatter_object(objs, root))

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        c = self._h or self._live()
        found = exchange_objects(c.group, _one_each(sendobj, c.size))
        return [*map(unwrap, found)] if PICKLE.replaced else found

    def reduce(self, sendobj: Any, op: Op = SUM, root: int = 0) -> Any:
        of_two = _function(op)
        found = self.gather(sendobj, root)
        return None if found is None else combine(of_two, found)

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
    found = [None] * size if objs is None else list(objs)
    if len(found) != size:
        raise ValueError(f"expecting {size} items, got {len(found)}")
    return [*map(wrap, found)] if PICKLE.replaced else found
