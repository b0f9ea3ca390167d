"""A part of the group: this host's members, a lane, or all ranks on the engine. Its errors become the group's here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from rankwise.backends.closing import OpenCommunicator
from rankwise.contract.communicator import Collectives, complete
from rankwise.contract.errors import RankwiseError
from rankwise.contract.operations import Call
from rankwise.contract.shared_integers import SharedIntegers
from rankwise.contract.work import OuterWork, Work

T = TypeVar("T")


class InnerGroup(Collectives):
    """The collectives of a part, which are complete when they return, and its other operations.

    comm: the part's communicator. ranks: its ranks, numbered in the group.
    """

    def __init__(
        self,
        comm: OpenCommunicator,
        ranks: Sequence[int],
        explain: Callable[[RankwiseError, InnerGroup, str], RankwiseError],
    ) -> None:
        """explain: makes the group's error from the part's error in an operation, which is "" for a collective."""
        self.comm, self.ranks = comm, ranks
        self._collectives, self._explain = complete(comm), explain

    def run(self, call: Call) -> None:
        self.do("", self._collectives.run, call)

    def do(self, operation: str, function: Callable[..., T], *args: object) -> T:
        """function(*args), which is a step of an operation of the group. All calls of the part pass through here."""
        try:
            return function(*args)
        except RankwiseError as error:
            raise self._explain(error, self, operation) from None

    def message(self, operation: str, work: Work[None]) -> Work[None]:
        """A message of this part, with its source numbered in the group. operation: send or recv."""
        return OuterWork(partial(self.do, operation, work.wait), work, ranks=self.ranks)


class NoInnerGroup(Collectives):
    """Takes the place of a part to which this rank does not belong."""

    def run(self, call: Call) -> None:
        """Nothing to do: the part's own ranks make the call."""


class InnerIntegers(SharedIntegers):
    """Integers that a part shares."""

    def __init__(self, part: InnerGroup, words: SharedIntegers) -> None:
        self._part, self._words = part, words

    def add(self, index: int, n: int) -> int:
        return self._part.do("add", self._words.add, index, n)

    def swap_if(self, index: int, before: int, after: int) -> bool:
        return self._part.do("swap_if", self._words.swap_if, index, before, after)
