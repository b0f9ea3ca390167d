"""Features that build on the basic operations: works, composed operations, objects and meshes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from rankwise.contract.errors import MismatchError, UnsupportedError
from rankwise.contract.message import ANY
from rankwise.contract.work import Work
from rankwise.group.group import Group
from rankwise.group.mesh import Mesh
from rankwise.group.work import wait_all, wait_any
from rankwise.testing.checks import refuses


def many_pending_works(group: Group) -> None:
    """They take effect in the order started and before a later blocking call, composed operations too."""
    n, me = group.world_size, group.rank
    x = np.full(1000, 1, np.int64)
    works: list[Work[Any]] = []
    for _ in range(5):
        works.append(group.all_reduce(x, async_op=True))
        works.append(group.all_gather_v(np.full(me, me), async_op=True))
        works.append(group.broadcast(x, n - 1, async_op=True))
    assert group.all_reduce(1) == n
    assert (x == n**5).all()
    results = wait_all(works)
    assert results[0] is x
    assert results[1].tolist() == [rank for rank in range(n) for _ in range(rank)]
    assert wait_any(works) == 0
    assert all(work.done() for work in works)


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


def messages_from_any_rank(group: Group) -> None:
    n, me = group.world_size, group.rank
    if not group.comm.any_source:
        refuses(UnsupportedError, group.recv, (1,), ANY)
        refuses(UnsupportedError, group.probe)
        return
    sending = group.isend(np.full(me, me), 0, 10 + me)
    if me == 0:
        seen = set()
        for _ in range(n):
            message = group.probe(timeout=30.0)
            assert message is not None
            assert message.tag == 10 + message.source
            work = group.irecv((message.count,), ANY, message.tag, dtype=message.dtype)
            assert work.wait().tolist() == [message.source] * message.source
            assert (work.source, work.tag) == (message.source, message.tag)
            seen.add(message.source)
        assert seen == set(range(n))
    sending.wait()


def messages_of_unknown_size(group: Group) -> None:
    n, me = group.world_size, group.rank
    if not group.comm.any_source:
        refuses(UnsupportedError, group.recv_any)
        refuses(UnsupportedError, group.recv_object, 0)
        return
    large = np.arange(30_000.0)
    sending = [group.isend(np.full(1 + 9_000 * me, me), 0, 3), group.isend_object({"from": me, "x": large}, 0, 4)]
    if me == 0:
        objects = [group.recv_object(ANY, 4) for _ in range(n)]
        assert sorted(each["from"] for each in objects) == list(range(n))
        assert all((each["x"] == large).all() for each in objects)
        arrays = [group.recv_any(tag=3) for _ in range(n)]
        assert sorted(each.source for each in arrays if each.source is not None) == list(range(n))
        for each in arrays:
            assert each.data.tolist() == [each.source] * (1 + 9_000 * (each.source or 0))
    wait_all(sending)
    group.barrier()
    sending = [group.isend(np.full(20_000, 2 * me + i, np.uint8), 0, 5) for i in range(2)]
    if me == 0:
        for src in range(n):  # a message that was refused comes before the next one
            refuses(MismatchError, group.recv_object, src, 5)
            assert [group.recv((20_000,), src, 5, dtype=np.uint8)[-1] for _ in range(2)] == [2 * src, 2 * src + 1]
    wait_all(sending)


def exchanges_with_neighbours(group: Group) -> None:
    n, me = group.world_size, group.rank
    before, after = (me - 1) % n, (me + 1) % n
    x = np.full(20_000, me)
    assert group.sendrecv(x, after, before, out=x) is x
    assert (x == before).all()
    edge = group.sendrecv(x, after if me < n - 1 else None, before if me else None)
    assert (edge == ((before - 1) % n if me else 0)).all()
    with Mesh(group, line=-1, periodic=True) as mesh:
        cells = np.array([-1, me, me, -1])
        assert mesh.exchange_halo(cells, "line").tolist() == [before, me, me, after]


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
