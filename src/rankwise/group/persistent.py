"""Persistent operations (plans): one operation on one array, checked once and called many times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rankwise.arrays import ops
from rankwise.arrays.base import Buffer
from rankwise.arrays.buffers import source, target
from rankwise.arrays.numpy import NUMPY, hold
from rankwise.arrays.ops import Op
from rankwise.contract.operations import ALL_REDUCE, BROADCAST, Call
from rankwise.contract.work import Completed, Work
from rankwise.group.base import GroupBase, check_tag, label, nothing, shaped
from rankwise.group.work import ArrayWork, wait_or_cancel


class MessagePlan:
    """A send or receive that was checked once. `plan()` returns when it is complete, `plan.start()` returns a Work."""

    def __init__(self, start: Callable[[], Work[None]], now: Callable[[], bool], kept: Sequence[object] = ()) -> None:
        """now: sends or receives in one call and returns True, or does nothing and returns False.

        kept: the messages that a receive may get but `now` does not see.
        """
        self.start = start
        self._now, self._kept = now, kept

    def __call__(self) -> None:
        if self._kept or not self._now():
            wait_or_cancel(self.start())


class PersistentOperations(GroupBase):
    """A plan is a function without arguments that runs one operation on one array and returns None.

    It keeps the group and the array alive. The array must be contiguous and, except for a send, writable, and stay
    where it is: NumPy refuses to resize an array that has a plan; a plan of a torch tensor raises ValueError if the
    tensor's memory has been moved, freed or resized since. Every rank calls a plan for the same collective. Calls of
    plans and other operations may be mixed.
    """

    def all_reduce_plan(self, x: Any, op: Op = "sum") -> Callable[[], None]:
        """The fastest all_reduce of `x` in a loop: plan() reduces it in place.

        Args:
            op: a name or a ReduceOp.

        Example:
            >>> x = np.ones(2)
            >>> plan = group.all_reduce_plan(x)
            >>> for _ in range(3):
            ...     plan()
            >>> x.tolist()
            [8.0, 8.0]
        """
        buffer = _lasting(x)
        reduce_op = ops.resolve(op, buffer.dtype)
        return self._plan(buffer, Call(ALL_REDUCE, buffer.ptr, buffer.ptr, buffer.count, buffer.dtype, reduce_op))

    def broadcast_plan(self, x: Any, src: int = 0) -> Callable[[], None]:
        """The fastest broadcast of `x` in a loop: plan() copies rank `src`'s x into every rank's x.

        Example:
            >>> x = np.zeros(2)
            >>> plan = group.broadcast_plan(x, src=1)
            >>> for step in range(3):
            ...     x += group.rank * step
            ...     plan()
            >>> x.tolist()
            [3.0, 3.0]
        """
        buffer = _lasting(x)
        root = self._rank(src, "src")
        return self._plan(buffer, Call(BROADCAST, buffer.ptr, buffer.ptr, buffer.count, buffer.dtype, root=root))

    def send_plan(self, x: Any, dst: int | None, tag: int = 0) -> MessagePlan:
        """A send of `x` to rank `dst` in a loop: plan() sends the present content of x, plan.start() returns a Work.

        The receiver may use `recv_plan`, `recv` or any other receive.

        Args:
            x: the array, which must not change between start() and the completion of its Work.
            dst: if it is None, plan() does nothing.

        Example:
            >>> x = np.zeros(2)
            >>> sends, receives = group.send_plan(x, 1 - group.rank), group.recv_plan(np.empty(2), 1 - group.rank)
            >>> for step in range(3):
            ...     x[...] = step
            ...     sending = sends.start()
            ...     receives()
            ...     sending.wait()
        """
        buffer = source(x)
        if buffer.packed or not buffer.in_place:
            raise ValueError(f"x: expected a contiguous array that a plan can keep, got {type(x).__name__}")
        return self._message_plan(buffer, True, self._destination(dst), check_tag(tag))

    def recv_plan(self, x: Any, src: int | None, tag: int = 0) -> MessagePlan:
        """A receive from rank `src` into `x` in a loop: plan() returns when x holds the next message.

        plan.start() returns a Work.

        Args:
            src: a rank or rw.ANY; if it is None, plan() does nothing.
            tag: the message's, or rw.ANY.

        Example:
            >>> x = np.zeros(1)
            >>> plan = group.recv_plan(x, group.rank)
            >>> for step in range(3):
            ...     group.isend(np.full(1, 2.0 * step), group.rank).wait()
            ...     plan()
            >>> x.tolist()
            [4.0]
        """
        buffer, wanted, number = _lasting(x), self._source(src), label(tag)
        self._check_receive(buffer, wanted, number)
        return self._message_plan(buffer, False, wanted, number)

    def _message_plan(self, buffer: Buffer, sends: bool, peer: int | None, tag: int) -> MessagePlan:
        self._check_memory(buffer)
        if peer is None:
            return MessagePlan(Completed, lambda: True)
        if sends:
            begin = partial(self.comm.send, buffer.ptr, buffer.count, buffer.dtype, peer, tag, buffer)
        else:
            begin = partial(self._receive, buffer, peer, tag)
        finish = nothing if sends else partial(_finish, buffer)
        now = self._shortcuts.send_array if sends else self._shortcuts.recv_array
        check = buffer.kind.place_check(buffer) or nothing
        keeps = (self, buffer, hold(buffer))

        def start() -> Work[None]:
            check()
            self._order(buffer)
            return ArrayWork(begin(), finish, self.pending, keeps).started()

        return MessagePlan(start, partial(now, buffer.given, peer, tag), () if sends else self._kept)

    def _plan(self, buffer: Buffer, call: Call) -> Callable[[], None]:
        self._check_memory(buffer)
        steps: list[Callable[[], object]] = []
        check = buffer.kind.place_check(buffer)
        if check is not None:
            steps.append(check)
        if buffer.device is not None:
            steps.append(partial(self._order, buffer))
        plan = self._collectives.plan(shaped(call, buffer.shape))
        steps.append(plan)
        if buffer.kind is not NUMPY:
            steps.append(buffer.finish)  # autograd must notice that a tensor was written
        if len(steps) > 1:
            plan = partial(_each, steps)
        vars(plan)["keeps"] = (self, buffer, hold(buffer))
        return plan


def _lasting(x: Any) -> Buffer:
    """`x` as memory that a plan can keep. Raises ValueError if operations would work on a copy of it."""
    buffer = target(x)
    if not buffer.in_place:
        raise ValueError(f"x: expected a contiguous, writable array that a plan can keep, got {type(x).__name__}")
    return buffer


def _finish(buffer: Buffer) -> None:
    buffer.finish()


def _each(steps: list[Callable[[], object]]) -> None:
    for step in steps:
        step()
