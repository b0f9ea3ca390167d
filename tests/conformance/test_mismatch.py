"""Ranks make different calls: every rank raises MismatchError with both sides, and outputs are unchanged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from rankwise import Group, MismatchError
from rankwise.contract import operations
from rankwise.contract.types import DType, ReduceOp
from rankwise.testing import run_ranks

Call = Callable[[Group, Any], object]

# What most ranks call, what the last rank calls, words of each in the message.
DIFFERENCES: dict[str, tuple[Call, Call, tuple[str, str]]] = {
    "operation": (lambda g, x: g.all_reduce(x), lambda g, x: g.broadcast(x), ("all_reduce", "broadcast")),
    "barrier": (lambda g, x: g.all_reduce(x), lambda g, x: g.barrier(), ("all_reduce", "barrier")),
    "count": (lambda g, x: g.all_reduce(x), lambda g, x: g.all_reduce(x[:-1]), ("count", "count")),
    "shape": (
        lambda g, x: g.all_reduce(x.reshape(3, -1)),
        lambda g, x: g.all_reduce(x.reshape(-1, 3)),
        ("shape=(3, ", ", 3))"),
    ),
    "shape of strided arrays": (
        lambda g, x: g.all_reduce(x.reshape(3, -1)[:, ::2]),
        lambda g, x: g.all_reduce(x.reshape(-1, 3)[::2]),
        ("shape=(3, ", ", 3))"),
    ),
    "shape, started": (
        lambda g, x: g.all_reduce(x.reshape(3, -1), async_op=True).wait(),
        lambda g, x: g.all_reduce(x.reshape(-1, 3), async_op=True).wait(),
        ("shape=(3, ", ", 3))"),
    ),
    "number of axes": (lambda g, x: g.reduce(x), lambda g, x: g.reduce(x.reshape(1, -1)), ("", "shape=(1, ")),
    "shape of broadcast": (
        lambda g, x: g.broadcast(x.reshape(3, -1)),
        lambda g, x: g.broadcast(x.reshape(-1, 3)),
        ("", ", 3))"),
    ),
    "shape of all_gather": (
        lambda g, x: g.all_gather(x.reshape(3, -1)),
        lambda g, x: g.all_gather(x.reshape(-1, 3)),
        ("shape=(3, ", ", 3))"),
    ),
    "shape of rows": (
        lambda g, x: g.all_gather_v(x.reshape(2, 3, -1)),
        lambda g, x: g.all_gather_v(x.reshape(2, -1, 3)),
        ("shape=(3, ", ", 3))"),
    ),
    "shape of gathered rows": (
        lambda g, x: g.gather_v(x.reshape(-1, 3), 0),
        lambda g, x: g.gather_v(x.reshape(-1, 2), 0),
        ("row=3", "row=2"),
    ),
    "shape of exchanged rows": (
        lambda g, x: g.all_to_all_v(x.reshape(-1, 3, 2), [x.size // 6] + [0] * (g.world_size - 1)),
        lambda g, x: g.all_to_all_v(x.reshape(-1, 2, 3), [x.size // 6] + [0] * (g.world_size - 1)),
        ("shape=(3, 2)", "shape=(2, 3)"),
    ),
    "dtype of rows": (
        lambda g, x: g.all_gather_v(x),
        lambda g, x: g.all_gather_v(x.view(np.int32)),
        ("float32", "int32"),
    ),
    "gather_v and all_gather_v": (
        lambda g, x: g.gather_v(x),
        lambda g, x: g.all_gather_v(x),
        ("gather_v(", "all_gather_v("),
    ),
    "scan and exscan": (lambda g, x: g.scan(x), lambda g, x: g.exscan(x), ("scan(", "exscan(")),
    "scan and exscan of a function": (
        lambda g, x: g.scan(x, np.hypot),
        lambda g, x: g.exscan(x, np.hypot),
        ("scan: gather", "exscan: gather"),
    ),
    "dtype": (lambda g, x: g.all_reduce(x), lambda g, x: g.all_reduce(x.view(np.int32)), ("float32", "int32")),
    "op": (lambda g, x: g.all_reduce(x), lambda g, x: g.all_reduce(x, "max"), ("sum", "max")),
    "root of broadcast": (
        lambda g, x: g.broadcast(x),
        lambda g, x: g.broadcast(x, 1),
        ("", ""),
    ),  # a root may be past it
    "root of reduce": (lambda g, x: g.reduce(x), lambda g, x: g.reduce(x, 1), ("root", "root")),
    "gather and all_gather": (lambda g, x: g.gather(x), lambda g, x: g.all_gather(x), ("gather", "all_gather")),
    "count of gather": (lambda g, x: g.gather(x), lambda g, x: g.gather(x[1:]), ("count", "count")),
    "lengths for all_gather_v": (
        lambda g, x: g.all_gather(x),
        lambda g, x: g.all_gather(x[1:]),
        ("count", "count"),
    ),
    "count of all_to_all": (lambda g, x: g.all_to_all(x), lambda g, x: g.all_to_all(x[6:]), ("count", "count")),
    "split": (lambda g, x: g.split(0), lambda g, x: g.barrier(), ("split", "barrier")),
}


@pytest.mark.parametrize(("backend", "n", "size"), [("threads", 2, 12), ("threads", 3, 120_000), ("shm", 3, 12)])
@pytest.mark.parametrize("name", list(DIFFERENCES))
def test_every_rank_raises(backend: str, n: int, size: int, name: str) -> None:
    most, last, words = DIFFERENCES[name]

    def body(world: Group) -> dict[int, str]:
        group = world.dup()  # the world goes on, so that its processes serve the next test too
        x = np.full(size, group.rank + 1, np.float32)
        try:
            (last if group.rank == n - 1 else most)(group, x)
        except MismatchError as error:
            assert (x == group.rank + 1).all(), "its array was changed by a refused call"
            return error.calls
        try:  # its part may have been complete, as that of a broadcast's root is at once
            group.barrier()
        except MismatchError as error:
            return error.calls
        raise AssertionError("it was told nothing")

    for calls in run_ranks(body, n, backend=backend, timeout=20):
        different = calls.pop(n - 1)
        assert any(words[0] in call for call in calls.values()), calls
        assert words[1] in different


@pytest.mark.parametrize("last", ["broadcast", "broadcast_object", "reduce"])
def test_a_difference_in_the_last_call_is_logged_when_the_group_is_closed(
    last: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If each rank's own part is complete at once, none of its calls compares."""

    def body(group: Group) -> None:
        part = group.dup()
        if last == "reduce":
            part.reduce(np.ones(3), dst=1 - part.rank)
        elif last == "broadcast_object":
            part.broadcast_object({"rank": part.rank}, src=part.rank)
        else:
            part.broadcast(np.ones(3), src=part.rank)
        group.barrier()  # both have called it
        part.close()

    run_ranks(body, 2, backend="threads", timeout=20)
    texts = [record.getMessage() for record in caplog.records if record.name == "rankwise"]
    assert len(texts) == 2, texts
    for rank, text in enumerate(sorted(texts)):
        assert text.startswith(f"closing rank {rank} of 2 (threads): the ranks called different operations"), text
        assert "root=0" in text
        assert "root=1" in text


def test_equal_last_calls_log_nothing_at_close(caplog: pytest.LogCaptureFixture) -> None:
    def body(group: Group) -> None:
        for last in (lambda g: g.broadcast(np.ones(3)), lambda g: g.gather(np.ones(3)), lambda g: g.reduce(np.ones(3))):
            with group.dup() as part:
                part.barrier()
                last(part)

    run_ranks(body, 3, backend="threads", timeout=20)
    assert not [record for record in caplog.records if record.name == "rankwise"]


def test_a_shape_belongs_to_one_call() -> None:
    """A call that is refused before it begins does not pass its shape on to the next call."""

    def body(group: Group) -> None:
        group.all_reduce(np.ones((2, 2)))
        if group.rank == 0:
            with pytest.raises(ValueError, match="root"):
                group.comm.run(operations.Call(operations.BROADCAST, root=7, shape=(2, 2)))
        x = np.ones(4)
        group.comm.all_reduce(x.ctypes.data, x.size, DType.F64, ReduceOp.SUM)
        assert (x == 2).all()

    run_ranks(body, 2, backend="threads", timeout=20)


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_another_order_of_calls(backend: str) -> None:
    def body(group: Group) -> dict[int, str]:
        x = np.ones(5)
        calls: list[Callable[[], object]] = [lambda: group.all_reduce(x), lambda: group.all_gather(x)]
        try:
            for call in calls if group.rank else calls[::-1]:
                call()
        except MismatchError as error:
            return error.calls
        return {}

    for calls in run_ranks(body, 3, backend=backend, timeout=20):
        assert {call.partition("(")[0] for call in calls.values()} >= {"all_reduce", "all_gather"}, calls


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_a_message_of_another_size_or_type(backend: str) -> None:
    def body(group: Group, odd: Any) -> None:
        if group.rank == 0:
            group.isend(np.ones(5), 1)
        else:
            with pytest.raises(MismatchError, match=f"(?s){odd.size}.*{odd.dtype}"):
                group.recv(odd, 0)
            assert (odd == 0).all(), "its array was changed by a refused message"

    for odd in (np.zeros(4), np.zeros(6), np.zeros(5, int)):
        run_ranks(partial(body, odd=odd), 2, backend=backend, timeout=20)


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_a_group_that_failed_stays_failed(backend: str) -> None:
    def body(group: Group) -> list[str]:
        told = []
        for _ in range(3):
            try:
                group.all_reduce(np.ones(2 + group.rank))
            except MismatchError as error:
                told.append(str(error))
        return told

    for told in run_ranks(body, 2, backend=backend, timeout=20):
        assert len(told) == 3
