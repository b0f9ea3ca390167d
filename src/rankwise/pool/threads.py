"""The ranks of a pool that are threads of this process: calls, results and errors are the objects themselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from rankwise._native import Segment
from rankwise.contract import errors
from rankwise.contract.errors import ClosedError
from rankwise.group import default_group
from rankwise.launch.last_calls import quick_difference
from rankwise.pool.dealer import Dealer, Outcome, Ranks, Task, each_of
from rankwise.rank_threads import GRACE, CallEnd, Invitation, RankThreads, invitations

Call = Callable[[], Any]


class Threads(Ranks):
    """n ranks, each of them a thread of this process, which deals the next task when it has done one.

    They cannot be lost. When a call has failed, they make a group anew, in a segment of its own.
    """

    def __init__(self, n: int, timeout: float | None) -> None:
        self.n = n
        self._timeout = timeout
        self._ranks = RankThreads(n)
        self._membership = [ExitStack() for _ in range(n)]  # a rank leaves its group by closing its own
        self._segment: Segment | None = None
        self._ended = False

    def start(self, dealer: Dealer) -> None:
        self.dealer = dealer
        try:
            for outcome in self.meet(None):
                if outcome.error is not None:
                    raise outcome.error
        except BaseException:
            self.close(now=True)
            raise
        for rank in range(self.n):
            dealer.joined(rank)

    # ---- what the dealer asks for ----

    def packed(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        return partial(fn, *args, **kwargs)

    def packer(self, fn: Callable[..., Any]) -> Callable[[Sequence[Any]], Call]:
        return lambda columns: partial(each_of, fn, *columns)

    def send_task(self, rank: int, task: Task) -> None:
        self._ranks.call(
            rank, task.call, lambda ending: self.dealer.answered([(task.number, _outcome(ending, ending.value), False)])
        )

    def call(self, call: Call) -> list[Outcome]:
        endings = self._ranks.call_all(lambda rank: _made(call))
        return [_outcome(ending, *(ending.value or (None, False))) for ending in endings]

    def meet(self, call: Call | None) -> list[Outcome]:
        self._ranks.renew()
        new = invitations(self.n, self._timeout)
        segment = self._segment = new[0].segment
        assert segment is not None
        begun: set[int] = set()

        def join(rank: int) -> None:
            begun.add(rank)
            self._join(new[rank])

        try:
            return [_outcome(ending, None) for ending in self._ranks.call_all(join)]
        except BaseException:
            for rank in set(range(self.n)) - begun:
                segment.mark_ended(rank, 1, os.getpid())  # so that the others do not wait for it
            raise

    def interrupt(self, ranks: Collection[int]) -> None:
        self._ranks.interrupt(ranks)

    def check(self) -> str:
        return "" if self._segment is None else quick_difference(self._segment.fd)

    def close(self, *, now: bool) -> None:
        if now:
            self._ranks.fail("the pool was shut down")
            self._ranks.interrupt(range(self.n))
            self.dealer.broke(ClosedError("the pool has been shut down"))
        self.end()
        self._ranks.join(GRACE if now else None)

    def end(self) -> None:
        if self._ended:
            return
        self._ended = True
        for rank, membership in enumerate(self._membership):
            self._ranks.call(rank, membership.close, lambda ending: None)
        self._ranks.close()

    # ---- in the ranks' threads ----

    def _join(self, invitation: Invitation) -> None:
        membership = self._membership[invitation.rank]
        membership.close()
        membership.enter_context(self._ranks.member(invitation))


def _made(call: Call) -> tuple[Any, bool]:
    """What the call returns, and whether an operation of a group has failed meanwhile, perhaps one of another rank."""
    before = errors.latest_failure
    try:
        return call(), errors.latest_failure is not before
    except BaseException as error:
        group = default_group.current()
        if group is not None:
            group.related.abort(f"it raised {type(error).__name__}")
        raise


def _outcome(ending: CallEnd[Any], value: Any, group_failed: bool = False) -> Outcome:
    error = None if ending.error is None else ending.exception()
    return Outcome(ending.rank, lambda: value, error, group_failed=group_failed)
