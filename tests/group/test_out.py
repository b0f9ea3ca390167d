"""all_reduce, reduce and broadcast into an `out`: x keeps its content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import rankwise as rw
from rankwise.group.group import Group
from rankwise.testing import run_ranks

N = 3
OUTS: dict[str, Callable[[], Any]] = {
    "array": lambda: np.empty((4, 5)),
    "rows of another array": lambda: np.empty((8, 5))[::2],
    "Fortran order": lambda: np.empty((4, 5), order="F"),
    "tensor": lambda: torch.empty(4, 5, dtype=torch.float64),
    "transposed tensor": lambda: torch.empty(5, 4, dtype=torch.float64).T,
}
XS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "array": np.array,
    "Fortran order": lambda x: np.array(x, order="F"),
    "read-only": lambda x: np.frombuffer(x.tobytes()).reshape(x.shape),
    "transposed tensor": lambda x: torch.from_numpy(np.ascontiguousarray(x.T)).T,
}


def numbers(rank: int) -> np.ndarray[Any, Any]:
    return np.arange(20.0).reshape(4, 5) + rank


CALLS: dict[str, Callable[..., Any]] = {
    "all_reduce": lambda group, x, **how: group.all_reduce(x, **how),
    "max": lambda group, x, **how: group.all_reduce(x, "max", **how),
    "function": lambda group, x, **how: group.all_reduce(x, lambda a, b: a - b, **how),
    "broadcast": lambda group, x, **how: group.broadcast(x if group.rank == 1 else None, 1, **how),
    "reduce": lambda group, x, **how: group.reduce(x, 2, **how),
}
EXPECTED = {
    "all_reduce": sum(map(numbers, range(N))),
    "max": numbers(N - 1),
    "function": numbers(0) - numbers(1) - numbers(2),
    "broadcast": numbers(1),
    "reduce": sum(map(numbers, range(N))),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_of_every_kind(backend: str, name: str) -> None:
    def ranks(group: Group) -> None:
        has_result = name != "reduce" or group.rank == 2
        for async_op in (False, True):
            for made in XS.values():
                for out_of in OUTS.values():
                    x, out = made(numbers(group.rank)), out_of()
                    found = CALLS[name](group, x, out=out, async_op=async_op)
                    found = found.wait() if async_op else found
                    assert found is (out if has_result else None)
                    if has_result:
                        np.testing.assert_array_equal(np.asarray(out), EXPECTED[name])
                    np.testing.assert_array_equal(np.asarray(x), numbers(group.rank))

    run_ranks(ranks, N, backend=backend)


def test_other_dtypes_and_numbers() -> None:
    def ranks(group: Group) -> None:
        x, out = torch.full((5,), 1.5, dtype=torch.bfloat16), torch.empty(5, dtype=torch.bfloat16)
        assert group.all_reduce(x, out=out) is out
        assert (out == 1.5 * N).all()
        assert (x == 1.5).all()
        number = np.empty((), np.int64)
        assert group.all_reduce(group.rank, out=number) is number
        assert number == sum(range(N))
        high, where = group.all_reduce(np.array([group.rank, -group.rank]), "maxloc", out=np.empty(2, np.int64))
        assert (high.tolist(), where.tolist()) == ([N - 1, 0], [N - 1, 0])
        x = np.ones(3)
        assert group.all_reduce(x, out=x) is x
        assert x.tolist() == [N] * 3

    run_ranks(ranks, N)


def test_what_the_stream_does_before() -> None:
    """x is read when the operation runs, not when it is called."""

    def ranks(group: Group) -> None:
        x, out = np.zeros(3), np.empty(3)
        other = rw.overlap.Stream()
        other.submit(x.fill, 1.0)
        group.stream.wait_stream(other)
        assert group.all_reduce(x, out=out, async_op=True).wait().tolist() == [N] * 3

    run_ranks(ranks, N)


@pytest.mark.parametrize("count", [10, 300_000])
def test_what_was_started_before(count: int) -> None:
    """A blocking call reads x after an operation that was started before it, and writes it."""

    def ranks(group: Group) -> None:
        for _ in range(5):
            x, out = np.full(count, float(group.rank == 0)), np.empty(count)
            work = group.broadcast(x, async_op=True)
            assert (group.all_reduce(x, out=out) == N).all()
            work.wait()
            x[:] = group.rank == 0
            work = group.broadcast(x, async_op=True)
            assert group.rank or (group.reduce(x, 0, out=out) == N).all()
            assert group.rank == 0 or group.reduce(x, 0, out=out) is None
            work.wait()
            work = group.all_reduce(x, "max", async_op=True)
            assert (group.broadcast(x, 1, out=out) == 1).all()
            work.wait()

    run_ranks(ranks, N)


def test_bad_arguments_send_nothing() -> None:
    def ranks(group: Group) -> None:
        x = np.ones(4)
        bad: list[tuple[Any, type[Exception], str]] = [
            (np.empty(5), ValueError, r"out: expected shape \(4,\), got \(5,\)"),
            (np.empty(4, np.float32), ValueError, "out: expected dtype float64, got float32"),
            (np.frombuffer(bytes(32)), ValueError, "out: expected a writable array"),
            (np.broadcast_to(np.ones(1), 4), ValueError, "out: expected a writable array"),
            (x[:], ValueError, "out: expected memory of its own, but it overlaps x"),
            ([0] * 4, TypeError, "out: expected an array"),
        ]
        for out, kind, text in bad:
            with pytest.raises(kind, match=text):
                group.all_reduce(x, out=out)
            with pytest.raises(kind, match=text):
                group.reduce(x, group.rank, out=out)
            with pytest.raises(kind, match=text):
                group.broadcast(x, group.rank, out=out)
        with pytest.raises(TypeError, match="x: expected an array"):
            group.all_reduce(None, out=np.empty(4))
        with pytest.raises(TypeError, match="x: expected an array"):
            group.broadcast(None, group.rank, out=np.empty(4))

    run_ranks(ranks, 2)
