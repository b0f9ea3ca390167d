"""Operations on Python objects."""

from __future__ import annotations

import decimal
import pickle
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.group.group import Group
from rankwise.testing import run_ranks


def plain(rank: int) -> Any:
    """Other sizes and other numbers of large arrays on every rank."""
    return {
        "rank": rank,
        "text": "x" * rank,
        "large": [np.full(700 + i, rank + i / 2) for i in range(rank)],
        "odd": np.arange(4097 + rank, dtype=np.uint8),
        "after": np.arange(1000.0),
        ("tuple", 1): {1.5, None},
    }


def fancy(rank: int) -> Any:
    return [decimal.Decimal(rank), np.arange(5000.0) + rank, np.arange(9) + rank, {1: {2: Exception(rank)}}]


def not_implemented(rank: int) -> Any:
    """An object that Python code takes for a refusal."""
    return NotImplemented


def same(got: Any, want: Any) -> None:
    assert pickle.dumps(got) == pickle.dumps(want)


@pytest.mark.parametrize("make", [plain, fancy, not_implemented])
@pytest.mark.parametrize("backend", ["threads", "shm"])
@pytest.mark.parametrize("n", [1, 3])
def test_every_operation(n: int, backend: str, make: Any) -> None:
    def ranks(group: Group) -> None:
        me, pickles = group.rank, {"allow_pickle": make is not plain}
        mine = make(me)
        for root in range(n):
            got = group.broadcast_object(mine if me == root else None, root, **pickles)
            same(got, make(root))
            assert (got is mine) == (me == root or mine is NotImplemented)
            gathered = group.gather_object(mine, root, **pickles)
            if me == root:
                for rank, value in enumerate(gathered):
                    same(value, make(rank))
            else:
                assert gathered is None
            part = group.scatter_object([make(rank) for rank in range(n)] if me == root else None, root, **pickles)
            same(part, mine)
        sending = group.isend_object(mine, (me + 1) % n, **pickles)
        same(group.recv_object((me - 1) % n, **pickles), make((me - 1) % n))
        sending.wait()
        everybody = group.all_gather_object(mine, **pickles)
        for rank, value in enumerate(everybody):
            same(value, make(rank))
        works = [
            group.all_gather_object(mine, async_op=True, **pickles),
            group.broadcast_object(mine if me == 0 else None, async_op=True, **pickles),
            group.gather_object(mine, async_op=True, **pickles),
            group.scatter_object([mine] * n if me == 0 else None, async_op=True, **pickles),
        ]
        same(works[1].wait(), make(0))
        assert len(works[0].wait()) == n
        same(works[3].wait(), make(0))
        assert group.all_reduce(1) == n

    run_ranks(ranks, n, backend=backend)


def test_received_arrays_own_their_memory() -> None:
    def ranks(group: Group) -> None:
        arrays = [np.ones(3000, np.float32), np.ones(3), np.ones((3, 4), np.int8)]
        for got in (
            group.broadcast_object(arrays if group.rank == 0 else None),
            group.broadcast_object([Exception(), arrays] if group.rank == 0 else None, allow_pickle=True)[1],
            *group.all_gather_object(arrays),
            *(group.gather_object(arrays) or []),
            group.recv_object(1 - group.rank) if group.rank else group.send_object(arrays, 1) or [],
        ):
            for x in got:
                assert x.flags.writeable
                assert x.flags.aligned
                x += 1

    run_ranks(ranks, 2)


def test_values_that_are_not_plain_data_are_refused_before_anything_is_sent() -> None:
    def ranks(group: Group) -> None:
        thing = SimpleNamespace(a=1)
        text = r"^obj: types.SimpleNamespace is not plain data; pass allow_pickle=True if every rank"
        if group.rank == 1:
            for call in (
                lambda: group.broadcast_object(thing, 1),
                lambda: group.gather_object([thing]),
                lambda: group.all_gather_object({"a": thing}),
                lambda: group.scatter_object([1, thing], 1),
            ):
                with pytest.raises(TypeError, match=text):
                    call()
            with pytest.raises((pickle.PicklingError, AttributeError)):
                group.all_gather_object(lambda: 1, allow_pickle=True)
            with pytest.raises(TypeError, match=r"^group 'world' belongs to this rank"):
                group.all_gather_object(group, allow_pickle=True)
            for objs, given in ((None, "None"), ([1], "1 objects")):
                with pytest.raises(ValueError, match=f"^objs: expected 2 objects, one for each rank, got {given}$"):
                    group.scatter_object(objs, 1)
        assert group.all_reduce(1) == 2

    run_ranks(ranks, 2)


def test_a_pickle_is_not_loaded_unless_allowed() -> None:
    def ranks(group: Group) -> None:
        thing = SimpleNamespace(a=1)
        if group.rank == 0:
            group.broadcast_object(thing, allow_pickle=True)
        else:
            with pytest.raises(
                TypeError,
                match=r"^rank 0 sent an object .* names types.SimpleNamespace\); pass allow_pickle=True on this",
            ):
                group.broadcast_object()
        assert group.all_reduce(1) == 2

    run_ranks(ranks, 2)


def test_plain_data_is_received_without_leave() -> None:
    def ranks(group: Group) -> None:
        if group.rank == 0:
            group.broadcast_object([1, "a", decimal.Decimal(1)], allow_pickle=True)
        else:
            assert group.broadcast_object() == [1, "a", 1]

    run_ranks(ranks, 2)


def test_a_job_that_trusts_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def ranks(group: Group) -> None:
        assert rw.init(allow_pickle=group.rank == 0) is group
        with group.split(0) as part, group.dup() as other:
            other.allow_pickle = True
            assert (group.allow_pickle, part.allow_pickle) == (group.rank == 0,) * 2
            got = other.all_gather_object(SimpleNamespace(rank=group.rank))
            assert [each.rank for each in got] == [0, 1]
            other.send_object(SimpleNamespace(a=1), group.rank)
            assert other.recv_object(group.rank).a == 1
            if group.rank == 0:
                part.broadcast_object(SimpleNamespace(b=1))
                with pytest.raises(TypeError, match=r"^obj: types.SimpleNamespace is not plain data"):
                    part.broadcast_object(SimpleNamespace(b=1), allow_pickle=False)
            else:
                with pytest.raises(TypeError, match=r"^rank 0 sent an object .* names types.SimpleNamespace"):
                    part.broadcast_object()

    run_ranks(ranks, 2)

    def trusting(group: Group) -> None:
        assert group.allow_pickle
        assert group.broadcast_object(SimpleNamespace(b=1)).b == 1

    monkeypatch.setenv("RANKWISE_ALLOW_PICKLE", "1")
    run_ranks(trusting, 2)


def test_large_objects_need_no_more_memory_than_they_must() -> None:
    """In parts of one object's size: encoded objects, what is sent and what is received, and the objects received."""

    def peaks(group: Group) -> list[float]:
        size = 4 << 20
        given = [bytes(size)] * 2
        found = []
        for call in (
            lambda: group.scatter_object(given, allow_pickle=True),
            lambda: group.gather_object(given[0], allow_pickle=True),
            lambda: group.all_gather_object(given[0], allow_pickle=True),
        ):
            tracemalloc.start()
            call()
            found.append(round(tracemalloc.get_traced_memory()[1] / size, 1))
            tracemalloc.stop()
        return found

    first, second = run_ranks(peaks, 2, backend="shm")
    assert (np.array([first, second]) <= [[5, 5, 5], [2, 2, 5]]).all(), (first, second)
