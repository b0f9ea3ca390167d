"""scatter: the parts travel with src's header or in a second call, to ranks with every kind of array."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
import pytest

from rankwise import Group, MismatchError
from rankwise.testing import run_ranks

# Parts on both sides of each limit: inline, in a slot or an envelope, and in a call of their own; uneven ones; and
# arrays with more axes than the header has room for.
SHAPES = [
    (0,),
    (4,),
    (8,),
    (12,),
    (20,),
    (24,),
    (4, 0, 3),
    (8, 3),
    (4, 700),
    (12_284,),
    (24_000,),
    (1 << 17,),
    (1 << 18,),
    (4, 7, 3000),
    (6,),
    (5, 2),
]
SHAPES += [(4, *[1] * 9), (4, *[1] * 10), (8, *[1] * 12)]


@pytest.mark.parametrize(("backend", "n"), [("shm", 1), ("shm", 2), ("threads", 4), ("gloo", 3)])
def test_ranks_receive_their_parts_in_different_ways(backend: str, n: int) -> None:
    run_ranks(_ways, n, backend=backend, timeout=60)


def _ways(group: Group) -> None:
    n, me = group.world_size, group.rank
    for turn, shape in enumerate(SHAPES):
        for dtype in (np.int16, np.float64):
            src = turn % n
            everything = np.arange(prod(shape)).astype(dtype).reshape(shape)
            part = np.array_split(everything, n)[me]
            outs: list[Any] = [np.full(part.shape, -1, dtype), None, np.full((*part.shape, 2), -1, dtype)[..., 0]]
            for kind in range(4):
                out = [*outs, np.zeros((7, 7), np.uint8)][(kind + me) % 4]
                x = everything.copy() if me == src else None
                if out is not None and out.dtype == np.uint8:  # off src it is found wrong when the others count on us
                    with pytest.raises(ValueError, match=r"^out: expected"):
                        group.scatter(x, src, out=out)
                    if me == src:  # before anything was sent
                        group.scatter(x, src)
                    assert (out == 0).all()
                    continue
                got = group.scatter(x, src, out=out)
                assert out is None or got is out
                assert got.dtype == dtype
                assert got.shape == part.shape
                assert (got == part).all(), (shape, dtype, kind)
    assert group.all_reduce(1) == n


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_scatter_does_not_begin_with_a_broadcast(backend: str) -> None:
    """Both send a short header from one rank, and must still not match each other."""
    run_ranks(_mixed, 2, backend=backend, timeout=30)


def _mixed(group: Group) -> None:
    words = np.full(12, 7)
    if group.rank == 0:
        with suppress(MismatchError):  # only on gloo does src wait for the other rank
            group.scatter(np.ones(4), out=np.zeros(2))
    with pytest.raises(MismatchError) as caught:
        group.broadcast(words, 0) if group.rank == 1 else group.barrier()
    assert caught.value.calls[0].startswith("scatter(root=0)")
    assert caught.value.calls[1].startswith("broadcast(count=12, dtype=int64, root=0)")
    assert (words == 7).all()


def test_many_scatters_from_changing_ranks() -> None:
    """No rank overwrites data that another still reads."""
    run_ranks(_row, 3, backend="threads", timeout=60)


def _row(group: Group) -> None:
    part = np.zeros(400)
    for k in range(300):
        x = np.arange(1200.0) + k if group.rank == k % 3 else None
        assert group.scatter(x, k % 3, out=part)[0] == 400 * group.rank + k
        assert group.scatter(np.full(3, k, np.int16) if group.rank == 0 else None)[0] == k
