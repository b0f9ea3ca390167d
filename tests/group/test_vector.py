"""The operations with per-rank counts: arguments, kinds of array, errors found late."""

from __future__ import annotations

import re
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from rankwise._native import Work
from rankwise.contract.errors import MismatchError
from rankwise.group.group import Group
from rankwise.testing import run_ranks


def test_arguments_are_refused_before_anything_is_sent() -> None:
    def ranks(group: Group) -> None:
        x = np.ones((4, 2))
        if group.rank == 1:
            for counts in ([4], [1, 2], [5, -1], [1, 1, 2], [], None):
                text = re.escape(f"counts={counts!r}: expected 2 counts, one per rank, that add up to 4, the length of")
                with pytest.raises(ValueError, match=f"^{text}"):
                    group.all_to_all_v(x, counts)
                with pytest.raises(ValueError, match=f"^{text}"):
                    group.reduce_scatter_v(x, counts)
                with pytest.raises(ValueError, match=f"^{text}"):
                    group.scatter_v(x, counts, 1)
            for counts in ([1.5, 2.5], "ab", 4):
                with pytest.raises(TypeError, match=r"^counts=.*: expected a sequence of ints$"):
                    group.all_to_all_v(x, counts)
            with pytest.raises(ValueError, match=r"^x: expected an array with an axis 0"):
                group.gather_v(3.0)
            with pytest.raises(TypeError, match=r"^op='mean' on int64"):
                group.reduce_scatter_v(np.ones(2, int), [1, 1], "mean")
            with pytest.raises(ValueError, match=r"^out: expected dtype float64, got float32$"):
                group.all_to_all_v(x, [2, 2], out=np.empty((4, 2), np.float32))
            with pytest.raises(ValueError, match=r"^out: expected memory of its own, but it overlaps x$"):
                group.reduce_scatter_v(x, [2, 2], out=x[:2])
            with pytest.raises(ValueError, match=r"^out: expected shape \(1, 2\), got \(2, 2\)$"):
                group.scatter_v(x, [3, 1], 1, out=np.empty((2, 2)))
        assert group.all_reduce(1) == 2

    run_ranks(ranks, 2)


def test_a_late_error_about_out_does_not_fail_the_group() -> None:
    def ranks(group: Group) -> None:
        x = np.ones((2, 3))
        out = np.zeros((7, 3)) if group.rank == 0 else None
        calls = (
            lambda: group.gather_v(x, 0, out=out),
            lambda: group.all_to_all_v(x, [1, 1], out=out),
            lambda: group.scatter_v(*((x, [1, 1]) if group.rank == 1 else ()), src=1, out=out),
        )
        for call in calls:
            if group.rank == 0:
                with pytest.raises(ValueError, match=r"^out: expected shape \(\d, 3\), got \(7, 3\)$"):
                    call()
                assert out is not None
                assert (out == 0).all()
            else:
                call()
        assert group.all_reduce(1) == 2

    run_ranks(ranks, 2)


def test_ranks_pass_different_counts() -> None:
    def ranks(group: Group) -> None:
        with pytest.raises(MismatchError):
            group.reduce_scatter_v(np.ones(4), [1, 3] if group.rank else [2, 2])

    run_ranks(ranks, 2)


def test_tensors_and_views() -> None:
    torch = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        me = group.rank
        x = torch.arange(6, dtype=torch.bfloat16).reshape(3, 2)
        rows, counts = group.all_to_all_v(x.T.contiguous().T + 10 * me, [1, 2])
        assert rows.dtype is torch.bfloat16
        assert counts == [me + 1] * 2
        found = group.gather_v(x[: me + 1], 1)
        assert found is None if me == 0 else found.tolist() == [[0, 1], [0, 1], [2, 3]]
        part = group.scatter_v(x[::2] if me == 0 else torch.empty(0), [2, 0] if me == 0 else None)
        assert tuple(part.shape) == ((2, 2) if me == 0 else (0, 2))
        assert isinstance(part, torch.Tensor)
        some = np.arange(12).reshape(3, 4)[:, 1::2]
        assert group.reduce_scatter_v(some, [0, 3]).tolist() == ([] if me == 0 else (2 * some).tolist())

    run_ranks(ranks, 2)


SIZES = (0, 1, 10, 11, 12, 127, 128, 129, 511, 513, 3000, 50_000)  # elements, around what fits into a header and a slot


def lengths_of(n: int, most: int, kind: int) -> list[list[int]]:
    """How many rows each rank sends to each: all equal, nearly so, one long block, or none."""
    return [
        [
            (most, max(0, most - (i + 2 * j) % 3), most if (i, j) == (n - 1, 0) else 1, most * (i == j))[kind]
            for j in range(n)
        ]
        for i in range(n)
    ]


def called(group: Group, start: bool, into: bool, method: str, like: np.ndarray | None, *args: object) -> Any:
    """The result of a call, which is started or not, and writes into an `out` like `like` or not."""
    out = np.empty_like(like) if into and like is not None else None
    got = getattr(group, method)(*args, out=out, async_op=start)
    got = got.wait() if start else got
    assert out is None or (got[0] if type(got) is tuple else got) is out
    return got


@pytest.mark.parametrize(("n", "backend"), [(1, "solo"), (2, "threads"), (3, "shm"), (4, "threads")])
def test_lengths_that_only_the_ranks_know(n: int, backend: str) -> None:
    """Some ranks' arrays are plain, others not, so that the shortcut and the general path meet; and into `out`."""

    def ranks(group: Group) -> None:
        me = group.rank
        for size in SIZES:
            for kind in range(4):
                table = lengths_of(n, size, kind)
                rows = [np.arange(2.0 * sum(table[i])).reshape(-1, 2) + 1000 * i for i in range(n)]
                blocks = [np.split(rows[i], np.cumsum(table[i])[:-1]) for i in range(n)]
                strided = np.repeat(rows[me], 2, axis=1)[:, ::2]
                x = rows[me] if (me + kind) % 3 else strided
                first = x[: table[me][0]]
                expected = np.concatenate([blocks[i][0] for i in range(n)])
                received = np.concatenate([blocks[i][me] for i in range(n)])
                counts = [table[i][me] for i in range(n)]
                for start, into in product((False, True), repeat=2):
                    call = partial(called, group, start, into)
                    np.testing.assert_array_equal(call("all_gather_v", expected, first), expected)
                    last = expected if me == n - 1 else None
                    np.testing.assert_array_equal(call("gather_v", last, first, n - 1), last)
                    got, found = call("all_to_all_v", received, x, table[me])
                    np.testing.assert_array_equal(got, received)
                    assert found == counts
                    given = (x, table[0]) if me == 0 else (None, None)
                    part = blocks[0][me]
                    np.testing.assert_array_equal(call("scatter_v", part, *given), part)
                total = np.ones((sum(table[0]), 2), np.int32)
                np.testing.assert_array_equal(
                    group.reduce_scatter_v(total if me else total.T.copy().T, table[0]), np.full((table[0][me], 2), n)
                )

    run_ranks(ranks, n, backend=backend)


def test_rows_without_elements_are_counted() -> None:
    def ranks(group: Group) -> None:
        x = np.empty((2 + group.rank, 0))
        assert group.all_gather_v(x).shape == (5, 0)
        assert group.all_to_all_v(x, [1, 1 + group.rank])[1] == [[1, 1], [1, 2]][group.rank]
        assert group.scatter_v(*((x, [2, 0]) if group.rank == 0 else ())).shape == (2 - 2 * group.rank, 0)

    run_ranks(ranks, 2)


def test_a_started_call_on_plain_arrays_is_the_engines() -> None:
    def ranks(group: Group) -> None:
        x = np.arange(4.0)
        works = [
            group.all_gather_v(x[group.rank :], async_op=True),
            group.gather_v(x, 1, async_op=True),
            group.scatter_v(*((x, [3, 1]) if group.rank == 0 else ()), async_op=True),
            group.all_to_all_v(x, [1, 3], async_op=True),
            group.reduce_scatter_v(x, [1, 3], async_op=True),
        ]
        assert all(type(work) is Work for work in works)
        results = [work.wait() for work in works]
        assert results[0].tolist() == [0, 1, 2, 3, 1, 2, 3]
        assert works[0].wait() is results[0]
        assert results[1] is None if group.rank == 0 else results[1].tolist() == [0, 1, 2, 3] * 2
        assert results[2].tolist() == [[0, 1, 2], [3]][group.rank]
        assert results[3][0].tolist() == [[0, 0], [1, 2, 3] * 2][group.rank]
        assert results[4].tolist() == [[0], [2, 4, 6]][group.rank]

    run_ranks(ranks, 2)


def test_a_late_error_of_a_started_call_is_raised_by_its_work() -> None:
    def ranks(group: Group) -> None:
        out = np.zeros((7, 3))
        work = group.all_gather_v(np.ones((2, 3)), out=out, async_op=True)
        for _ in range(2):
            with pytest.raises(ValueError, match=r"^out: expected shape \(4, 3\), got \(7, 3\)$"):
                work.wait()
        assert (out == 0).all()
        assert group.all_reduce(1) == 2

    run_ranks(ranks, 2)


@pytest.mark.parametrize("started", [False, True])
def test_results_are_of_the_kind_of_what_is_passed(started: bool) -> None:
    torch = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        def result(call: object) -> object:
            return call.wait() if started else call

        x = torch.arange(4, dtype=torch.bfloat16)
        found = [
            result(group.all_gather_v(x[: 1 + group.rank], async_op=started)),
            result(group.all_to_all_v(x, [1, 3], async_op=started))[0],
            result(group.scatter_v(*((x, [3, 1]) if group.rank == 0 else (x, None)), async_op=started)),
            result(group.reduce_scatter_v(x, [3, 1], async_op=started)),
        ]
        assert all(type(one) is torch.Tensor and one.dtype is torch.bfloat16 for one in found)
        assert found[0].tolist() == [0, 0, 1]

    run_ranks(ranks, 2)


def test_the_grad_mode_is_that_of_the_call() -> None:
    """`out` may require grad within no_grad, whichever thread runs the operation."""
    torch = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        def out() -> Any:
            return torch.zeros(2, 1, requires_grad=True)

        x = torch.ones(2, 1)
        with torch.no_grad():
            works = [
                group.all_gather_v(x[:1], out=out(), async_op=True),
                group.all_to_all_v(x, [1, 1], out=out(), async_op=True),
                group.gather_v(x[:1], 0, out=out(), async_op=True),
                group.scatter_v(torch.ones(4, 1), [2, 2], out=out(), async_op=True),
                group.scatter(torch.ones(4, 1), out=out(), async_op=True),
            ]
            group.stream.record_event().synchronize()  # a thread of the stream runs them
        results = [work.wait() for work in works]
        results[1] = results[1][0]
        assert all(one is None or (one.requires_grad and one.eq(1).all()) for one in results)
        assert (results[2] is None) == (group.rank == 1)

    run_ranks(ranks, 2)
