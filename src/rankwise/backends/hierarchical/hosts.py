"""Which ranks share a host, and how data is divided and arranged for transfer between hosts.

Terms: the *members* of a host are its ranks, in order. A *lane* is one member of every host: lane k
holds the k-th of each, for as many k as the smallest host has members. A *blob* is the data of one
host's members, or the data they will receive, one after the other; each lane carries a *slice* of every
blob.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rankwise.contract.logger import logger
from rankwise.system import locality


@dataclass(frozen=True)
class Layout:
    """The ranks of a group on their hosts.

    host: each rank's host, numbered from 0 in the order of their first ranks. members: the ranks of
    each host, ascending. lanes: the number of lanes.
    """

    host: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    lanes: int

    @classmethod
    def of(cls, marks: Sequence[object]) -> Layout:
        """Made from one mark per rank, equal for the ranks of one host."""
        numbers = {mark: number for number, mark in enumerate(dict.fromkeys(marks))}
        host = tuple(numbers[mark] for mark in marks)
        members: list[list[int]] = [[] for _ in numbers]
        for rank, number in enumerate(host):
            members[number].append(rank)
        return cls(host, tuple(map(tuple, members)), min(len(ranks) for ranks in members))

    @property
    def hosts(self) -> int:
        return len(self.members)

    def local(self, rank: int) -> int:
        """The rank's number among the members of its host."""
        return self.members[self.host[rank]].index(rank)

    def blobs(self, counts: Sequence[int]) -> list[int]:
        """The length of each host's blob, where rank i has counts[i] elements."""
        return [sum(counts[rank] for rank in ranks) for ranks in self.members]

    def arrangement(self, counts: Sequence[int], slices: Sequence[Sequence[int]]) -> Iterator[tuple[int, int, int]]:
        """How blocks by rank are arranged for the lanes: (from, to, length) of each contiguous range, in elements.

        counts: the blocks' lengths. slices: [host][lane]. Each lane carries its slices of all blobs, by
        host.
        """
        starts = list(accumulate(counts, initial=0))
        lane_starts = list(accumulate(map(sum, zip(*slices, strict=True)), initial=0))
        for host, ranks in enumerate(self.members):
            lane, left, to = -1, 0, 0
            for rank in ranks:
                at, rest = starts[rank], counts[rank]
                while rest:
                    while not left:
                        lane += 1
                        left = slices[host][lane]
                        to = lane_starts[lane] + sum(slices[before][lane] for before in range(host))
                    length = min(rest, left)
                    yield at, to, length
                    at, to, rest, left = at + length, to + length, rest - length, left - length


def moves(sizes: Sequence[int], order: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(by rank, in this order, length): each rank's block, its place in rank order and in `order`."""
    starts = list(accumulate(sizes, initial=0))
    to = 0
    for rank in order:
        yield starts[rank], to, sizes[rank]
        to += sizes[rank]


# ---- ranks of one host that cannot share memory: they count as being on several hosts, and the log says why ----
#
# Each rank sends all ranks of the job its mark: its locality and the launcher's segment, which are equal for the ranks
# that share memory.


def locality_mark(inode: int | None) -> bytes:
    """inode: of the launcher's segment, if there is one."""
    return json.dumps([locality.locality(), inode], sort_keys=True).encode()


def log_neighbour(marks: Sequence[bytes], rank: int) -> None:
    """Log a warning if an earlier rank is on this rank's host but cannot share memory with it."""
    for other in range(rank):
        part = locality.difference(json.loads(marks[other])[0], json.loads(marks[rank])[0])
        if part not in (None, "host"):
            logger().warning(
                "rank %d runs on the host of rank %d but cannot share memory with it, because the %s differs; "
                "to share memory, %s",
                rank, other, part, locality.REMEDIES[part],
            )  # fmt: skip
            return
