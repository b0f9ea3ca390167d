"""`rankwise.spawn` with threads=True: objects by reference, init and rw.local, errors, Ctrl-C, nothing is left."""

from __future__ import annotations

import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import NoReturn

import numpy as np
import pytest

import rankwise as rw
from leftovers import held_here, holds_more_than
from rankwise import rank_threads

pytestmark = [
    pytest.mark.filterwarnings("ignore:threads=True"),  # this Python may have a GIL
    # A rank may be interrupted in a callback of Python's own, whose exceptions Python only reports.
    pytest.mark.filterwarnings("ignore:.*<function WeakSet.__init__:pytest.PytestUnraisableExceptionWarning"),
]


class OwnError(Exception):
    pass


def test_arguments_and_results_are_the_objects_themselves() -> None:
    lock, seen = threading.Lock(), []

    def fn(given: object, *, name: str) -> tuple[object, str]:
        seen.append(given)
        return given, name

    results = rw.spawn(fn, 3, lock, name="a", threads=True)
    assert all(given is lock for given in (*seen, *(result for result, _ in results)))
    assert [name for _, name in results] == ["a"] * 3


def test_init_and_the_namespace_are_the_threads() -> None:
    here = rw.init("solo")

    def fn() -> tuple[int, int, str, float, str]:
        group = rw.init()
        rw.local.rank = group.rank
        group.barrier()
        return rw.local.rank, group.world_size, group.backend, group.timeout, threading.current_thread().name

    with here:
        expected = [(rank, 3, "threads", 7.0, f"rank {rank}") for rank in range(3)]
        assert rw.spawn(fn, 3, timeout=7, threads=True) == expected
        assert rw.init() is here


def test_collectives_and_one_rank() -> None:
    def total(x: np.ndarray) -> np.ndarray:
        return rw.init().all_reduce(x.copy())  # it works in place, and all ranks have the same x

    assert [x.tolist() for x in rw.spawn(total, 4, np.arange(3), threads=True)] == [[0, 4, 8]] * 4
    assert rw.spawn(total, 1, np.arange(2), threads=True)[0].tolist() == [0, 1]


def test_within_a_rank() -> None:
    def inner() -> int:
        return int(rw.init().all_reduce(1))

    def outer() -> tuple[list[int], int]:
        return rw.spawn(inner, 2, threads=True), int(rw.init().all_reduce(1))

    assert rw.spawn(outer, 3, threads=True) == [([2, 2], 3)] * 3


def waits_for_all(group: rw.Group, part: rw.Group) -> None:
    group.barrier()


def waits_in_a_part(group: rw.Group, part: rw.Group) -> None:
    part.barrier()


def waits_for_a_message(group: rw.Group, part: rw.Group) -> None:
    part.recv_object(1)


def loops(group: rw.Group, part: rw.Group) -> NoReturn:
    while True:
        pass


@pytest.mark.parametrize("others", [waits_for_all, waits_in_a_part, waits_for_a_message, loops])
def test_an_error_of_one_rank_ends_the_others(others: Callable[[rw.Group, rw.Group], None]) -> None:
    error = OwnError("one")

    def fn() -> None:
        group = rw.init()
        part = group.split(0)
        if group.rank == 1:
            raise error
        others(group, part)

    with pytest.raises(OwnError) as caught:
        rw.spawn(fn, 3, threads=True)
    assert caught.value is error
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert frames[-1] == "fn", "the traceback is not the real one"


def test_of_several_errors_the_first_that_is_a_ranks_own() -> None:
    def fn() -> None:
        group = rw.init()
        if group.rank == 2:
            try:
                raise KeyError("cause")
            except KeyError as cause:
                raise OwnError from cause
        group.barrier()

    with pytest.raises(OwnError) as caught:
        rw.spawn(fn, 3, threads=True)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_rank_that_leaves_early_is_a_loss() -> None:
    def fn() -> None:
        if rw.init().rank:
            rw.barrier()

    with pytest.raises(rw.PeerLostError, match="rank 0"):
        rw.spawn(fn, 2, threads=True)


def test_what_ends_a_program_ends_only_the_call() -> None:
    with pytest.raises(rw.RankwiseError, match=r"rank [01] raised SystemExit: 3") as caught:
        rw.spawn(sys.exit, 2, 3, threads=True)
    assert isinstance(caught.value.__cause__, SystemExit)


def test_a_last_call_without_a_partner_is_an_error() -> None:
    def fn() -> None:
        group = rw.init()
        if group.rank:
            group.broadcast(1.0, src=1)

    with pytest.raises(rw.MismatchError, match="the ranks ended after different calls"):
        rw.spawn(fn, 2, threads=True)


def test_the_timeout_applies_to_the_operations() -> None:
    def fn() -> None:
        group = rw.init()
        if group.rank:
            group.barrier()
        else:
            late.wait(30)

    late = threading.Event()
    threading.Timer(2.0, late.set).start()
    with pytest.raises(rw.CollectiveTimeout):
        rw.spawn(fn, 2, timeout=0.5, threads=True)


@pytest.mark.parametrize("waits", [waits_for_all, waits_in_a_part, waits_for_a_message, loops])
def test_an_interrupt_ends_the_ranks(waits: Callable[[rw.Group, rw.Group], None]) -> None:
    ended: list[int] = []

    def fn() -> None:
        group = rw.init()
        try:
            part = group.split(0 if group.rank < 2 else 1)
            group.barrier()  # which may still last on the others when rank 2 goes on
            if group.rank == 2:
                signal.pthread_kill(main, signal.SIGINT)
            if group.rank == 0:
                waits(group, part)
            loops(group, part)
        finally:
            ended.append(group.rank)

    main = threading.get_ident()
    with pytest.raises(KeyboardInterrupt):
        rw.spawn(fn, 3, threads=True)
    end = time.monotonic() + 30
    while len(ended) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    assert sorted(ended) == [0, 1, 2]


def test_a_call_that_cannot_be_interrupted_does_not_keep_the_caller() -> None:
    def fn() -> None:
        if rw.init().rank == 0:
            signal.pthread_kill(main, signal.SIGINT)
        released.wait(60)  # no Python code runs meanwhile

    main, released = threading.get_ident(), threading.Event()
    with pytest.raises(KeyboardInterrupt):
        rw.spawn(fn, 2, threads=True)
    assert not released.is_set()
    released.set()
    end = time.monotonic() + 30
    while any(thread.name.startswith("rank ") for thread in threading.enumerate()) and time.monotonic() < end:
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("n", "error", "text"),
    [
        (0, ValueError, "n=0"),
        (1025, ValueError, "n=1025: expected at most 1024"),
        ("2", TypeError, "n='2': expected a number of ranks"),
    ],
)
def test_bad_arguments(n: int, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        rw.spawn(abs, n, 1, threads=True)


def test_bad_timeout() -> None:
    with pytest.raises(ValueError, match=r"timeout=0: expected a number of seconds above 0"):
        rw.spawn(abs, 2, 1, timeout=0, threads=True)
    with pytest.raises(TypeError, match=r"fn=3: expected a function"):
        rw.spawn(3, 2, threads=True)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error")
def test_a_python_with_a_global_lock_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rank_threads._warn_of_gil.cache_clear()
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    rw.spawn(abs, 2, -1, threads=True)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    rw.spawn(abs, 1, -1, threads=True)  # one rank has no other to wait for
    with pytest.warns(UserWarning, match=r"threads=True: this Python has a global interpreter lock") as caught:
        rw.spawn(abs, 2, -1, threads=True)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rw.spawn(abs, 2, -1, threads=True)
        rw.Pool(2, threads=True).shutdown()


def test_no_descriptor_or_thread_remains() -> None:
    def fails() -> None:
        if rw.init().rank:
            raise OwnError
        rw.barrier()

    rw.spawn(lambda: rw.barrier(), 2, threads=True)
    before = held_here()
    for _ in range(3):
        rw.spawn(lambda: rw.barrier(), 2, threads=True)
        with pytest.raises(OwnError):
            rw.spawn(fails, 2, threads=True)
        assert set(threading.enumerate()) <= before[1]
    end = time.monotonic() + 20
    while holds_more_than(before) and time.monotonic() < end:
        time.sleep(0.01)
    assert not holds_more_than(before)
