"""Persistent operations (plans): one operation on one array, checked once and called many times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rankwise.arrays import ops
from rankwise.arrays.base import Buffer
from rankwise.arrays.buffers import target
from rankwise.arrays.numpy import NUMPY
from rankwise.arrays.ops import Op
from rankwise.group.base import GroupBase


class PersistentOperations(GroupBase):
    """A plan is a function without arguments that runs one operation on one array and returns None.

    It keeps the group and the array alive; the array must be contiguous and writable. Every rank calls a
    plan for the same operation. Calls of plans and other operations may be mixed.
    """

    def all_reduce_plan(self, x: Any, op: Op = "sum") -> Callable[[], None]:
        """The fastest all_reduce of `x` in a loop: plan() reduces it in place. op: a name or a ReduceOp.

        >>> x = np.ones(2)
        >>> plan = group.all_reduce_plan(x)
        >>> for _ in range(3):
        ...     plan()
        >>> x.tolist()
        [8.0, 8.0]
        """
        buffer = _lasting(x)
        return self._plan(buffer, "all_reduce", buffer.ptr, buffer.count, buffer.dtype, ops.resolve(op, buffer.dtype))

    def broadcast_plan(self, x: Any, src: int = 0) -> Callable[[], None]:
        """The fastest broadcast of `x` in a loop: plan() copies rank `src`'s x into every rank's x.

        >>> x = np.zeros(2)
        >>> plan = group.broadcast_plan(x, src=1)
        >>> for step in range(3):
        ...     x += group.rank * step
        ...     plan()
        >>> x.tolist()
        [3.0, 3.0]
        """
        buffer = _lasting(x)
        return self._plan(buffer, "broadcast", buffer.ptr, buffer.count, buffer.dtype, self._rank(src, "src"))

    def _plan(self, buffer: Buffer, operation: str, *args: int) -> Callable[[], None]:
        self._check_memory(buffer)
        plan = self.comm.plan(operation, *args)
        if buffer.device is not None:
            plan = partial(_then, partial(self._order, buffer), plan)
        if len(buffer.shape) != 1:
            plan = partial(_then, partial(self.comm.describe, buffer.shape), plan)
        if self._syncs:
            plan = partial(_then, plan, self.comm.sync)
        if buffer.kind is not NUMPY:
            plan = partial(_then, plan, buffer.finish)  # autograd must notice that a tensor was written
        vars(plan)["keeps"] = (self, buffer)
        return plan


def _lasting(x: Any) -> Buffer:
    """`x` as memory that a plan can keep. Raises ValueError if operations would work on a copy of it."""
    buffer = target(x)
    if not buffer.in_place:
        raise ValueError(f"x: expected a contiguous, writable array that a plan can keep, got {type(x).__name__}")
    return buffer


def _then(first: Callable[[], None], second: Callable[[], object]) -> None:
    first()
    second()
