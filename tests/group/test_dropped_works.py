"""Works that are dropped: failures are raised by the stream's synchronize or logged; received messages are kept."""

from __future__ import annotations

import gc
import logging
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.contract.errors import ClosedError, CollectiveTimeout, MismatchError, RankwiseError
from rankwise.group.group import Group
from rankwise.testing import run_ranks

SOON = 20.0  # seconds within which anything must end


@pytest.mark.parametrize("backend", ["threads", "shm", pytest.param("gloo", marks=pytest.mark.slow)])
def test_synchronize_raises_the_groups_failure(backend: str) -> None:
    def ranks(group: Group) -> None:
        part = group.dup()
        part.all_reduce(np.ones(2 + group.rank), async_op=True)
        for _ in range(2):
            with pytest.raises(MismatchError):
                part.stream.synchronize()
        part.close()

    run_ranks(ranks, 2, backend=backend)


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_nobody_else_gets_the_memory_of_a_dropped_work(backend: str) -> None:
    """Rank 0 drops the only references to its arrays, and has filled others of the same size, before rank 1 calls."""

    def ranks(group: Group) -> None:
        part, length, root = group.dup(), 6_000, group.rank == 0
        counts = [length // 2] * 2
        starts: list[Callable[[], object]] = [
            lambda: part.all_reduce(np.ones(length), async_op=True),
            lambda: part.reduce(np.ones(length), async_op=True),
            lambda: part.broadcast(np.ones(length), async_op=True),
            lambda: part.all_gather(np.ones(length // 2), async_op=True),
            lambda: part.gather(np.ones(length // 2), async_op=True),
            lambda: part.scatter(np.ones(length) if root else None, async_op=True),
            lambda: part.reduce_scatter(np.ones(length), async_op=True),
            lambda: part.all_to_all(np.ones(length), async_op=True),
            lambda: part.all_gather_v(np.ones(length // 2), async_op=True),
            lambda: part.gather_v(np.ones(length // 2), async_op=True),
            lambda: part.scatter_v(np.ones(length) if root else None, counts if root else None, async_op=True),
            lambda: part.reduce_scatter_v(np.ones(length), counts, async_op=True),
            lambda: part.all_to_all_v(np.ones(length), counts, async_op=True),
            lambda: part.scan(np.ones(length), async_op=True),
            lambda: part.exscan(np.ones(length), async_op=True),
            lambda: part.sendrecv(np.ones(length), 1 - part.rank, 1 - part.rank, async_op=True),
        ]
        for number, start in enumerate(starts):
            if root:
                start()
                others = [np.full(count, 7.0) for count in (length // 2, length) for _ in range(4)]
                group.send(number, 1)
                part.barrier()
                part.stream.synchronize()
                assert all((other == 7.0).all() for other in others), f"operation {number} wrote elsewhere"
            else:
                assert group.recv((), 0, dtype=int) == number
                start()
                part.barrier()
                part.stream.synchronize()

    run_ranks(ranks, 2, backend=backend)


def test_synchronize_raises_the_failure_of_a_wait() -> None:
    """No operation follows the wait, so no Work can raise the failure."""

    def ranks(group: Group) -> None:
        part = group.dup()
        part.timeout = 0.05
        gate = threading.Event()
        with rw.overlap.Stream() as compute:
            compute.submit(gate.wait, SOON)
            part.stream.wait_stream(compute)
            behind = part.stream.record_event()
            with pytest.raises(CollectiveTimeout):
                behind.synchronize(SOON)
            with pytest.raises(CollectiveTimeout):
                part.stream.synchronize()
            gate.set()
        part.close()

    run_ranks(ranks, 1)


def test_synchronize_raises_other_errors_once() -> None:
    def fail(a: Any, b: Any) -> Any:
        raise ArithmeticError("on purpose")

    def ranks(group: Group) -> None:
        group.all_reduce(np.ones(2), fail, async_op=True)
        with pytest.raises(ArithmeticError if group.rank == 0 else RankwiseError, match="on purpose"):
            group.stream.synchronize()
        group.stream.synchronize()
        assert group.all_reduce(1) == 2
        work = group.all_reduce(np.ones(2), fail, async_op=True)
        with pytest.raises(ArithmeticError if group.rank == 0 else RankwiseError, match="on purpose"):
            work.wait()
        group.stream.synchronize()  # the caller knows

    run_ranks(ranks, 2)


def test_close_logs_a_failure_once(caplog: pytest.LogCaptureFixture) -> None:
    def ranks(group: Group) -> None:
        for known in (False, True):
            part = group.dup(f"part {known}")
            works = [part.all_reduce(np.ones(2 + group.rank), async_op=True) for _ in range(3)]
            if known:
                for work in works:
                    with pytest.raises(MismatchError):
                        work.wait()
            else:
                while not all(work.done() for work in works):
                    time.sleep(1e-3)
            part.close()

    with caplog.at_level(logging.ERROR, "rankwise"):
        run_ranks(ranks, 2)
    texts = [record.message.splitlines()[0] for record in caplog.records]
    assert len(texts) == 2
    for text in texts:
        assert re.match(
            r"closing rank [01] of group 'part False': 3 operations with async_op=True failed, and no wait", text
        )


def test_the_end_of_the_program_logs_a_failure_once() -> None:
    code = """
import numpy as np, rankwise as rw
group = rw.init()
def fail(a, b):
    raise ArithmeticError("on purpose")
group.all_reduce(np.ones(2), fail, async_op=True)
"""
    command = [sys.executable, "-m", "rankwise", "run", "-n", "2", "--", sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = ended.stdout + ended.stderr
    assert "no wait() raised the error; the first: ArithmeticError: on purpose" in said
    assert "Traceback" not in said


def test_a_dropped_receive_keeps_its_message() -> None:
    def ranks(group: Group) -> None:
        part, other = group.dup(), 1 - group.rank
        x, y = np.zeros(16)[::2], np.zeros(8, ">i4")
        for end in (part.barrier, part.close):
            x[...], y[...] = 0, 0
            part.irecv(x, other)
            part.batch([], [(y, other, 1)], async_op=True)
            part.send(np.full(8, 3.0), other)
            part.send(np.full(8, 4, np.int32), other, 1)
            group.barrier()
            end()
            assert (x == 3).all()
            assert (y == 4).all()

    run_ranks(ranks, 2)


def test_the_memory_of_a_dropped_message_lives_until_the_engine_is_done_with_it() -> None:
    def ranks(group: Group) -> None:
        for end in ("message", "close", "cancel"):
            part, x = group.dup(), np.zeros(3)
            alive = weakref.ref(x)
            work = part.irecv(x, 0)
            del x
            if end == "cancel":
                assert work.cancel()
            del work
            gc.collect()
            assert (alive() is None) == (end == "cancel")
            if end == "message":
                x = alive()
                part.send(np.ones(3), 0)
                assert x.tolist() == [1, 1, 1]
                del x
            part.close()
            assert _soon(lambda alive=alive: alive() is None)

    run_ranks(ranks, 1, backend="shm")  # in processes: only a main thread releases what the engine has kept


def test_a_message_keeps_its_group_until_it_has_ended() -> None:
    def ranks(group: Group) -> None:
        part = group.dup()
        alive = weakref.ref(part)
        work = part.irecv(np.zeros(3), 0)
        del part
        gc.collect()
        assert alive() is not None
        alive().send(np.ones(3), 0)
        assert work.wait().tolist() == [1, 1, 1]
        gc.collect()
        assert alive() is None

    run_ranks(ranks, 1)


def test_the_error_of_a_dropped_receive_is_raised_once_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    def ranks(group: Group) -> None:
        for known in ("raised", "waited for", "logged"):
            part = group.dup(f"part {known}")
            part.send(np.ones(2), 0)
            work = part.irecv(np.zeros(3), 0)
            assert isinstance(work, rw.Work)
            assert repr(work) == "<Work, failed: MismatchError>"
            assert work.source is None
            if known == "raised":
                with pytest.raises(MismatchError, match="the message is 2 x float64"):
                    part.stream.synchronize()
                part.stream.synchronize()
            elif known == "waited for":
                assert isinstance(work.exception(), MismatchError)
                part.stream.synchronize()
            part.recv(np.zeros(2), 0)
            part.close()

    with caplog.at_level(logging.ERROR, "rankwise"):
        run_ranks(ranks, 1)
    (record,) = caplog.records
    assert (
        "closing rank 0 of group 'part logged': an operation with async_op=True failed, and no wait" in record.message
    )


def _soon(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + SOON
    while not condition() and time.monotonic() < end:
        time.sleep(1e-3)
    return condition()


def test_a_receive_that_close_has_ended_is_not_delivered_later() -> None:
    def ranks(group: Group) -> None:
        part = group.dup()
        work = part.irecv(np.zeros(16)[::2], group.rank)
        early = part.irecv(np.zeros(16)[::2], group.rank, 1)
        part.comm.close(0.01)
        assert early.done()  # it asks an engine that has let go of its memory
        part.close()
        for _ in range(2):
            with pytest.raises((ClosedError, RankwiseError)):
                work.wait(SOON)
        assert work.done()
        assert work.source is None

    run_ranks(ranks, 1)


def test_another_thread_completes_a_receive_before_irecv_has_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example a barrier of a second thread, which finishes complete receives."""

    def ranks(group: Group) -> None:
        add = group.pending.add

        def add_and_finish(work: Any) -> None:
            add(work)
            assert work.done()

        group.send(np.arange(3.0), group.rank, 5)
        monkeypatch.setattr(group.pending, "add", add_and_finish)
        work = group.irecv((3,), rw.ANY, rw.ANY)
        assert work.wait().tolist() == [0, 1, 2]
        assert (work.source, work.tag) == (group.rank, 5)

    run_ranks(ranks, 1)


def test_a_group_that_is_dropped_with_its_work_is_closed() -> None:
    """The engine keeps the work's arrays, and not the group."""

    def ranks(group: Group) -> None:
        part = group.dup()
        if group.rank == 0:
            kept = part.comm
            works = [part.all_reduce(np.ones(2), async_op=True), part.barrier(async_op=True)]
            assert not kept.closed
            works.append(part.all_reduce(np.ones(2, int), "band", async_op=True))  # by the general path
            del part
            assert not kept.closed
            works.clear()
            gc.collect()
            assert kept.closed
        group.barrier()

    run_ranks(ranks, 2)


def test_an_operation_that_fails_as_its_communicator_is_closed_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def ranks(group: Group) -> None:
        part = group.dup()
        if group.rank == 0:
            part.all_reduce(np.ones(2), async_op=True)
            group.barrier()
            group.barrier()
            part.comm.close(0.1)
        else:
            group.barrier()
            part.close(0)
            group.barrier()
        del part
        gc.collect()

    run_ranks(ranks, 2)
    assert len([text for text in caplog.messages if text.startswith("closing rank 0")]) == 1, caplog.messages
