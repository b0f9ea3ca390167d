"""split and subgroup: which ranks are in which group, in which order, and that groups do not interfere."""

from __future__ import annotations

import numpy as np

from rankwise.contract.errors import ClosedError
from rankwise.group.group import Group
from rankwise.group.work import wait_all
from rankwise.testing.checks import refuses


def split_by_parity(group: Group) -> None:
    part = group.split(group.rank % 2)
    assert part is not None
    with part:
        members = list(range(group.rank % 2, group.world_size, 2))
        assert (part.rank, part.world_size) == (members.index(group.rank), len(members))
        assert part.all_gather(np.int64(group.rank)).tolist() == members
        assert part.all_reduce(np.full(9, group.rank, np.int32)).tolist() == [sum(members)] * 9


def keys_order_ranks(group: Group) -> None:
    """Descending keys reverse the order; equal keys keep it."""
    with _some(group.split(0, -group.rank)) as turned:
        assert turned.rank == group.world_size - 1 - group.rank
        assert turned.all_gather(np.int64(group.rank)).tolist() == list(range(group.world_size))[::-1]
    with _some(group.split(3, 5)) as same:
        assert (same.rank, same.world_size) == (group.rank, group.world_size)
    with _some(group.split(0, group.rank % 2)) as sorted_by_parity:
        want = sorted(range(group.world_size), key=lambda rank: (rank % 2, rank))
        assert sorted_by_parity.all_gather(np.int64(group.rank)).tolist() == want


def negative_color_takes_no_part(group: Group) -> None:
    part = group.split(-1 if group.rank == 0 else 0)
    if group.rank == 0:
        assert part is None
    else:
        with _some(part) as others:
            assert others.all_reduce(1) == group.world_size - 1
    assert group.split(-7) is None, "all colors are negative, so no rank is in a group"


def large_colors(group: Group) -> None:
    with _some(group.split(2**31 - 1 - group.rank % 2, 2**30 - group.rank)) as part:
        assert part.world_size == len(range(group.rank % 2, group.world_size, 2))
        assert part.all_reduce(1) == part.world_size


def nested_splits(group: Group) -> None:
    """Halve until every rank is alone; all the intermediate groups work at the same time."""
    chain = [group]
    while chain[-1].world_size > 1:
        half = (chain[-1].world_size + 1) // 2
        chain.append(_some(chain[-1].split(chain[-1].rank // half)))
    for part in [*chain, *reversed(chain)]:
        assert part.all_reduce(1) == part.world_size
        assert part.ranks[part.rank] == group.ranks[group.rank]
    for part in reversed(chain[1:]):
        part.close()


def groups_do_not_mix(group: Group) -> None:
    """Two groups of the same ranks, used alternately and with messages of the same tags in both."""
    with _some(group.split(0)) as first, _some(group.split(0, -group.rank)) as second:
        for number in range(10):
            a, b = np.full(100, number, np.int64), np.full(70, -number, np.int64)
            works = [g.isend(x, (g.rank + 1) % g.world_size, 1) for g, x in ((first, a), (second, b))]
            assert (first.all_reduce(np.ones(5)) == first.world_size).all()
            assert (second.all_reduce(np.ones(5)) == second.world_size).all()
            got_b = second.recv(b.shape, (second.rank - 1) % second.world_size, 1, dtype=np.int64)
            got_a = first.recv(a.shape, (first.rank - 1) % first.world_size, 1, dtype=np.int64)
            assert (got_a == number).all()
            assert (got_b == -number).all()
            wait_all(works)


def parts_work_alone(group: Group) -> None:
    """One part calls a hundred collectives while the other calls none."""
    with _some(group.split(group.rank % 2)) as part:
        if group.rank % 2 == 0:
            for _ in range(100):
                assert part.all_reduce(1) == part.world_size
        group.barrier()


def subgroup_keeps_the_order_given(group: Group) -> None:
    ranks = list(range(group.world_size))[::-2]
    part = group.subgroup(ranks)
    if group.rank not in ranks:
        assert part is None
        return
    with _some(part) as part:
        assert part.rank == ranks.index(group.rank)
        assert part.all_gather(np.int64(group.rank)).tolist() == ranks


def different_subgroups_in_one_call(group: Group) -> None:
    pair = [rank for rank in (group.rank | 1, group.rank & ~1) if rank < group.world_size]
    with _some(group.subgroup(pair, name="pair")) as part:
        assert part.name == "pair"
        assert part.all_gather(np.int64(group.rank)).tolist() == pair


def many_groups_one_after_the_other(group: Group) -> None:
    """A closed group releases its resources."""
    for number in range(100):
        with _some(group.split(0, number)) as part:
            assert part.all_reduce(number) == number * group.world_size


def closed_groups_raise(group: Group) -> None:
    part = _some(group.split(0))
    part.barrier()
    part.close()
    part.close()
    refuses(ClosedError, part.all_reduce, 1)


def _some(part: Group | None) -> Group:
    assert part is not None, "split gave None to a rank that takes part"
    return part
