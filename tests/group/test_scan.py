"""scan and exscan against reductions of the ranks before, for every type and operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rankwise.contract.types import DType, ReduceOp
from rankwise.group import scan as prefix
from rankwise.group.group import Group
from rankwise.testing import run_ranks
from rankwise.testing.cases import Case, numpy_dtypes
from rankwise.testing.oracle import contents, reduced

OPS = [op for op in ReduceOp if op is not ReduceOp.MEAN]


@pytest.mark.parametrize("op", OPS)
def test_every_type(op: ReduceOp) -> None:
    def ranks(group: Group) -> None:
        n, me = group.world_size, group.rank
        for dtype in numpy_dtypes():
            case = Case("scan", dtype, (3, 5), op, seed=int(dtype))
            if op.refused_for(dtype) is not None:
                with pytest.raises(TypeError, match=r"^op="):
                    group.scan(contents(case, me, n), op)
                continue
            inputs = [contents(case, rank, n) for rank in range(n)]
            np.testing.assert_array_equal(group.scan(inputs[me], op), reduced(inputs[: me + 1], dtype, op))
            before = group.exscan(inputs[me], op)
            if me:
                np.testing.assert_array_equal(before, reduced(inputs[:me], dtype, op))
                continue
            assert before.dtype == inputs[0].dtype
            with np.errstate(all="ignore"):
                again = reduced([before, inputs[0]], dtype, op)
            np.testing.assert_array_equal(again, inputs[0])

    run_ranks(ranks, 4)


def test_what_rank_0_receives() -> None:
    def ranks(group: Group) -> None:
        def first(dtype: Any, op: str) -> Any:
            return group.exscan(np.ones((), dtype), op)[()]

        if group.rank == 0:
            assert str(first("f4", "sum")) == "0.0"
            assert first("i2", "prod") == first("c8", "prod") == 1
            assert (first("f2", "min"), first("f8", "max")) == (np.inf, -np.inf)
            assert (first("i1", "min"), first("i8", "max"), first("u1", "max")) == (127, -(2**63), 0)
            assert (first("i4", "band"), first("u2", "band"), first("u2", "bor")) == (-1, 65535, 0)
            assert (first("?", "min"), first("?", "max")) == (True, False)
            assert group.exscan(np.ones(2), np.add) is None
        else:
            pairs = "f4 sum, i2 prod, c8 prod, f2 min, "
            pairs += "f8 max, i1 min, i8 max, u1 max, i4 band, u2 band, u2 bor, ? min, ? max"
            for dtype, op in (pair.split() for pair in pairs.split(", ")):
                assert first(dtype, op) == 1
            assert group.exscan(np.ones(2), np.add).tolist() == [group.rank] * 2

    run_ranks(ranks, 2)


def test_signed_zeros_infinities_and_nans_are_preserved() -> None:
    def ranks(group: Group) -> None:
        x = np.array([-0.0, np.inf, np.nan, -np.inf])
        got = group.scan(x)
        assert got.tobytes() == x.tobytes() or np.isnan(got[2])
        assert np.signbit(got[0])
        assert (got[1], got[3]) == (np.inf, -np.inf)
        assert np.isnan(group.scan(x, "min")[2])
        assert np.isnan(group.scan(x, "max")[2])

    run_ranks(ranks, 3)


def test_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "PIECE", 3 * 8 * 10)

    def ranks(group: Group) -> None:
        for size in (0, 1, 9, 10, 11, 35):
            x = np.arange(size) + group.rank
            want = sum(np.arange(size) + rank for rank in range(group.rank + 1))
            np.testing.assert_array_equal(group.scan(x), want)

    run_ranks(ranks, 3)


def test_kinds_out_and_functions() -> None:
    torch = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        me = group.rank
        t = group.scan(torch.ones(3, dtype=torch.bfloat16), "sum")
        assert isinstance(t, torch.Tensor)
        assert t.tolist() == [me + 1] * 3
        out = np.zeros((4, 2))[:, 1]
        view = np.arange(8.0)[::2]
        assert group.scan(view, out=out) is out
        assert out.tolist() == [(me + 1) * value for value in view]
        assert group.exscan(2, async_op=True).wait() == 2 * me
        # Order counts: strings of digits, as numbers.
        digits = group.scan(np.array([me + 1]), lambda a, b: 10 * a + b)
        assert digits.tolist() == [[1], [12], [123]][me]
        before = group.exscan(np.array([me + 1]), lambda a, b: 10 * a + b)
        assert before is None if me == 0 else before.tolist() == [[1], [12]][me - 1]
        with pytest.raises(ValueError, match=r"^op='mean': expected another op; divide the sum"):
            group.scan(np.ones(2), "mean")
        with pytest.raises(ValueError, match=r"^out: expected shape \(2,\), got \(3,\)"):
            group.exscan(np.ones(2), out=np.ones(3))
        assert group.all_reduce(1) == 3

    run_ranks(ranks, 3)


@pytest.mark.parametrize("function", [np.add, lambda a, b: np.repeat(a + b, 2, -1)[..., ::2]])
def test_functions_of_numbers_and_functions_returning_views(function: Callable[[Any, Any], Any]) -> None:
    """The function's result is copied while it is alive, by its elements and not by its memory layout."""

    def ranks(group: Group) -> None:
        me = group.rank
        if function is np.add:
            assert group.scan(me + 1.5, function) == sum(rank + 1.5 for rank in range(me + 1))
        x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        assert group.scan(x, function).tolist() == ((me + 1) * x).tolist()
        assert group.all_reduce(x.copy(), function).tolist() == (3 * x).tolist()

    run_ranks(ranks, 3)


def test_every_pair_has_a_neutral_element() -> None:
    for dtype in DType:
        for op in OPS:
            if op.refused_for(dtype) is None:
                assert prefix._neutral(dtype, op, 3).nbytes == 3 * dtype.itemsize


@pytest.mark.parametrize("backend", ["threads", "gloo"])
def test_products_of_complex_infinities_and_signed_zeros(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The factor 1 would change them: (inf+1j) * 1 has a NaN."""
    if backend == "threads":  # else the ranks are other processes
        monkeypatch.setattr(prefix, "PIECE", 3 * 16 * 4)
    parts = (0.0, -0.0, 2.0, -np.inf)
    numbers = [complex(real, imaginary) for real in parts for imaginary in parts]

    def ranks(group: Group) -> None:
        for kind in (np.complex64, np.complex128):
            inputs = [np.roll(np.array(numbers, kind), 5 * rank) for rank in range(group.world_size)]
            with np.errstate(invalid="ignore"):
                want = np.multiply.accumulate(inputs)
            me = group.rank
            same_bits(group.scan(inputs[me], "product"), want[me])
            same_bits(group.exscan(inputs[me], "product"), want[me - 1] if me else np.ones_like(want[0]))
            assert group.scan(np.zeros(0, kind), "product").size == 0

    def same_bits(got: Any, want: Any) -> None:
        for found, expected in ((got.real, want.real), (got.imag, want.imag)):
            np.testing.assert_array_equal(found, expected)
            known = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(expected)[known])

    run_ranks(ranks, 3, backend=backend)
