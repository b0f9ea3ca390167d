"""run_ranks: a function on n ranks, which are threads of this process or pooled processes."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from rankwise.backends import registry
from rankwise.contract.job import Job
from rankwise.contract.timeouts import check_timeout
from rankwise.group.group import Group
from rankwise.testing.outcome import Args, Kwargs, Outcome, RanksFailed, failed, run_on, values

if TYPE_CHECKING:
    from rankwise.rank_threads import Invitation
    from rankwise.testing.pool import RankPool

__all__ = ["RanksFailed", "close_pools", "run_ranks"]

T = TypeVar("T")

GRACE = 5.0  # seconds after `timeout` in which the ranks may report their own timeouts
MOST_IDLE_RANKS = 40  # processes that unused pools may hold


Backend: TypeAlias = "str | registry.Opener"


@overload
def run_ranks(fn: Callable[[Group], T], n: int, *, backend: Backend = "threads", timeout: float = 60.0) -> list[T]: ...
@overload
def run_ranks(
    fn: Callable[..., T], n: int, *args: Any, backend: Backend = "threads", timeout: float = 60.0, **kwargs: Any
) -> list[T]: ...
def run_ranks(
    fn: Callable[..., T], n: int, *args: Any, backend: Backend = "threads", timeout: float = 60.0, **kwargs: Any
) -> list[T]:
    """Run `fn(group, *args, **kwargs)` on `n` new ranks at once; return its results, by rank.

    In `fn`, rw.init() returns that group. The failure of one rank fails the group, so that no other rank waits for it
    forever. `fn` must leave no message unreceived, since processes keep their group between calls.

    Args:
        backend: "threads" runs n threads of this process. "shm", or any registered backend whose ranks are processes,
            runs n processes on this host, which are kept for later calls; `fn` and its return value are pickled (with
            cloudpickle if it is installed, so that lambdas and functions of a script work). "solo" takes n=1 and runs
            in the calling thread. A function `open(job, timeout) -> Communicator`, as backends register it, is called
            in n threads.
        timeout: seconds that the whole call may take, and that an operation of the group may wait.

    Raises:
        RanksFailed: `fn` raises on a rank, a rank's process dies, or the time is up. It has the traceback of each rank
            that raised an error of its own, and one line for each that failed only because another did.
        ValueError: n is less than 1, or the backend is unknown.
    """
    from rankwise.rank_threads import Invitation, invitations, rank_of_group  # not loaded with the public names

    if n < 1:
        raise ValueError(f"n={n}: expected at least 1 rank")
    timeout = check_timeout(timeout)
    call = partial(run_on, fn=fn, args=args, kwargs=kwargs)
    if backend == "solo":
        if n != 1:
            raise ValueError(f"n={n}: expected 1 rank on backend 'solo'")
        with rank_of_group(lambda: registry.opener("solo")(Job(), timeout), "solo") as group:
            return values([call(group)])
    if callable(backend):
        job_id = f"run_ranks-{next(_job_numbers)}"
        jobs = [Job(rank, n, rank, n, "run_ranks", job_id) for rank in range(n)]
        return _on_threads(call, [Invitation(job.rank, partial(backend, job, timeout), "") for job in jobs], timeout)
    if backend == "threads":
        return _on_threads(call, invitations(n, timeout), timeout)
    registry.opener(backend)  # raises ValueError or ImportError here instead of on every rank
    return _on_processes(fn, n, args, kwargs, backend, timeout)


def close_pools() -> None:
    """End the pooled processes of `run_ranks`. They also end with this process."""
    for pool in _pools.values():  # at once: a process that has imported torch takes a second
        pool.end()
    while _pools:
        _pools.popitem()[1].close()


def _on_threads(call: Callable[[Group], Outcome[T]], invitations: Sequence[Invitation], timeout: float) -> list[T]:
    from rankwise.rank_threads import run_on_threads

    outcomes = [Outcome[T](failure=f"no answer within {timeout:g} s") for _ in invitations]
    end = time.monotonic() + timeout + GRACE
    for ending in run_on_threads(call, invitations, timeout + GRACE):
        outcome = ending.value or failed(ending.exception())  # connecting may have failed
        if outcome.failure.endswith("KeyboardInterrupt\n") and time.monotonic() > end:  # it was interrupted then
            outcome = replace(outcome, failure=f"{outcomes[ending.rank].failure}:\n{outcome.failure}")
        outcomes[ending.rank] = outcome
    return values(outcomes)


def _on_processes(fn: Callable[..., T], n: int, args: Args, kwargs: Kwargs, backend: str, timeout: float) -> list[T]:
    pool = _pools.pop((backend, n), None)
    if pool is None:
        while _pools and n + sum(size for _, size in _pools) > MOST_IDLE_RANKS:
            _pools.pop(next(iter(_pools))).close()
        from rankwise.testing.pool import RankPool  # not loaded with the public names

        pool = RankPool(n, backend)
    try:
        outcomes = pool.run(fn, args, kwargs, timeout, GRACE)
    except BaseException:
        pool.close()
        raise
    if pool.usable:
        _pools[backend, n] = pool  # the most recently used pool is the last
    else:
        pool.close()
    return values(outcomes)


_pools: dict[tuple[str, int], RankPool] = {}
_job_numbers = iter(range(1 << 62))
atexit.register(close_pools)
