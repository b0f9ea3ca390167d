"""How the survivors of one gloo group agree, through the group's store, on who is left and what they pass.

The agreements of a group are numbered. In each, every rank writes that it has arrived, and waits until each other
rank has arrived or is known to be lost. Then it proposes an outcome; the store keeps the first proposal, and all
ranks take that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.backends.gloo.group_store import POLL, GroupStore
from rankwise.contract.errors import MismatchError, PeerLostError
from rankwise.contract.ranks import ranks_in_words


@dataclass(frozen=True)
class Outcome:
    """What one agreement decided. number: the agreement's. present: the ranks that live. flag: the AND of theirs."""

    number: int
    present: tuple[int, ...]
    flag: int


class Agreements:
    """One rank's part in the agreements of its group. Hosts that lose all their ranks are waited for until the timeout.

    Raises PeerLostError if the store cannot be reached.
    """

    def __init__(self, store: GroupStore) -> None:
        self._store = store
        self._number = 0

    def lost(self) -> dict[int, str]:
        """The ranks that are known to be lost, and how."""
        try:
            return self._store.lost()
        except ConnectionError as error:
            raise self._store.unreachable() from error

    def decide(self, operation: str, flag: int, timeout: float, exclude: Sequence[int] = ()) -> Outcome:
        """Take part in the next agreement. Raises PeerLostError if the others went on without this rank.

        If others call another operation meanwhile, `agree` raises MismatchError, and the others wait for it again.
        exclude: ranks that are left out, whether or not they come; if the callers exclude different ranks, all of them
        raise MismatchError.
        """
        try:
            while True:
                mixed, outcome = self._decide(operation, flag, timeout, sorted(set(exclude)))
                if not mixed:
                    return outcome
                if operation == "agree":
                    raise MismatchError("some ranks called agree while others called shrink")
        except ConnectionError as error:
            raise self._store.unreachable(operation) from error

    def _decide(self, operation: str, flag: int, timeout: float, exclude: list[int]) -> tuple[bool, Outcome]:
        self._number += 1
        number, me, everybody = self._number, self._store.rank, range(self._store.world_size)
        self._store.set(f"arrived {number} {me}", json.dumps([operation, flag, exclude]).encode())
        end = time.monotonic() + timeout
        arrived: dict[int, tuple[str, int, list[int]]] = {}
        while (decision := self._store.find(f"decision {number}")) is None:
            lost = self._store.lost()
            for rank in everybody:
                if rank not in arrived and (value := self._store.find(f"arrived {number} {rank}")) is not None:
                    arrived[rank] = json.loads(value)
            counting = [rank for rank in everybody if rank not in lost and rank not in exclude]
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
        if me not in present:
            how = "was excluded from the group, by the others' call or because it did not come before their timeout"
            raise PeerLostError(f"rank {me} {how}", rank=me, how=how)
        if unequal and not mixed:
            which = ranks_in_words(exclude) if exclude else "none"
            text = f"the ranks do not all exclude the same ranks; rank {me} excludes {which}"
            raise MismatchError(f"{operation}: {text}")
        for rank in set(everybody).difference(present):
            self._store.leave_out(rank)
        return mixed, Outcome(number, tuple(present), both)
