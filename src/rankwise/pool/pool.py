"""`rankwise.Pool`: ranks that stay, for tasks and for calls that all of them make."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from itertools import chain
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from rankwise.contract.errors import ClosedError
from rankwise.contract.public import public
from rankwise.contract.timeouts import check_timeout
from rankwise.group.base import integer, of_kind
from rankwise.group.group import Group
from rankwise.launch.limits import check_ranks
from rankwise.pool.dealer import Dealer, Task
from rankwise.pool.members import Members
from rankwise.pool.processes import Processes

if TYPE_CHECKING:
    from typing_extensions import Self

    from rankwise.pool.threads import Threads

P = ParamSpec("P")
T = TypeVar("T")

TASKS = 4  # of a map for each rank


@public
class Pool(Executor):
    """n ranks, processes of this host or threads, that stay for many calls: an Executor whose workers can communicate.

    A function that the pool calls finds its group by `rw.init()`, and keeps what later calls need in `rw.local`, a
    namespace of its rank. `run` calls a function on all ranks at once, `submit` and `map` on whichever rank is free;
    collectives belong in `run`. Functions, arguments and results are pickled as for `rw.spawn`, but the memory of large
    arrays is passed beside the pickle, without the copy that pickling makes. What the ranks print appears, in whole
    lines, where this process prints.

    An error is raised in the caller, and its cause is the traceback on that rank; the ranks go on. A rank that dies is
    replaced by a new process with an empty `rw.local`, and a line on stderr says so. The task that it was doing is
    done again, once; if that rank dies too, the task's future raises PeerLostError. `run` does not repeat a call: it
    raises PeerLostError as soon as a rank dies. Ctrl-C, or another exception that a signal handler raises in `run`,
    interrupts the call on the ranks, which stay. When this process ends, or nothing refers to the pool any more, its
    ranks end, with their processes as in `rw.spawn`.

    Args:
        n: the number of ranks.
        group: instead of n, a group of a job that a launcher has started, on one host or several. All its ranks make
            the pool. Rank 0 calls it and does no tasks; the others serve it at `with rw.Pool(group=group) as pool:`
            until rank 0 leaves its block. Their own block then begins, with None as `pool`, so begin the block with
            `if pool is not None:`. `rw.init()` within a call returns the group of the ranks that serve. A lost rank
            is not replaced, and ends the pool, as does an exception of a signal handler, such as Ctrl-C.
        timeout: seconds that an operation may wait for other ranks; by default RANKWISE_TIMEOUT, else 300.
        threads: the ranks are threads of this process, over the backend threads. They start at once, and nothing is
            pickled: a call gets its arguments themselves, the same objects on all ranks, and its result or error is the
            rank's own object. A thread cannot be lost or ended: a call that an interrupt does not reach, such as
            `time.sleep`, delays the end of the pool and later calls on that rank, though not Ctrl-C. An error is raised
            as it is, with its own traceback. With a global interpreter lock, only one rank runs Python code at a time;
            a UserWarning says so once per process.

    Raises:
        ValueError: n is below 1 or above 1024, or the group has one rank only.

    Example:
        >>> with rw.Pool(2) as pool:
        ...     pool.run(divmod, 7, 2), list(pool.map(abs, [-1, 2, -3]))
        ([(3, 1), (3, 1)], [1, 2, 3])
    """

    def __init__(
        self,
        n: int | None = None,
        *,
        group: Group | None = None,
        timeout: float | None = None,
        threads: bool = False,
    ) -> None:
        if (n is None) == (group is None):
            raise TypeError(f"n={n!r}, group={group!r}: expected a number of new ranks, or a group whose ranks serve")
        if timeout is not None:
            timeout = check_timeout(timeout)
        self._served: Members | None = None
        ranks: Processes | Members | Threads
        if group is not None:
            if threads:
                raise TypeError("threads=True: the ranks of a group are there already; pass a number of ranks instead")
            ranks = Members(of_kind(group, "group", Group, "a Group"), timeout)
            if group.rank > 0:
                self._served = ranks
        else:
            n = check_ranks(n)
            ranks = _threads(n, timeout) if threads else Processes(n, timeout)
        self.n = ranks.n
        """The number of ranks that the pool calls."""
        self._dealer = Dealer(ranks)
        # At the interpreter's exit too. It knows the dealer only, so that the pool is not kept.
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _end, self._dealer, self._owner)
        if self._served is None:
            ranks.start(self._dealer)
        else:
            self._end.detach()
            self._dealer.broke(ClosedError("this rank serves the pool of rank 0, which alone may call it"))

    def __repr__(self) -> str:
        return f"<Pool of {self.n} rank{'s' * (self.n > 1)}{'' if self._end.alive else ', shut down'}>"

    def __enter__(self) -> Self:
        """The pool; None on a rank of `group` that serves, when rank 0 has shut the pool down."""
        if self._served is not None:
            self._served.serve()
            return cast("Self", None)  # a type checker would ask every program to test for it
        return self

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        """Call `fn(*args, **kwargs)` on every rank at once; return the results, by rank.

        It begins when the tasks that were submitted before are done; later ones begin after it. If fn raises on a rank,
        that error is raised here, and operations of the group fail on the other ranks, which are interrupted if they
        have not ended the call a second later. A rank that no interrupt reaches, such as one that waits in C code, is
        killed and replaced after the pool's timeout. Before the next `run`, the ranks form a new group, and `rw.init()`
        then returns that one.

        Raises:
            PeerLostError: a rank died.
            MismatchError: the ranks returned after different collectives. After a very short call, or in a pool of a
                group, a later collective raises it instead.
            TypeError: fn, its arguments or a result cannot be pickled.
            ClosedError: the pool has been shut down, or this process is a fork of the one that made it. (`submit` and
                `map` raise it too.)
            RuntimeError: a future's callback called it.

        Example:
            >>> with rw.Pool(2) as pool:
            ...     pool.run(divmod, 7, 2)
            [(3, 1), (3, 1)]
        """
        self._check_process()
        return self._dealer.run(fn, args, kwargs)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call `fn(*args, **kwargs)` on the next free rank; return its future, as concurrent.futures has it.

        Ctrl-C in the future's `result` interrupts the task.

        Example:
            >>> with rw.Pool(1) as pool:
            ...     pool.submit(divmod, 7, 2).result()
            (3, 1)
        """
        self._check_process()
        return self._dealer.submit(fn, args, kwargs)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
    ) -> Iterator[T]:
        """Call fn on each element of an iterable, or on the elements of several in parallel, as the builtin map does.

        Returns an iterator over the results, in order. It raises the first error of a task, and cancels the tasks that
        have not begun.

        Args:
            timeout: seconds from now within which the results must come, else TimeoutError is raised.
            chunksize: how many elements make up one task. The default makes about four tasks per rank, as in
                multiprocessing; a smaller one balances the load better if some elements take much longer than others.

        Example:
            >>> with rw.Pool(1) as pool:
            ...     list(pool.map(abs, [-1, 2, -3], chunksize=2))
            [1, 2, 3]
        """
        if chunksize is not None and integer(chunksize, "chunksize") < 1:
            raise ValueError(f"chunksize={chunksize}: expected at least 1")
        self._check_process()
        end = None if timeout is None else time.monotonic() + timeout
        columns = [list(iterables[0])] if len(iterables) == 1 else [*zip(*zip(*iterables, strict=False), strict=True)]
        count = len(columns[0]) if columns else 0
        chunksize = chunksize or max(1, math.ceil(count / (TASKS * self.n)))
        chunks = ([column[at : at + chunksize] for column in columns] for at in range(0, count, chunksize))
        return chain.from_iterable(self._results(self._dealer.map(fn, chunks)[::-1], end))

    def _check_process(self) -> None:
        if os.getpid() != self._owner:
            raise ClosedError("this pool belongs to the parent of this forked process, which alone may call it")

    def _results(self, tasks: list[Task], end: float | None) -> Iterator[list[Any]]:
        try:
            while tasks:
                left = None if end is None else max(0.0, end - time.monotonic())
                yield tasks.pop().result(left)
        except KeyboardInterrupt:
            for task in tasks:  # the last first, so that no rank that is interrupted gets another one
                if not task.cancel():
                    self._dealer.interrupt(task)
            raise
        finally:
            for task in tasks:
                task.cancel()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the ranks when the submitted tasks are done. May be repeated.

        Args:
            wait: whether to return only when the ranks have ended. A future's callback does not wait.
            cancel_futures: drop the tasks that have not begun.

        Example:
            >>> pool = rw.Pool(1)
            >>> pool.shutdown()
            >>> pool
            <Pool of 1 rank, shut down>
        """
        if os.getpid() != self._owner:
            return
        wait = wait and get_ident() not in self._dealer.calling_back
        if self._served is None:
            self._dealer.shutdown(wait=wait, cancel=cancel_futures)
        if wait:
            self._end.detach()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt) and self._served is None:
            self._end()  # without waiting for the tasks
        self.shutdown(cancel_futures=kind is not None)


def _threads(n: int, timeout: float | None) -> Threads:
    from rankwise.pool.threads import Threads  # few programs need it
    from rankwise.rank_threads import warn_of_gil

    warn_of_gil(n)
    return Threads(n, timeout)


def _end(dealer: Dealer, owner: int) -> None:
    if os.getpid() == owner:  # the ranks of a pool that a fork has inherited are its parent's
        dealer.shutdown(wait=False, cancel=True, now=True)
