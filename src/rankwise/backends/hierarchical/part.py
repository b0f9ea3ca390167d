"""The collectives of a part of the group: of this host's members, of a lane, or of all ranks on the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rankwise.contract.communicator import Collectives, Communicator, complete
from rankwise.contract.errors import RankwiseError
from rankwise.contract.operations import Call

Explain = Callable[[RankwiseError, Sequence[int]], RankwiseError]


class Part(Collectives):
    """A part whose collectives are complete when they return, and whose errors are the group's."""

    def __init__(self, comm: Communicator, ranks: Sequence[int], explain: Explain) -> None:
        """ranks: the part's ranks, numbered in the group. explain: makes the group's error from the part's."""
        self._collectives, self._ranks, self._explain = complete(comm), ranks, explain

    def run(self, call: Call) -> None:
        try:
            self._collectives.run(call)
        except RankwiseError as error:
            found = self._explain(error, self._ranks)
            raise found from found.__cause__


class NoPart(Collectives):
    """Takes the place of a part to which this rank does not belong."""

    def run(self, call: Call) -> None:
        """Nothing to do: the part's own ranks make the call."""
