"""async_op=True: the same results as blocking calls, in the order called, with the memory kept."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.contract.errors import ClosedError, CollectiveTimeout, MismatchError
from rankwise.group.group import Group
from rankwise.testing import run_ranks

Call = Callable[..., Any]


def calls(group: Group) -> dict[str, Call]:
    """Every operation, as a function of async_op; each call makes its own arrays."""
    n, me = group.world_size, group.rank

    def x(rows: int = 2 * n) -> Any:
        return np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) + me

    return {
        "barrier": lambda **k: group.barrier(**k),
        "all_reduce": lambda **k: group.all_reduce(x(), **k),
        "all_reduce of a view": lambda **k: group.all_reduce(x().T[::2], "max", **k),
        "all_reduce of a number": lambda **k: group.all_reduce(me + 1.5, **k),
        "broadcast": lambda **k: group.broadcast(x(), n - 1, **k),
        "reduce": lambda **k: group.reduce(x(), n - 1, **k),
        "gather": lambda **k: group.gather(x(), n - 1, **k),
        "all_gather": lambda **k: group.all_gather(x(), **k),
        "all_gather of a view": lambda **k: group.all_gather(x()[:, ::2], **k),
        "all_gather out": lambda **k: group.all_gather(x(), out=np.empty((3, 2 * n, n), np.float32).T, **k),
        "scatter": lambda **k: group.scatter(x() if me == 0 else None, **k),
        "scatter unevenly": lambda **k: group.scatter(x(2 * n + 1) if me == 0 else None, **k),
        "reduce_scatter": lambda **k: group.reduce_scatter(x(), **k),
        "reduce_scatter unevenly": lambda **k: group.reduce_scatter(x(n + 1), **k),
        "all_to_all": lambda **k: group.all_to_all(x(), **k),
        "all_to_all unevenly": lambda **k: group.all_to_all(x(n + 1), **k),
        "all_gather_v": lambda **k: group.all_gather_v(x(me), **k),
        "gather_v": lambda **k: group.gather_v(x(me), 0, **k),
        "scatter_v": lambda **k: group.scatter_v(*((x(n), [1] * n) if me == 0 else ()), **k),
        "reduce_scatter_v": lambda **k: group.reduce_scatter_v(x(n + 1), [n + 1] + [0] * (n - 1), **k),
        "all_to_all_v": lambda **k: group.all_to_all_v(x(n * (me + 1)), [me + 1] * n, **k),
        "all_reduce by a function": lambda **k: group.all_reduce(x(), np.maximum, **k),
        "all_reduce maxloc": lambda **k: group.all_reduce(x(), "maxloc", **k),
        "reduce_scatter by a function": lambda **k: group.reduce_scatter(x(), np.maximum, **k),
        "scan": lambda **k: group.scan(x(), **k),
        "exscan by a function": lambda **k: group.exscan(x(), np.add, **k),
        "batch": lambda **k: group.batch([(x(2), (me + 1) % n)], [(x(2) * 0, (me - 1) % n)], **k),
    }


def same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, (list, tuple)):
        for one, other in zip(got, want, strict=True):
            same(one, other)
    elif isinstance(want, np.ndarray):
        np.testing.assert_array_equal(got, want, strict=True)
    else:
        assert got == want


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_every_operation_gives_the_result_of_the_blocking_one(backend: str) -> None:
    def ranks(group: Group) -> None:
        for call in calls(group).values():
            work = call(async_op=True)
            assert isinstance(work, rw.Work)
            same(work.wait(), call())
            assert work.done()
            same(work.result(), work.wait())

    run_ranks(ranks, 3, backend=backend)


def test_all_operations_in_progress_at_once() -> None:
    """They run in the order called; a blocking call runs after all before it."""

    def ranks(group: Group) -> None:
        wants = [call() for call in calls(group).values()]
        works = [call(async_op=True) for call in calls(group).values()]
        assert group.all_reduce(1) == 3
        assert all(work.done() for work in works)
        same(rw.wait_all(works), wants)
        assert not group.pending.works

    run_ranks(ranks, 3)


def test_results_are_complete_once_done_is_true() -> None:
    def ranks(group: Group) -> None:
        base = np.ones((4, 4))
        work = group.all_reduce(base[:, 1], async_op=True)
        while not work.done():
            pass
        assert base.tolist() == [[1, 2, 1, 1]] * 4

    run_ranks(ranks, 2)


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_polling_finds_that_the_group_has_failed(backend: str) -> None:
    def ranks(group: Group) -> list[str]:
        """The operations that rank 0 polls for ever."""
        endless = []
        for name in calls(group):
            with group.dup() as failing:
                work = calls(failing)[name](async_op=True) if group.rank == 0 else None
                group.barrier()
                if work is None:
                    failing.abort("on purpose")
                    continue
                end = time.monotonic() + 10
                while not work.done() and time.monotonic() < end:
                    time.sleep(1e-4)
                if not work.done():
                    endless.append(name)
                with suppress(rw.RankwiseError):
                    work.wait()
        return endless

    assert run_ranks(ranks, 2, backend=backend) == [[], []]


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_polling_is_waiting_for_a_peer_that_has_left_its_part(backend: str) -> None:
    """Rank 0 begins its part only when somebody waits, as it fills in the neutral element too; rank 1 has begun."""

    def ranks(group: Group) -> None:
        other = group.dup()
        work = other.exscan(np.full(3, 5.0), "max", async_op=True)
        if group.rank == 1:
            end = time.monotonic() + 20
            while not work.done():
                assert time.monotonic() < end, "it is never done"
        group.barrier()  # in which rank 0 is meanwhile
        assert work.wait().tolist() == [-np.inf, 5.0][group.rank : group.rank + 1] * 3

    run_ranks(ranks, 2, backend=backend)


@pytest.mark.parametrize("backend", ["threads", "shm"])
@pytest.mark.parametrize("length", [1 << 10, 1 << 15, 1 << 18])  # bytes; long ones travel as messages
def test_a_gather_goes_on_beside_a_root_that_has_only_started_it(backend: str, length: int) -> None:
    def ranks(group: Group) -> None:
        other = group.dup()
        mine = np.full(length, group.rank, np.uint8)
        for gather in (other.gather_v, other.gather_object):
            if group.rank == 0:
                work = gather(mine, 0, async_op=True)
                group.barrier()
                assert [block[-1] for block in np.reshape(work.wait(), (2, length))] == [0, 1]
            else:
                gather(mine, 0)
                group.barrier()

    run_ranks(ranks, 2, backend=backend, timeout=20)


def test_dropped_works_still_complete() -> None:
    def ranks(group: Group) -> None:
        for i in range(100):
            group.all_reduce(np.full(1000, i), async_op=True)
            group.all_gather_v(np.full(group.rank, i), async_op=True)
        gc.collect()
        group.barrier()
        assert not group.pending.works

    run_ranks(ranks, 2)


def test_bad_arguments_raise_at_once_and_do_not_fail_the_group() -> None:
    def ranks(group: Group) -> None:
        for call in (
            lambda: group.all_reduce("x", async_op=True),
            lambda: group.all_reduce(np.ones(2, int), "mean", async_op=True),
            lambda: group.scatter_v(np.ones(2), [1, 2], group.rank, async_op=True),
            lambda: group.all_to_all_v(np.ones(2), [3, -1], async_op=True),
            lambda: group.batch([(np.ones(2), 1)], [((2,), 5)], async_op=True),
        ):
            with pytest.raises((TypeError, ValueError)):
                call()
        assert group.all_reduce(1) == 2

    run_ranks(ranks, 2)


def test_errors_come_at_wait() -> None:
    def ranks(group: Group) -> None:
        part = group.dup()
        work = part.all_reduce(np.ones(2 + part.rank), async_op=True)
        composed = part.all_gather_v(np.ones(2), async_op=True)
        for failed in (work, composed):
            for _ in range(2):
                with pytest.raises(MismatchError):
                    failed.wait()
            assert failed.done()
        with pytest.raises(MismatchError):
            rw.wait_all([work, composed])
        part.close()
        with pytest.raises(ClosedError):
            part.all_reduce(np.ones(2), async_op=True)
        assert group.all_reduce(1) == 2

    run_ranks(ranks, 2)


def test_a_late_out_is_refused_at_wait() -> None:
    def ranks(group: Group) -> None:
        work = group.all_gather_v(np.ones((group.rank, 2)), out=np.empty((7, 2)), async_op=True)
        with pytest.raises(ValueError, match=r"^out: expected shape \(3, 2\), got \(7, 2\)$"):
            work.wait()
        assert group.all_reduce(1) == 3

    run_ranks(ranks, 3)


def test_waits_with_a_timeout() -> None:
    def ranks(group: Group) -> None:
        if group.rank == 0:
            work, other = group.barrier(async_op=True), group.irecv((2,), 1)
            with pytest.raises(CollectiveTimeout):
                work.wait(0.01)
            with pytest.raises(CollectiveTimeout, match=r"^wait_all: an operation was not complete within 0.01 s$"):
                rw.wait_all([work, other], timeout=0.01)
            with pytest.raises(CollectiveTimeout, match=r"^wait_any: none of 2 operations completed within 0.01 s$"):
                rw.wait_any([work, other], timeout=0.01)
            assert not work.done()
            group.send(1, 1)
            assert rw.wait_any([other, work]) in (0, 1)
            work.wait()
            assert rw.wait_all([other, work], timeout=10)[0].tolist() == [5, 6]
        else:
            group.recv((), 0, dtype=int)
            group.barrier()
            group.send(np.array([5.0, 6.0]), 0)
        with pytest.raises(ValueError, match=r"^works: expected at least one Work"):
            rw.wait_any([])

    run_ranks(ranks, 2)


def test_wait_any_returns_the_complete_work() -> None:
    def ranks(group: Group) -> None:
        if group.rank == 0:
            works = [group.irecv((), 1, tag, dtype=int) for tag in range(4)]
            for expected in (2, 0, 3):
                group.send(expected, 1)
                assert rw.wait_any(iter(works)) == expected
                assert works[expected].wait() == 10 * expected
                works[expected] = group.irecv((), 1, 9, dtype=int)  # nothing comes there
            group.send(1, 1)
            assert works[1].wait() == 10
            for _ in range(3):
                group.send(9, 1)
            rw.wait_all(works)
        else:
            for _ in range(7):
                tag = int(group.recv((), 0, dtype=int))
                group.send(10 * tag, 0, tag)

    run_ranks(ranks, 2)


def test_await() -> None:
    async def job(group: Group) -> list[int]:
        other = 1 - group.rank

        async def one(tag: int) -> int:
            sending = group.isend(tag + group.rank, other, tag)
            got = await group.irecv((), other, tag, dtype=int)
            await sending
            return int(got)

        async def let_rank_0_begin() -> None:
            for _ in range(3):
                await asyncio.sleep(0.001)
            await group.isend(0, 0, tag=40)

        # Rank 1 waits for rank 0, which begins when another task of rank 1 has run meanwhile.
        if group.rank == 0:
            await group.irecv((), 1, tag=40, dtype=int)
            meanwhile = None
        else:
            meanwhile = asyncio.create_task(let_rank_0_begin())
        # More at once than a pool of threads would have, in orders that differ between the ranks.
        tags = range(40) if group.rank == 0 else range(39, -1, -1)
        got = await asyncio.gather(*[one(tag) for tag in tags])
        if meanwhile is not None:
            await meanwhile
        total = await group.all_reduce(np.ones(2), async_op=True)
        assert total.tolist() == [2, 2]
        with pytest.raises(MismatchError):
            await group.dup().all_reduce(np.ones(group.rank + 1), async_op=True)
        return [value - tag for tag, value in zip(tags, got, strict=True)]

    def ranks(group: Group) -> None:
        assert asyncio.run(job(group)) == [1 - group.rank] * 40

    run_ranks(ranks, 2)


def test_a_cancelled_await() -> None:
    async def job(group: Group) -> None:
        work = group.irecv((), 1 - group.rank, dtype=int)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(work, 0.02)
        group.all_reduce(1)
        group.send(4, 1 - group.rank)
        assert await work == 4

    run_ranks(lambda group: asyncio.run(job(group)), 2)
    for thread in threading.enumerate():
        if thread.name == "rankwise await":
            thread.join(10)
            assert not thread.is_alive()


def test_a_work_keeps_its_group_open() -> None:
    def ranks(group: Group) -> None:
        for _ in range(20):
            group.dup().all_reduce(np.ones(3), async_op=True)
            work = group.dup().all_gather_v(np.ones(3), async_op=True)
            assert work.wait().tolist() == [1] * 6
        gc.collect()
        assert group.all_reduce(1) == 2

    run_ranks(ranks, 2)
