"""Every public function with a timeout checks it in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.contract.timeouts import check_timeout, check_wait
from rankwise.group.group import Group
from rankwise.testing import run_ranks

WAITS: dict[str, Callable[[Group, Any], object]] = {
    "Work.wait": lambda group, timeout: group.barrier(async_op=True).wait(timeout),
    "irecv_object().wait": lambda group, timeout: group.irecv_object(tag=9).wait(timeout),
    "wait_all": lambda group, timeout: rw.wait_all([group.barrier(async_op=True)], timeout),
    "wait_any": lambda group, timeout: rw.wait_any([group.irecv((1,), 0, tag=9)], timeout),
    "recv_any": lambda group, timeout: group.recv_any(tag=rw.ANY, timeout=timeout),
    "recv_object": lambda group, timeout: group.recv_object(0, timeout=timeout),
    "probe": lambda group, timeout: group.probe(tag=rw.ANY, timeout=timeout),
    "Event.synchronize": lambda group, timeout: rw.overlap.Event().synchronize(timeout),
    "Stream.synchronize": lambda group, timeout: rw.overlap.Stream().synchronize(timeout),
    "Stream().submit().wait": lambda group, timeout: rw.overlap.Stream().submit(int).wait(timeout),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_refuses_what_is_no_number_of_seconds(name: str) -> None:
    def ranks(group: Group) -> None:
        for bad in (float("nan"), -1, -0.5, "3", True, 1j):
            error = TypeError if isinstance(bad, (str, bool, complex)) else ValueError
            given = re.escape(repr(bad))
            with pytest.raises(error, match=rf"^timeout: {given} given, expected seconds, at least 0, or None$"):
                WAITS[name](group, bad)
        assert group.probe(tag=rw.ANY) is None

    run_ranks(ranks, 1)


def test_a_lock_refuses_it_too() -> None:
    def ranks(group: Group) -> None:
        lock = group.lock()
        for bad in (float("nan"), -1):
            with pytest.raises(ValueError, match=rf"^timeout: {bad} given, expected seconds, at least 0, or None$"):
                lock.acquire(bad)
        with lock:
            pass

    run_ranks(ranks, 1)


def test_the_future_of_a_task_refuses_nan() -> None:
    with rw.Pool(1, threads=True) as pool:
        future = pool.submit(int)
        with pytest.raises(ValueError, match=r"^timeout: nan given, expected seconds, at least 0, or None$"):
            future.result(float("nan"))
        assert future.result() == 0
        assert future.result(-1) == 0  # as in concurrent.futures


@pytest.mark.parametrize("bad", [float("nan"), -1, "3", True, None])
def test_a_close_refuses_what_is_no_number_of_seconds_and_closes_nothing(bad: Any) -> None:
    def ranks(group: Group) -> None:
        with rw.overlap.Stream() as stream, group.dup() as part:
            for one in (stream, part):
                with pytest.raises(
                    (TypeError, ValueError), match=rf"^timeout: {bad!r} given, expected seconds, at least 0$"
                ):
                    one.close(bad)
            assert not part.closed
            assert part.all_reduce(1) == 1
            assert stream.submit(int).wait() == 0

    run_ranks(ranks, 1)


@pytest.mark.parametrize(
    "start",
    [
        lambda timeout: run_ranks(int, 1, timeout=timeout),
        lambda timeout: rw.spawn(int, 1, timeout=timeout),
        lambda timeout: rw.init(timeout=timeout),
    ],
)
def test_the_limit_of_operations_is_checked_before_anything_is_started(start: Callable[[Any], object]) -> None:
    for bad in (float("nan"), float("inf"), 0, -1):
        with pytest.raises(ValueError, match=rf"^timeout={bad}: expected a number of seconds above 0 and at most"):
            start(bad)
    for bad in ("3", True):
        with pytest.raises(TypeError, match=rf"^timeout={bad!r}: expected a number of seconds, got "):
            start(bad)


def test_what_is_accepted() -> None:
    for three in (3, 3.0, np.float32(3), np.int64(3)):
        assert type(check_wait(three)) is type(check_timeout(three)) is float
        assert check_wait(three) == check_timeout(three) == 3
    assert check_wait(0) == 0
    assert check_wait(float("inf")) == check_wait(10**400) == 1e9


def test_probe_waits_for_the_groups_timeout() -> None:
    def ranks(group: Group) -> None:
        with group.timeout_of(0.05):
            assert group.probe(tag=rw.ANY, timeout=None) is None

    run_ranks(ranks, 1)
