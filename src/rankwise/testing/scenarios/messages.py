"""send and recv: matching by sender and tag, order, sizes, and messages during collectives."""

from __future__ import annotations

import numpy as np

from rankwise.group.group import Group
from rankwise.group.work import wait_all


def tags_out_of_order(group: Group) -> None:
    """Messages with other tags may be received out of order."""
    after, before = _neighbours(group)
    works = [group.isend(np.full(3, 100 * group.rank + tag), after, tag) for tag in (1, 2, 3)]
    for tag in (3, 1, 2):
        assert (group.recv((3,), before, tag, dtype=np.int64) == 100 * before + tag).all()
    wait_all(works)


def one_tag_keeps_its_order(group: Group) -> None:
    after, before = _neighbours(group)
    works = [group.isend(np.full(1 + i, i, np.int32), after, 7) for i in range(60)]
    for i in range(60):
        assert (group.recv((1 + i,), before, 7, dtype=np.int32) == i).all()
    wait_all(works)


def every_pair(group: Group) -> None:
    """Every rank sends to every rank, itself included; the receives are posted first, in another order."""
    n, me = group.world_size, group.rank
    incoming = {source: group.irecv((11,), source, me, dtype=np.float32) for source in reversed(range(n))}
    outgoing = [group.isend(np.full(11, 1000 * me + target, np.float32), target, target) for target in range(n)]
    for source, work in incoming.items():
        assert (work.wait() == 1000 * source + me).all()
    wait_all(outgoing)


def to_oneself(group: Group) -> None:
    me = group.rank
    for size in (0, 1, 13, 100_000):
        x = np.arange(size, dtype=np.int16)
        work = group.isend(x, me, 5)
        assert (group.recv((size,), me, 5, dtype=np.int16) == x).all()
        work.wait()
        into = np.empty(size, np.int16)
        receiving = group.irecv(into, me, 6)
        group.send(x, me, 6)
        assert receiving.wait() is into
        assert (into == x).all()


def many_messages(group: Group) -> None:
    """More messages than any queue of fixed length would hold are sent before the first is received."""
    after, before = _neighbours(group)
    works = [group.isend(np.full(5, i), after, i % 3) for i in range(2000)]
    for tag in range(3):
        for i in range(tag, 2000, 3):
            assert (group.recv((5,), before, tag, dtype=np.int64) == i).all()
    wait_all(works)


def large_both_ways(group: Group) -> None:
    """4 MB travel to both neighbours at once; every rank starts its sends before it receives."""
    after, before = _neighbours(group)
    base = np.arange(1 << 19, dtype=np.float64)
    to_right, to_left = base + group.rank, base - group.rank
    works = [group.isend(to_right, after, 0), group.isend(to_left, before, 1)]
    assert (group.recv(base.shape, after, 1) == base - after).all()
    assert (group.recv(np.empty_like(base), before, 0) == base + before).all()
    wait_all(works)


def zero_length(group: Group) -> None:
    """A message without elements is delivered in order like any other."""
    after, before = _neighbours(group)
    works = [group.isend(x, after, 2) for x in (np.empty(0), np.ones(4), np.empty((0, 3)))]
    assert group.recv((0,), before, 2).shape == (0,)
    assert (group.recv((4,), before, 2) == 1).all()
    assert group.recv((0, 3), before, 2).shape == (0, 3)
    wait_all(works)


def messages_during_collectives(group: Group) -> None:
    """Pending messages do not disturb small or large collectives, and are delivered after them."""
    after, before = _neighbours(group)
    for number in range(20):
        size = 40_000 if number % 5 == 0 else 17
        work = group.isend(np.full(size, number, np.int64), after, number)
        assert (group.all_reduce(np.ones(size)) == group.world_size).all()
        receiving = group.irecv((size,), before, number, dtype=np.int64)
        group.barrier()
        root = number % group.world_size
        assert group.broadcast(np.array([group.rank]), root)[0] == root
        assert (receiving.wait() == number).all()
        work.wait()


def blocking_chain(group: Group) -> None:
    """A token travels once around all ranks, by blocking send and recv."""
    after, before = _neighbours(group)
    if group.rank == 0:
        work = group.isend(np.array([1]), after)
        assert group.recv((1,), before, dtype=np.int64)[0] == group.world_size
        work.wait()
    else:
        token = group.recv((1,), before, dtype=np.int64)
        group.send(token + 1, after)


def done_reports_completion(group: Group) -> None:
    after, before = _neighbours(group)
    receiving = group.irecv((3,), before, 9)
    work = group.isend(np.full(3, 2.5), after, 9)
    assert (receiving.wait() == 2.5).all()
    assert receiving.done()
    assert (receiving.result() == 2.5).all()
    assert work.wait() is None
    assert work.done()


def _neighbours(group: Group) -> tuple[int, int]:
    return (group.rank + 1) % group.world_size, (group.rank - 1) % group.world_size
