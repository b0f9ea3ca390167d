"""Tasks dealt to the ranks of a group."""

from __future__ import annotations

import itertools
import os
import signal
import time
from itertools import islice
from typing import Any

import numpy as np
import pytest

import hostile
import rankwise as rw
from rankwise.contract.errors import PeerLostError
from rankwise.group.group import Group
from rankwise.testing import RanksFailed, run_ranks

both = pytest.mark.parametrize("backend", ["threads", "shm"])


def on(group: Group, dst: int, value: Any) -> Any:
    return value if group.rank == dst else None


@both
@pytest.mark.parametrize("n", [1, 3])
def test_results_are_in_order(backend: str, n: int) -> None:
    def ranks(group: Group) -> None:
        for dst in range(n):
            for number in (0, 1, 50):
                found = group.map(lambda x: (x, x**2), on(group, dst, range(number)), dst)
                assert found == on(group, dst, [(x, x**2) for x in range(number)])
            found = group.map(np.sum, on(group, dst, [np.full(9000, i) for i in range(20)]), dst)
            assert found == on(group, dst, [9000 * i for i in range(20)])
            found = group.map(lambda i: np.full(100_000, i), on(group, dst, range(6)), dst)
            assert found is None or all((each == i).all() for i, each in enumerate(found))
        assert group.all_reduce(1) == n

    run_ranks(ranks, n, backend=backend)


@both
def test_every_rank_works(backend: str) -> None:
    def ranks(group: Group) -> None:
        def task(number: int) -> int:
            if number < 3:  # as many as there are ranks: each takes one, and none two
                arrived.next()
                end = time.monotonic() + 30
                while arrived.value < 3:
                    assert time.monotonic() < end
                    time.sleep(0.001)
            return group.rank

        arrived = group.counter()
        found = group.map(task, on(group, 0, range(12)))
        assert found is None or sorted(found[:3]) == [0, 1, 2]

    run_ranks(ranks, 3, backend=backend)


@both
def test_a_task_that_raises(backend: str) -> None:
    def ranks(group: Group) -> None:
        def task(x: int) -> int:
            if x in (7, 4):
                raise LookupError(f"no {x}")
            return x

        if group.rank == 1:
            with pytest.raises(rw.TaskError, match=r"task 4 raised an error on rank \d") as caught:
                group.map(task, range(10), 1)
            assert (caught.value.task, str(caught.value).splitlines()[-1]) == (4, "LookupError: no 4")
            assert "in task" in str(caught.value)
            found = group.imap(task, range(10), 1)
            assert list(islice(found, 4)) == [0, 1, 2, 3]
            with pytest.raises(rw.TaskError, match="task 4"):
                next(found)
            assert list(islice(found, 2)) == [5, 6]
            with pytest.raises(rw.TaskError, match="task 7"):
                next(found)
            assert list(found) == [8, 9]
        else:
            assert group.map(task, None, 1) is None
            assert list(group.imap(task, None, 1)) == []
        if group.rank == 0:
            with pytest.raises(rw.TaskError, match="is not plain data"):
                group.map(lambda x: object(), [1])
        else:
            group.map(lambda x: object())

    run_ranks(ranks, 2, backend=backend)


@both
def test_wrong_arguments(backend: str) -> None:
    def ranks(group: Group) -> None:
        with group.split(group.rank) as alone:
            with pytest.raises(TypeError, match="fn=3: expected a function of one argument"):
                alone.map(3, [1])  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="tasks=None: expected the tasks, on rank dst"):
                alone.map(abs)
            with pytest.raises(ValueError, match="dst=1: expected a rank of the group"):
                alone.map(abs, [1], 1)
            with pytest.raises(TypeError, match="not plain data"):
                alone.map(abs, [object()])
            assert alone.map(abs, [-1]) == [1]

    run_ranks(ranks, 2, backend=backend)


@both
@pytest.mark.parametrize("taken", [0, 1])
def test_a_dropped_iterator(backend: str, taken: int) -> None:
    def ranks(group: Group) -> None:
        begun = group.counter()
        found = group.imap(lambda x: begun.next() or time.sleep(0.001), on(group, 0, range(100_000)))
        if group.rank == 0:
            assert len(list(islice(found, taken))) == taken
        del found
        assert group.all_reduce(1) == 3
        assert begun.value < 100_000

    run_ranks(ranks, 3, backend=backend)


def test_a_rank_that_dies_loses_only_its_task() -> None:
    def ranks(group: Group) -> None:
        begun = itertools.count(1)  # this rank's tasks

        def task(number: int) -> int:
            if next(begun) == {1: 3, 3: 5}.get(group.rank):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.002)
            return number * 10

        found = group.map(task, on(group, 0, range(60)))
        assert found == on(group, 0, [number * 10 for number in range(60)])
        smaller = group.shrink()
        assert smaller.ranks == (0, 2)

    with pytest.raises(RanksFailed) as caught:
        run_ranks(ranks, 4, backend="shm")
    assert set(caught.value.failures) == {1, 3}


@both
def test_a_task_that_raises_an_error_of_another_group(backend: str) -> None:
    def ranks(group: Group) -> None:
        def task(x: int) -> int:
            if x == 1:
                raise PeerLostError("a pool of this task's own has lost a rank", rank=7)
            return x

        if group.rank == 0:
            with pytest.raises(rw.TaskError, match="PeerLostError: a pool of this task's own has lost a rank"):
                group.map(task, range(6))
        else:
            group.map(task)
        assert group.all_reduce(1) == 3

    run_ranks(ranks, 3, backend=backend)


@both
def test_whatever_the_methods_of_an_error_or_a_result_raise(backend: str) -> None:
    def ranks(group: Group) -> None:
        def task(number: int) -> Any:
            kind = (RuntimeError, SystemExit, RecursionError)[number % 3]
            return hostile.gives(hostile.Full, kind) if number < 3 else hostile.fails(hostile.Unshowable, kind)

        found = group.imap(task, on(group, 0, range(9)), allow_pickle=True)
        for number in range(9) if group.rank == 0 else ():
            with pytest.raises(rw.TaskError, match=f"task {number} raised an error on rank"):
                next(found)
        assert list(found) == []
        assert group.all_reduce(1) == 3

    run_ranks(ranks, 3, backend=backend)


@pytest.mark.parametrize("n", [2, 4])
def test_a_task_that_ends_its_ranks_is_given_up(n: int) -> None:
    """Task n does. Each rank is in one of the first n before another is begun, and dst until task n is."""

    def ranks(group: Group) -> None:
        begun, deadly = group.counter(), group.counter()

        def task(number: int) -> int:
            if number == n:
                deadly.next()
                os.kill(os.getpid(), signal.SIGKILL)
            begun.next()
            while begun.value < n or (group.rank == 0 and not deadly.value):
                time.sleep(0.001)
            return number

        if group.rank == 0:
            found = group.imap(task, range(2 * n))
            assert list(islice(found, n)) == list(range(n))
            how = ", ".join([r"rank \d was killed by SIGKILL"] * min(2, n - 1))
            with pytest.raises(rw.TaskError, match=f"^task {n} ended the process of each rank that did it: {how}$"):
                next(found)
            assert list(found) == list(range(n + 1, 2 * n))
        else:
            group.map(task)
        assert len(group.failed()) == min(2, n - 1)

    with pytest.raises(RanksFailed) as caught:
        run_ranks(ranks, n, backend="shm")
    assert len(caught.value.failures) == min(2, n - 1)
    assert 0 not in caught.value.failures


def test_the_loss_of_dst() -> None:
    def ranks(group: Group) -> None:
        if group.rank == 0:
            group.map(lambda number: os.kill(os.getpid(), signal.SIGKILL), range(50))
        with pytest.raises(PeerLostError) as caught:
            group.map(lambda number: time.sleep(0.002))
        assert caught.value.rank == 0

    with pytest.raises(RanksFailed) as caught:
        run_ranks(ranks, 3, backend="shm")
    assert set(caught.value.failures) == {0}
