"""What the array level makes of a communicator's operations: functions as op, locations, objects, batches, meshes."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np

from rankwise.contract.errors import UnsupportedError
from rankwise.group.group import Group
from rankwise.group.mesh import Mesh
from rankwise.testing.checks import refuses


def functions_reduce_in_order(group: Group) -> None:
    """An associative but not commutative function: it appends the digits of the ranks."""

    def append(a: Any, b: Any) -> Any:
        return a * 10 + b

    n, me = group.world_size, group.rank
    digits = [int("".join(str(1 + rank % 9) for rank in range(count))) for count in range(1, n + 1)]
    x = np.full(3, 1 + me % 9, np.float64)
    if n > 15:
        return  # more digits than a float64 holds
    assert group.scan(x, append).tolist() == [digits[me]] * 3
    before = group.exscan(x, append)
    assert before is None if me == 0 else before.tolist() == [digits[me - 1]] * 3
    assert group.all_reduce(x, append) is x
    assert x.tolist() == [digits[-1]] * 3


def extremes_and_their_ranks(group: Group) -> None:
    n, me = group.world_size, group.rank
    x = np.array([me, -me, 7.0])
    values, ranks = group.all_reduce(x, "maxloc")
    assert values is x
    assert (x.tolist(), ranks.tolist()) == ([n - 1, 0, 7], [n - 1, 0, 0])
    found = group.reduce(np.array([me % 2]), n - 1, "minloc")
    assert (found is None) == (me != n - 1)
    assert found is None or (found[0].tolist(), found[1].tolist()) == ([0], [0])


def objects_are_sent(group: Group) -> None:
    n, me = group.world_size, group.rank
    large = np.arange(2000.0)

    def thing(rank: int) -> dict[str, Any]:
        return {"rank": rank, "large": [large * rank] * (rank % 3), "text": ("é", b"\0", None)}

    def check(got: Any, rank: int) -> None:
        assert (got["rank"], got["text"], len(got["large"])) == (rank, ("é", b"\0", None), rank % 3)
        assert all((x == large * rank).all() for x in got["large"])

    root = n - 1
    check(group.broadcast_object(thing(me) if me == root else None, root), root)
    check(group.scatter_object([thing(rank) for rank in range(n)] if me == root else None, root), me)
    for rank, got in enumerate(group.all_gather_object(thing(me))):
        check(got, rank)
    gathered = group.gather_object(thing(me), root)
    assert (gathered is None) == (me != root)
    for rank, got in enumerate(gathered or []):
        check(got, rank)


def pickles_if_allowed(group: Group) -> None:
    words = ("types.SimpleNamespace", "allow_pickle=True")
    refuses(TypeError, group.all_gather_object, SimpleNamespace(), words=words)
    got = group.all_gather_object(SimpleNamespace(rank=group.rank), allow_pickle=True)
    assert [each.rank for each in got] == list(range(group.world_size))


def batches_of_messages(group: Group) -> None:
    n, me = group.world_size, group.rank
    sends = [(np.full(20_000, n * me + to), to) for to in range(n)]
    recvs = [((20_000,), source, 0, np.int64) for source in range(n)]
    for source, got in enumerate(group.batch(sends, recvs)):
        assert (got == n * source + me).all()


def meshes(group: Group) -> None:
    n, me = group.world_size, group.rank
    rows = 2 if n % 2 == 0 else 1
    with Mesh(group, row=rows, column=-1) as mesh:
        assert mesh.coordinates == {"row": me // (n // rows), "column": me % (n // rows)}
        assert mesh.row.all_reduce(1) == rows
        assert mesh.column.all_gather(np.int64(me)).tolist() == [mesh.rank_at(column=c) for c in range(n // rows)]
        assert mesh.along("row", "column").all_gather(np.int64(me)).tolist() == list(range(n))


def numbers_come_back_as_numbers(group: Group) -> None:
    n = group.world_size
    assert group.all_reduce(2) == 2 * n
    assert isinstance(group.all_reduce(2), int)
    assert group.all_reduce(0.5, "mean") == 0.5
    assert isinstance(group.all_reduce(0.5), float)
    with suppress(UnsupportedError):
        assert group.all_reduce(1j) == n * 1j
    assert group.broadcast(group.rank + 10, n - 1) == n + 9
    assert isinstance(group.all_reduce(np.float32(3)), np.float32)
    assert group.all_gather(group.rank).tolist() == list(range(n))
