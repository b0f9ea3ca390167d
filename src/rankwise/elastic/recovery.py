"""`rankwise.elastic.run`: a training function that goes on after ranks were lost."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from rankwise.contract.errors import CollectiveTimeout, PeerLostError, RankwiseError, UnsupportedError
from rankwise.contract.failure import Failure, failure_behind
from rankwise.contract.failure_kinds import LOST, TIMEOUT
from rankwise.elastic.state import Resumption, State
from rankwise.group.group import Group
from rankwise.initialize import init
from rankwise.system.membership import DONE

P = ParamSpec("P")
T = TypeVar("T")

MOST_CALLS = 10  # of the function in a row without a commit


def run(
    state: State, *, group: Group | None = None
) -> Callable[[Callable[Concatenate[Group, State, P], T]], Callable[P, T]]:
    """Decorate a function `f(group, state, ...)`, which every rank calls, so that it goes on after a loss.

    The decorated function is called without group and state.

    Each time before it calls f, all ranks of the group agree on the newest step that all of them have committed, and
    put it back into their State; at first that is step 0, the arrays and objects as they are when the decorated
    function is called. f reads `state.step` to know where to go on, and calls `state.commit()` after each step that
    must not be lost.

    If f ends with an error because ranks were lost, the remaining ranks make a new group, and call f again with it.
    Under `rankwise run --restarts` it has its full size again: the launcher starts a lost rank again, whose own call of
    the decorated function meets the others. Otherwise, and if the launcher has given up a rank, the new group consists
    of the remaining ranks (`Group.shrink`). If more ranks are lost meanwhile, the others make another group. Other
    errors end the function as usual, and so does the tenth in a row without a commit, because f would fail forever.
    When f has returned on all ranks, so does the decorated function. A rank that is lost after that has failed: it is
    not replaced, because the others could not run f again, and they run to their end.

    A replacement runs the program from the start, so the program must not communicate between `rw.init` and the
    decorated function, which its other ranks have already entered. The new group is the default group if the old one
    was; groups, Mesh, torch process groups and the like that f needs are made in f. A rank that hangs is left out at
    the group's timeout.

    As in Horovod's elastic mode, f is called again after a loss, and commits are what it goes on from. Unlike there, f
    takes the group; each rank has a state of its own, which nobody broadcasts; a commit is collective; and no rank
    joins that was not there at the beginning.

    Args:
        group: by default the group of all ranks.

    Example:
        >>> total = np.zeros(1)
        >>> state = rw.elastic.State(arrays={"total": total})
        >>> @rw.elastic.run(state, group=group)
        ... def train(group, state):
        ...     while state.step < 3:
        ...         total[0] += group.all_reduce(1)
        ...         state.commit()
        >>> train()
        >>> total.tolist()
        [6.0]
    """

    def decorate(function: Callable[Concatenate[Group, State, P], T]) -> Callable[P, T]:
        @functools.wraps(function)
        def recovering(*args: P.args, **kwargs: P.kwargs) -> T:
            return _run(lambda current: function(current, state, *args, **kwargs), state, group or init())

        return recovering

    return decorate


def _run(function: Callable[[Group], T], state: State, group: Group) -> T:
    loss: _Loss | None = None  # after which the function has not been called again yet
    calls, since = 0, -1  # without a commit, and the step from which they went
    while True:
        try:
            _meet(group, state)
            if loss is not None:
                state.resumptions.append(loss.resumed(state.step))
                loss = None
            calls, since = 1 if state.step > since else calls + 1, state.step
            result = function(group)
            group.barrier()
        except Exception as error:
            failure = failure_behind(error)
            if not _is_loss(error, failure, group) or (calls >= MOST_CALLS and state.step == since):
                raise
            loss = loss or _Loss(state.step)
            loss.lost.update(_lost(failure, group))
            _all_done(group, done=False)  # its result does not matter: each rank calls it once for each group
            group = _next_group(group, loss)
        else:
            # A loss may have kept another rank from passing the barrier.
            if _all_done(group, done=True):
                group.membership.note(group.ranks, DONE)
                return result
            loss = loss or _Loss(state.step)
            group = _next_group(group, loss)
        finally:
            state.group = None


class _Loss:
    """A loss, or several, after which the function has not been called again yet."""

    def __init__(self, reached: int) -> None:
        self.lost: dict[int, str] = {}
        self._reached = reached
        self._since = time.monotonic()

    def resumed(self, step: int) -> Resumption:
        return Resumption(self.lost, time.monotonic() - self._since, self._reached, step)


def _meet(group: Group, state: State) -> None:
    """All ranks of the group go to the newest step that all of them have committed; at first, to step 0."""
    if not state.commits:
        state.save(0)
    newest, *others = state.commits
    commits = group.all_gather(np.array([newest, *(others or [newest])])).tolist()
    common = set.intersection(*map(set, commits))
    if not common:
        shown = "; ".join(f"rank {rank}: {' and '.join(map(str, of))}" for rank, of in enumerate(commits))
        raise RankwiseError(f"there is no step that all ranks have committed: {shown}")
    state.load(max(common))
    state.group = group


def _is_loss(error: Exception, failure: Failure | None, group: Group) -> bool:
    """Whether the function, which ended with this error, can be called again with a new group.

    failure: what led to the error. One of another library that does not name its cause may be due to a loss as well.
    """
    if failure is not None:
        return failure.kind in (LOST, TIMEOUT)
    return not isinstance(error, RankwiseError) and bool(_lost_in(group))


def _lost(failure: Failure | None, group: Group) -> dict[int, str]:
    """{rank of the job: how it was lost}."""
    lost = _lost_in(group)
    if failure is not None and failure.kind == TIMEOUT:
        # The group has not failed if only this rank waited; but all must go on with a new one.
        group.abort(f"rank {group.rank} waited in vain")
        lost = dict.fromkeys(failure.to_blame, "did not come in time") | lost
    return {group.ranks[rank]: how for rank, how in lost.items()}


def _lost_in(group: Group) -> dict[int, str]:
    with suppress(UnsupportedError):
        return group.failed()
    return {}


def _all_done(group: Group, *, done: bool) -> bool:
    """Whether all ranks have passed the last barrier, the same on all of them; each calls it once for each group."""
    try:
        return bool(group.agree(done))
    except UnsupportedError:  # then nobody goes on after a loss
        return done
    except PeerLostError as error:
        if error.rank == group.rank and error.operation == "agree":  # the others went on without this rank
            raise
        return False
    except CollectiveTimeout:
        return False


def _next_group(group: Group, loss: _Loss) -> Group:
    """The group that goes on after a loss: with the replacements of lost ranks if there are any, else without."""
    try:
        new = group.restore()
    except (UnsupportedError, PeerLostError, CollectiveTimeout):
        # The launcher starts no rank again, or has given one up, or a rank that hangs does not come.
        new = group.shrink()
        for rank, how in _lost_in(group).items():
            if group.ranks[rank] not in new.ranks:  # a rank of the new group has only closed the former one already
                loss.lost.setdefault(group.ranks[rank], how)
    group.close()
    return new
