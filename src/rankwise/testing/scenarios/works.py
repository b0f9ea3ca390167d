"""Works, messages from any rank or of unknown size, and exchanges in both directions at once."""

from __future__ import annotations

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


def messages_from_any_rank(group: Group) -> None:
    n, me = group.world_size, group.rank
    if not group.comm.any_source:
        refuses(UnsupportedError, group.irecv, (1,), ANY)
        refuses(UnsupportedError, group.probe)
        return
    sending = group.isend(np.full(me, me), 0, 10 + me)
    if me == 0:
        seen = set()
        for _ in range(n):
            message = group.probe(tag=ANY, timeout=30.0)
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
        objects = [group.recv_any(tag=4) for _ in range(n)]
        assert sorted(each.data["from"] for each in objects) == list(range(n))
        assert all((each.data["x"] == large).all() and each.data["from"] == each.source for each in objects)
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
