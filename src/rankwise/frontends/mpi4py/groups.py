"""Groups: ordered sets of ranks, without communication."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankwise.frontends.mpi4py.errors import AbsentMethod, error
from rankwise.frontends.mpi4py.handles import Handle
from rankwise.frontends.mpi4py.status import PROC_NULL, UNDEFINED
from rankwise.frontends.mpi4py.world import WORLD

IDENT, CONGRUENT, SIMILAR, UNEQUAL = range(4)


class Group(Handle[list[int]], root=True):
    """An MPI group: the ranks of its members in the world."""

    _null = "ERR_GROUP"
    Create_from_session_pset = AbsentMethod()

    def _chosen(self, ranks: Sequence[int]) -> list[int]:
        all_ranks = self._live()
        for rank in ranks:
            if not 0 <= rank < len(all_ranks):
                raise error("ERR_RANK", f"rank {rank}: expected a rank of the group, 0 to {len(all_ranks) - 1}")
        return [all_ranks[rank] for rank in ranks]

    def Get_size(self) -> int:
        return len(self._live())

    def Get_rank(self) -> int:
        return _place(WORLD.rank, self._live())

    size = property(Get_size)
    rank = property(Get_rank)

    def Dup(self) -> Group:
        return Group._of([*self._live()])

    @classmethod
    def Union(cls, group1: Group, group2: Group) -> Group:
        first = group1._live()
        return _of([*first, *(rank for rank in group2._live() if rank not in first)])

    @classmethod
    def Intersection(cls, group1: Group, group2: Group) -> Group:
        return _of([rank for rank in group1._live() if rank in group2._live()])

    Intersect = Intersection

    @classmethod
    def Difference(cls, group1: Group, group2: Group) -> Group:
        return _of([rank for rank in group1._live() if rank not in group2._live()])

    def Incl(self, ranks: Sequence[int]) -> Group:
        return _of(self._chosen(ranks))

    def Excl(self, ranks: Sequence[int]) -> Group:
        without = self._chosen(ranks)
        return _of([rank for rank in self._live() if rank not in without])

    def Range_incl(self, ranks: Sequence[tuple[int, int, int]]) -> Group:
        return self.Incl(self._spread(ranks))

    def Range_excl(self, ranks: Sequence[tuple[int, int, int]]) -> Group:
        return self.Excl(self._spread(ranks))

    def _spread(self, ranges: Sequence[Any]) -> list[int]:
        """The ranks of (first, last, stride), last included; ERR_ARG if there are none, or one of them twice."""
        ranks: list[int] = []
        for first, last, step in ranges:
            if step == 0 or (last - first) * step < 0 or not all(0 <= end < self.size for end in (first, last)):
                raise error("ERR_ARG", f"range {first, last, step}: expected ranks of the group, and a stride between")
            ranks += range(first, last + (1 if step > 0 else -1), step)
        if len(set(ranks)) < len(ranks):
            raise error("ERR_ARG", f"ranges {[*ranges]}: a rank is in them twice")
        return ranks

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: Group | None = None) -> list[int]:
        """The numbers that these ranks, by default all, have in the other group, by default the world.

        UNDEFINED where they are not in it.
        """
        translated = []
        for rank in range(self.Get_size()) if ranks is None else ranks:
            number = PROC_NULL if rank == PROC_NULL else self._chosen([rank])[0]
            translated.append(number if number == PROC_NULL or group is None else _place(number, group._live()))
        return translated

    def Compare(self, group: Group) -> int:
        first, second = self._live(), group._live()
        if first == second:
            return IDENT
        return SIMILAR if sorted(first) == sorted(second) else UNEQUAL


def _of(ranks: list[int]) -> Group:
    return Group._of(ranks) if ranks else Group(GROUP_EMPTY)


def _place(rank: int, ranks: list[int]) -> int:
    """The number that a rank of the world has in a group."""
    return ranks.index(rank) if rank in ranks else UNDEFINED


GROUP_NULL = Group()._named("GROUP_NULL")
GROUP_EMPTY = Group._of([])._named("GROUP_EMPTY")
