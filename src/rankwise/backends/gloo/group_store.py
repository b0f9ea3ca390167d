"""What the ranks of one gloo group know of each other through its store: who has left it, and whose process ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from rankwise.backends.composed.work_queue import WorkQueue
from rankwise.contract.errors import PeerLostError, RankwiseError
from rankwise.contract.words import SharedWords
from rankwise.meeting.torch_store import TorchStore
from rankwise.system.process_identity import ProcessIdentity

T = TypeVar("T")

POLL = 0.002  # seconds between two requests for what is not there yet
LIMIT = 2.0  # seconds that a request may take with which ranks find out why their group failed, and how to go on


class GroupStore(TorchStore):
    """The part of the job's store that one group uses.

    torch's clients wait forever if the network to the store's host fails. Here a request that takes too long, and all
    later ones, raise ConnectionError.
    """

    def __init__(self, store: TorchStore, rank: int, identities: Sequence[ProcessIdentity], patience: float) -> None:
        """identities: of the ranks' processes, by rank. patience: seconds that a program's request may take."""
        super().__init__(store.connection, store.prefix)
        self.rank, self.world_size = rank, len(identities)
        self._identities, self.patience = identities, patience
        self.cut_off: list[int] = []
        self._lost: dict[int, str] = {}
        self._queue = WorkQueue("rankwise store")
        self._answers = True

    def lost(self) -> dict[int, str]:
        """The other ranks that are known to be lost, and how.

        The ranks of a host see when a process there ends, and announce it to the others. If all ranks of a host end,
        nobody does.
        """
        for rank, identity in enumerate(self._identities):
            if rank == self.rank or rank in self._lost:
                continue
            if self.check([f"left/{rank}"]):
                self._lost[rank] = "left the group"
            elif identity.gone:
                self.set(f"gone/{rank}", b"")
                self._lost[rank] = "ended"
            elif self.check([f"gone/{rank}"]):
                self._lost[rank] = "ended"
        return dict(sorted(self._lost.items()))

    def has_left(self, rank: int) -> bool:
        """Whether this rank, to which a connection has ended, is known to have closed the group; else it is cut off."""
        with suppress(ConnectionError):
            if self.check([f"left/{rank}"]):
                return True
        self.cut_off.append(rank)
        return False

    def leave_out(self, rank: int) -> None:
        """The others have agreed to go on without this rank."""
        self._lost.setdefault(rank, "was left out when the others agreed to go on")

    def leave(self) -> None:
        """This rank closes the group."""
        self.set(f"left/{self.rank}", b"")

    def wait_for_leaving(self, end: float) -> None:
        """Wait until every rank has left, or until `end` (of time.monotonic)."""
        everybody = [f"left/{rank}" for rank in range(self.world_size)]
        while not self.check(everybody) and time.monotonic() < end:
            time.sleep(POLL)

    def unreachable(self, operation: str = "", sequence: int = -1) -> PeerLostError:
        """The error of an operation of the group during which a request raised ConnectionError."""
        how = "ended" if self._identities[0].gone else "cannot be reached"
        text = f"rank 0, which serves the job's store, {how}: the others cannot meet; start the job again"
        return PeerLostError(text, rank=0, how=how, operation=operation, sequence=sequence)

    def close(self) -> None:
        self._queue.close()

    def ask(self, request: Callable[[Any], T], limit: float) -> T:
        """What `request` returns for torch's store. Raises ConnectionError after `limit` seconds."""
        if not self._answers:
            raise ConnectionError("the store does not answer")
        answer: list[T] = []
        ask = super()._ask
        task = self._queue.put(lambda: answer.append(ask(request)))
        if not task.until_over(limit):
            self._answers = False
            self._queue.close()
            raise ConnectionError("the store does not answer")
        task.wait()
        return answer[0]

    def _ask(self, request: Callable[[Any], T]) -> T:
        return self.ask(request, LIMIT)


class StoreWords(SharedWords):
    """Integers in the job's store, which its server changes for the ranks.

    The values that ranks give a word by swap_if must differ from each other.
    """

    def __init__(
        self, store: GroupStore, name: str, number: int, failed: Callable[[Exception, str], RankwiseError]
    ) -> None:
        """name: of these integers, in this store. failed: fails the group because of an error in this operation, and
        returns what to raise.
        """
        self._store, self._prefix, self._failed = store, f"{store.prefix}{name}/", failed
        for index in range(number):
            self.add(index, 0)  # so that it is there, whichever rank comes first

    def add(self, index: int, n: int) -> int:
        return int(self._ask(lambda store: store.add(f"{self._prefix}{index}", n))) - n

    def swap_if(self, index: int, before: int, after: int) -> bool:
        key = f"{self._prefix}{index}"
        return int(self._ask(lambda store: store.compare_set(key, str(before), str(after)))) == after

    def _ask(self, request: Callable[[Any], Any]) -> Any:
        try:
            return self._store.ask(request, self._store.patience)
        except ConnectionError as error:
            raise self._failed(error, "a counter or lock") from error
