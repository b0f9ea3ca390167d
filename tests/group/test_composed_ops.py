"""Reductions by functions, and places of extremes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankwise.contract.errors import RankwiseError
from rankwise.group.group import Group
from rankwise.testing import run_ranks


def combine(a: Any, b: Any) -> Any:
    """Associative, but the order matters: the composition of y = a0 * x + a1."""
    result = b.copy()
    result[0] = a[0] * b[0]
    result[1] = a[1] * b[0] + b[1]
    return result


def lines(n: int) -> np.ndarray:
    return np.array([[2 + rank, 3 * rank + 1] for rank in range(n)])


def want(n: int) -> list[int]:
    value = lines(n)[0]
    for row in lines(n)[1:]:
        value = combine(value, row)
    return value.tolist()


def test_a_function_is_called_in_the_order_of_the_ranks() -> None:
    def ranks(group: Group) -> None:
        n, me = group.world_size, group.rank
        x = lines(n)[me]
        assert group.all_reduce(x, combine) is x
        assert x.tolist() == want(n)
        y = lines(n)[me]
        got = group.reduce(y, n - 1, combine)
        assert got is (y if me == n - 1 else None)
        assert y.tolist() == (want(n) if me == n - 1 else lines(n)[me].tolist())
        part = group.reduce_scatter(lines(n)[me], combine)
        assert part.tolist() == np.array_split(want(n), n)[me].tolist()
        mine = group.reduce_scatter_v(lines(n)[me], [0, 2, 0], combine)
        assert mine.tolist() == (want(n) if me == 1 else [])
        assert group.all_reduce(x, combine, async_op=True).wait() is x

    run_ranks(ranks, 3)


def test_functions_of_other_kinds() -> None:
    torch = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        n = group.world_size
        matrices = [np.array([[1.0, rank], [rank, 2.0]]) for rank in range(n)]
        view = np.zeros((2, 4))[:, ::2]
        view[...] = matrices[group.rank]
        group.all_reduce(view, np.matmul)
        np.testing.assert_array_equal(view, np.linalg.multi_dot(matrices))
        t = torch.full((3,), 2.0 + group.rank, dtype=torch.bfloat16)
        got = group.all_reduce(t, lambda a, b: a.mul_(b))
        assert got is t
        assert t.tolist() == [24.0] * 3
        assert group.all_reduce(group.rank, lambda a, b: a + 2 * b) == 6
        assert group.all_reduce(np.empty((0, 2)), np.maximum).shape == (0, 2)

    run_ranks(ranks, 3)


def test_a_function_that_raises_does_not_fail_the_group() -> None:
    def broken(a: Any, b: Any) -> Any:
        raise KeyError("no such thing")

    def ranks(group: Group) -> None:
        for call in (lambda: group.all_reduce(np.ones(2), broken), lambda: group.scan(np.ones(2), broken)):
            if group.rank == 0:
                with pytest.raises(KeyError):
                    call()
            else:
                with pytest.raises(RankwiseError, match=r"^rank 0: op raised KeyError: 'no such thing'$"):
                    call()
        expected = r"op=shape: expected it to return float64\(2,\) as it takes, got float64\(1,\)"

        def shape(a: Any, b: Any) -> Any:
            return a[:1]

        with pytest.raises((TypeError, RankwiseError), match=expected):
            group.all_reduce(np.ones(2), shape)
        if group.rank == 1:
            with pytest.raises(TypeError, match="got str"):
                group.reduce(np.ones(2), 1, lambda a, b: "x")
        else:
            assert group.reduce(np.ones(2), 1, lambda a, b: "x") is None
        assert group.all_reduce(1) == 2

    run_ranks(ranks, 2)


@pytest.mark.parametrize("dtype", ["f8", "f2", "i8", "u2", "?", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("op", ["minloc", "maxloc"])
def test_places_of_extremes(op: str, dtype: str) -> None:
    kind = pytest.importorskip("ml_dtypes").__dict__.get(dtype, dtype)
    n = 4
    table = np.random.default_rng(3).integers(0, 3, (n, 5, 7)).astype(kind)
    index = (np.argmin if op == "minloc" else np.argmax)(table.astype(float), axis=0)

    def ranks(group: Group) -> None:
        x = table[group.rank].copy()
        values, at = group.all_reduce(x, op)
        assert values is x
        np.testing.assert_array_equal(at, index, strict=True)
        np.testing.assert_array_equal(x.astype(float), np.take_along_axis(table, index[None], 0)[0].astype(float))
        y = table[group.rank].copy()
        got = group.reduce(y, 2, op, async_op=True).wait()
        if group.rank == 2:
            np.testing.assert_array_equal(got[1], index)
        else:
            assert got is None
            np.testing.assert_array_equal(y.astype(float), table[group.rank].astype(float))

    run_ranks(ranks, n)


def test_places_of_nan_numbers_and_tensors() -> None:
    torch = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        me = group.rank
        x = np.array([np.nan if me == 2 else me, me, -0.0 if me else 0.0])
        values, at = group.all_reduce(x, "maxloc")
        assert np.isnan(values[0])
        assert at[:2].tolist() == [2, 2]
        assert group.all_reduce(10 - me, "minloc") == (8, 2)
        for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint16, torch.bool):
            t = torch.tensor([me == 1, me > 5], dtype=dtype)
            values, at = group.all_reduce(t, "maxloc")
            assert values is t
            assert isinstance(at, torch.Tensor)
            assert at.tolist() == [1, 0]
        for call in (
            lambda: group.reduce_scatter(np.ones(3), "maxloc"),
            lambda: group.scan(np.ones(3), "minloc"),
        ):
            with pytest.raises(ValueError, match=r"^op='m..loc': it is for all_reduce and reduce$"):
                call()
        with pytest.raises(TypeError, match=r"^op='max' on complex128: complex numbers have no order$"):
            group.all_reduce(1j, "maxloc")

    run_ranks(ranks, 3)
