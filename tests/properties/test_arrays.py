"""Properties of the array level, for any shape, view, split and partition: rank threads against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rankwise import Group
from rankwise.testing import run_ranks

settings.register_profile("ranks", deadline=None, max_examples=40)
settings.load_profile("ranks")

Array = np.ndarray[Any, Any]

sizes = st.integers(1, 5)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7)
rows_first = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=11)
dtypes = st.sampled_from(["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1"])


def numbers(rank: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Small integers, so that sums are exact in every type; other ones on every rank."""
    count = int(np.prod(shape))
    return (np.arange(count) * (rank + 1) % 5 + rank).reshape(shape).astype(dtype)


@st.composite
def views(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Any, ...], bool]:
    """The shape of an array, an index with any steps to make a view of it, and whether to transpose that."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9))
    index = draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    return shape, index if isinstance(index, tuple) else (index,), draw(st.booleans())


def view_of(base: Array, index: tuple[Any, ...], transpose: bool) -> Array:
    view = base[index]
    return view.T if transpose else view


@given(n=sizes, shape=shapes, dtype=dtypes, op=st.sampled_from(["sum", "min", "max"]))
def test_all_reduce_and_reduce(n: int, shape: tuple[int, ...], dtype: str, op: str) -> None:
    function = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op]
    want = function.reduce(np.stack([numbers(rank, shape, dtype) for rank in range(n)]), axis=0, dtype=dtype)

    def body(group: Group) -> None:
        x = numbers(group.rank, shape, dtype)
        assert group.all_reduce(x, op) is x
        np.testing.assert_array_equal(x, want, strict=True)
        y = numbers(group.rank, shape, dtype)
        last = group.reduce(y, n - 1, op)
        assert (last is y) == (group.rank == n - 1)
        np.testing.assert_array_equal(y, want if last is y else numbers(group.rank, shape, dtype), strict=True)

    run_ranks(body, n)


@given(n=sizes, shape=shapes, dtype=dtypes, data=st.data())
def test_gather_and_broadcast(n: int, shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, n - 1))
    want = np.stack([numbers(rank, shape, dtype) for rank in range(n)])

    def body(group: Group) -> None:
        x = numbers(group.rank, shape, dtype)
        np.testing.assert_array_equal(group.all_gather(x), want, strict=True)
        gathered = group.gather(x, root)
        if group.rank == root:
            np.testing.assert_array_equal(gathered, want, strict=True)
        else:
            assert gathered is None
        np.testing.assert_array_equal(group.broadcast(x, root), want[root], strict=True)

    run_ranks(body, n)


@given(n=sizes, shape=rows_first, dtype=dtypes, data=st.data())
def test_arrays_are_split_as_array_split_does(n: int, shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    """scatter and reduce_scatter split axis 0 unevenly if necessary; all_gather_v is the inverse."""
    root = data.draw(st.integers(0, n - 1))
    whole = numbers(root, shape, dtype)
    total = np.stack([numbers(rank, shape, dtype) for rank in range(n)]).sum(axis=0, dtype=dtype)

    def body(group: Group) -> None:
        part = group.scatter(whole if group.rank == root else None, root)
        np.testing.assert_array_equal(part, np.array_split(whole, n)[group.rank], strict=True)
        np.testing.assert_array_equal(group.all_gather_v(part), whole, strict=True)
        mine = numbers(group.rank, shape, dtype)
        reduced = group.reduce_scatter(mine)
        np.testing.assert_array_equal(reduced, np.array_split(total, n)[group.rank], strict=True)
        np.testing.assert_array_equal(group.all_gather_v(reduced), group.all_reduce(mine), strict=True)

    run_ranks(body, n)


@given(n=sizes, shape=rows_first, dtype=dtypes)
def test_all_to_all_exchanges_the_parts(n: int, shape: tuple[int, ...], dtype: str) -> None:
    def body(group: Group) -> None:
        got = group.all_to_all(numbers(group.rank, shape, dtype))
        parts = [np.array_split(numbers(rank, shape, dtype), n)[group.rank] for rank in range(n)]
        np.testing.assert_array_equal(got, np.concatenate(parts), strict=True)

    run_ranks(body, n)


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    tail=hnp.array_shapes(min_dims=0, max_dims=2),
    dtype=dtypes,
)
def test_all_gather_v_takes_any_lengths(lengths: list[int], tail: tuple[int, ...], dtype: str) -> None:
    parts = [numbers(rank, (length, *tail), dtype) for rank, length in enumerate(lengths)]
    run_ranks(
        lambda group: np.testing.assert_array_equal(
            group.all_gather_v(parts[group.rank]), np.concatenate(parts), strict=True
        ),
        len(lengths),
    )


@given(n=sizes, view=views(), dtype=dtypes)
def test_views_are_changed_in_place_and_the_gaps_are_not(
    n: int, view: tuple[tuple[int, ...], tuple[Any, ...], bool], dtype: str
) -> None:
    shape, index, transpose = view

    def body(group: Group) -> None:
        base = numbers(group.rank, shape, dtype)
        want = base.copy()
        x = view_of(base, index, transpose)
        if not isinstance(x, np.ndarray) or x.base is None:
            return  # all indices were numbers: an element is no view
        view_of(want, index, transpose)[...] = sum(
            view_of(numbers(rank, shape, dtype), index, transpose) for rank in range(n)
        )
        assert group.all_reduce(x) is x
        np.testing.assert_array_equal(base, want)

    run_ranks(body, n)


@given(n=sizes, view=views(), dtype=dtypes)
def test_out_may_be_a_view(n: int, view: tuple[tuple[int, ...], tuple[Any, ...], bool], dtype: str) -> None:
    shape, index, transpose = view

    def body(group: Group) -> None:
        x = view_of(numbers(group.rank, shape, dtype), index, transpose)
        want = np.stack([view_of(numbers(rank, shape, dtype), index, transpose) for rank in range(n)])
        room = np.full((*want.shape, 2), 77).astype(dtype)
        out = room[..., 1]
        assert group.all_gather(x, out=out) is out
        np.testing.assert_array_equal(out, want)
        assert (room[..., 0] == 77).all()

    run_ranks(body, n)


@given(places=st.lists(st.tuples(st.integers(-1, 2), st.integers(-3, 3)), min_size=1, max_size=6))
def test_split_makes_any_partition(places: list[tuple[int, int]]) -> None:
    """places: every rank's (color, key)."""

    def body(group: Group) -> None:
        color, key = places[group.rank]
        part = group.split(color, key)
        if color < 0:
            assert part is None
            return
        members = sorted((key, rank) for rank, (its, key) in enumerate(places) if its == color)
        assert part is not None
        with part:
            assert part.all_gather(np.int64(group.rank)).tolist() == [rank for _, rank in members]
            assert part.rank == members.index((key, group.rank))
            assert part.all_reduce(1) == len(members)

    run_ranks(body, len(places))


@given(n=sizes, data=st.data())
def test_messages_arrive_by_sender_tag_and_order(n: int, data: st.DataObject) -> None:
    """Any set of messages; each rank receives its messages in its own order."""
    ends = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.integers(0, 2), st.integers(0, 50))
    plan = data.draw(st.lists(ends, max_size=12))
    turns = data.draw(st.permutations([(sender, tag) for sender in range(n) for tag in range(3)]))

    def body(group: Group) -> None:
        works = [
            group.isend(np.full(size, number), to, tag)
            for number, (sender, to, tag, size) in enumerate(plan)
            if sender == group.rank
        ]
        for turn in turns:
            for number, (sender, to, tag, size) in enumerate(plan):
                if to == group.rank and (sender, tag) == turn:
                    got = group.recv((size,), sender, tag, dtype=np.int64)
                    np.testing.assert_array_equal(got, np.full(size, number))
        for work in works:
            work.wait()

    run_ranks(body, n)
