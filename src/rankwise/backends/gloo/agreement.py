"""How the survivors of one gloo group agree, through the group's store, on who is left and what they pass.

The agreements of a group are numbered. In each, every rank writes that it has arrived, and waits until each other
rank has arrived or is known to be lost. Then it proposes an outcome; the store keeps the first proposal, and all
ranks take that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rankwise.backends.gloo.bounded_store import BoundedStore
from rankwise.contract.errors import MismatchError, PeerLostError
from rankwise.contract.ranks import ranks_in_words
from rankwise.system.process_identity import ProcessIdentity

T = TypeVar("T")

POLL = 0.002  # seconds between two requests to the store


@dataclass(frozen=True)
class Outcome:
    """What one agreement decided. number: the agreement's. present: the ranks that live. flag: the AND of theirs."""

    number: int
    present: tuple[int, ...]
    flag: int


class Agreements:
    """One rank's part in the agreements of its group.

    A rank whose process has ended is known to be lost to the ranks of its host, which announce it to the others. Hosts
    that lose all their ranks are waited for until the timeout.
    """

    def __init__(self, store: BoundedStore, rank: int, identities: Sequence[ProcessIdentity]) -> None:
        self._store, self._rank, self._identities = store, rank, identities
        self._number = 0
        self._lost: dict[int, str] = {}

    def lost(self) -> dict[int, str]:
        """The ranks that are known to be lost, and how. Raises PeerLostError if the store cannot be reached."""
        self._reached(self._find_lost)
        return dict(sorted(self._lost.items()))

    def decide(self, operation: str, flag: int, timeout: float, exclude: Sequence[int] = ()) -> Outcome:
        """Take part in the next agreement. Raises PeerLostError if the others went on without this rank.

        If others call another operation meanwhile, `agree` raises MismatchError, and the others wait for it again.
        exclude: ranks that are left out, whether or not they come; if the callers exclude different ranks, all of them
        raise MismatchError.
        """
        while True:
            mixed, outcome = self._reached(lambda: self._decide(operation, flag, timeout, sorted(set(exclude))))
            if not mixed:
                return outcome
            if operation == "agree":
                raise MismatchError("some ranks called agree while others called shrink")

    def _decide(self, operation: str, flag: int, timeout: float, exclude: list[int]) -> tuple[bool, Outcome]:
        self._number += 1
        number, everybody = self._number, range(len(self._identities))
        self._store.set(f"arrived {number} {self._rank}", json.dumps([operation, flag, exclude]).encode())
        end = time.monotonic() + timeout
        arrived: dict[int, tuple[str, int, list[int]]] = {}
        while (decision := self._store.find(f"decision {number}")) is None:
            self._find_lost()
            for rank in everybody:
                if rank not in arrived and (value := self._store.find(f"arrived {number} {rank}")) is not None:
                    arrived[rank] = json.loads(value)
            counting = [rank for rank in everybody if rank not in self._lost and rank not in exclude]
            present = [rank for rank in counting if rank in arrived]
            if present == counting or time.monotonic() > end:
                both = -1
                for rank in present:
                    both &= arrived[rank][1]
                mixed = len({arrived[rank][0] for rank in present}) > 1
                unequal = any(arrived[rank][2] != exclude for rank in present)
                proposal = json.dumps([present, both, mixed, unequal])
                decision = self._store.compare_set(f"decision {number}", "", proposal)
                break
            time.sleep(POLL)
        present, both, mixed, unequal = json.loads(decision)
        if self._rank not in present:
            how = "was excluded from the group, by the others' call or because it did not come before their timeout"
            raise PeerLostError(f"rank {self._rank} {how}", rank=self._rank, how=how)
        if unequal and not mixed:
            which = ranks_in_words(exclude) if exclude else "none"
            text = f"the ranks do not all exclude the same ranks; rank {self._rank} excludes {which}"
            raise MismatchError(f"{operation}: {text}")
        for rank in everybody:
            if rank not in present:
                self._lost.setdefault(rank, "was left out when the others agreed to go on")
        return mixed, Outcome(number, tuple(present), both)

    def _find_lost(self) -> None:
        """Find out which ranks are lost."""
        for rank, identity in enumerate(self._identities):
            if rank == self._rank or rank in self._lost:
                continue
            if self._store.check([f"left/{rank}"]):
                self._lost[rank] = "left the group"
            elif identity.gone:
                self._store.set(f"gone {rank}", b"")
                self._lost[rank] = "ended"
            elif self._store.check([f"gone {rank}"]):
                self._lost[rank] = "ended"

    def _reached(self, request: Callable[[], T]) -> T:
        try:
            return request()
        except ConnectionError as error:
            how = "ended" if self._identities[0].gone else "cannot be reached"
            text = f"rank 0, which serves the job's store, {how}: the others cannot meet; start the job again"
            raise PeerLostError(text, rank=0, how=how) from error
