"""Properties of the operations with per-rank counts, for any lengths and shapes: rank threads against NumPy."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise import Group
from rankwise.testing import run_ranks

few = settings(deadline=None, max_examples=25)
tails = st.lists(st.integers(0, 3), max_size=2).map(tuple)
dtypes = st.sampled_from(["f8", "f2", "i4", "u1", "?", "c8"])


@st.composite
def tables(draw: st.DrawFn) -> list[list[int]]:
    """counts[i][j]: how many rows go from rank i to rank j."""
    n = draw(st.integers(1, 4))
    row = st.lists(st.integers(0, 5), min_size=n, max_size=n)
    return draw(st.lists(row, min_size=n, max_size=n))


def rows(rank: int, count: int, tail: tuple[int, ...], dtype: str) -> np.ndarray:
    size = count * int(np.prod(tail))
    return ((np.arange(size) * 7 + rank * 31) % 97).reshape(count, *tail).astype(dtype)


@few
@given(table=tables(), tail=tails, dtype=dtypes, out=st.booleans())
def test_all_to_all_v(table: list[list[int]], tail: tuple[int, ...], dtype: str, out: bool) -> None:
    n = len(table)
    inputs = [rows(rank, sum(table[rank]), tail, dtype) for rank in range(n)]
    parts = [np.split(x, np.cumsum(counts)[:-1]) for x, counts in zip(inputs, table, strict=True)]

    def body(group: Group) -> None:
        me = group.rank
        want = np.concatenate([parts[rank][me] for rank in range(n)])
        given_out = np.empty_like(want) if out else None
        got, received = group.all_to_all_v(inputs[me], table[me], out=given_out)
        np.testing.assert_array_equal(got, want, strict=True)
        assert received == [table[rank][me] for rank in range(n)]
        assert not out or got is given_out

    run_ranks(body, n)


@few
@given(table=tables(), tail=tails, dtype=dtypes, data=st.data())
def test_gather_v_and_scatter_v(table: list[list[int]], tail: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    n = len(table)
    root = data.draw(st.integers(0, n - 1))
    lengths = table[0]
    inputs = [rows(rank, lengths[rank], tail, dtype) for rank in range(n)]
    whole = np.concatenate(inputs)

    def body(group: Group) -> None:
        me = group.rank
        gathered = group.gather_v(inputs[me], root)
        if me == root:
            assert gathered is not None
            np.testing.assert_array_equal(gathered, whole, strict=True)
            part = group.scatter_v(gathered, lengths, root)
        else:
            assert gathered is None
            part = group.scatter_v(src=root)
        np.testing.assert_array_equal(part, inputs[me], strict=True)

    run_ranks(body, n)


@few
@given(table=tables(), tail=tails, dtype=st.sampled_from(["f8", "i4", "u1"]), op=st.sampled_from(["sum", "max"]))
def test_reduce_scatter_v(table: list[list[int]], tail: tuple[int, ...], dtype: str, op: str) -> None:
    n, counts = len(table), table[0]
    inputs = [rows(rank, sum(counts), tail, dtype) for rank in range(n)]
    reduce = np.add.reduce if op == "sum" else np.maximum.reduce
    parts = np.split(reduce(np.stack(inputs), axis=0, dtype=dtype), np.cumsum(counts)[:-1])

    def body(group: Group) -> None:
        got = group.reduce_scatter_v(inputs[group.rank], counts, op)
        np.testing.assert_array_equal(got, parts[group.rank], strict=True)

    run_ranks(body, n)
