"""Why a gloo group failed: what the ranks announce in the group's store, and the one error that all of them raise."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from rankwise.backends.composed import calls
from rankwise.backends.composed.comparing import log
from rankwise.backends.gloo.agreement import Agreements
from rankwise.backends.gloo.bounded_store import BoundedStore
from rankwise.contract.errors import CollectiveTimeout, PeerLostError, RankwiseError, error_of
from rankwise.contract.failure import Failure
from rankwise.meeting.torch_store import TorchStore
from rankwise.system.process_identity import ProcessIdentity

REPORTS = 1.0  # seconds within which the surviving ranks announce where they are, after a failure
POLL = 0.005  # seconds between two requests to the store


class FailureRecord:
    """What the ranks of one group write into their store when it fails, and when they leave it.

    The store, or its host, may be unreachable: each request takes 2 REPORTS at most.
    """

    def __init__(self, store: TorchStore, rank: int, identities: Sequence[ProcessIdentity]) -> None:
        self._store = BoundedStore(store, 2 * REPORTS)
        self.agreements = Agreements(self._store, rank, identities)
        self._rank, self._identities = rank, identities
        self._world_size = len(identities)

    def explain(
        self, error: Exception, where: str, sequence: int, limit: float, *, settles_timeouts: bool = True
    ) -> RankwiseError:
        """The recorded failure, if there is one, else the meaning of gloo's `error` in this rank's call `where`.

        limit: the group's timeout in seconds. settles_timeouts: see ComparingCommunicator.
        """
        text = reason(error)
        timed_out = isinstance(error, TimeoutError) or "imed out" in str(error)
        mine = {"call": where, "sequence": sequence, "timed_out": timed_out}
        try:
            self._store.set(f"state/{self._rank}", json.dumps(mine).encode())
            states, lost = self._reports(REPORTS if settles_timeouts or not timed_out else 0.0)
            if (recorded := self._recorded()) is not None:
                return recorded
        except ConnectionError:  # the store's process is gone: rank 0's, unless torchrun serves the store
            how = "its process ended" if self._identities[0].gone else "it cannot be reached"
            return PeerLostError(
                f"rank 0, which serves the job's store, was lost in {where} #{sequence}: {how} ({text})",
                rank=0,
                how=how,
                operation=where.partition("(")[0],
                sequence=sequence,
            )
        return self._diagnose(states, lost, text, where, sequence, limit)

    def record(self, error: RankwiseError) -> None:
        """Record that the group has failed with this error, unless another one was recorded first."""
        try:
            self._store.compare_set("failure", "", error.failure.to_json())
        except ConnectionError:
            log.debug("the store is gone, so the other ranks learn of the failure only when their connections end")

    def leave(self) -> None:
        """This rank closes the group."""
        self._store.set(f"left/{self._rank}", b"closed")

    def wait_for_leaving(self, end: float) -> None:
        """Wait until every rank has left, or until `end` (of time.monotonic)."""
        everybody = [f"left/{rank}" for rank in range(self._world_size)]
        while not self._store.check(everybody) and time.monotonic() < end:
            time.sleep(POLL)

    def close(self) -> None:
        self._store.close()

    def _recorded(self) -> RankwiseError | None:
        """Why the group failed, as recorded by the first rank that knew."""
        found = self._store.find("failure")
        return None if found is None else error_of(Failure.from_json(found))

    def _reports(self, patience: float) -> tuple[dict[int, Any], dict[int, str]]:
        """What each rank reports that it is in, and how others were lost.

        It is complete unless a rank is known to be lost, the failure is recorded, or `patience` seconds have passed.
        """
        end = time.monotonic() + patience
        while True:
            states, lost = {}, {}
            for rank in range(self._world_size):
                if (state := self._store.find(f"state/{rank}")) is not None:
                    states[rank] = json.loads(state)
                elif self._store.check([f"left/{rank}"]):
                    lost[rank] = "it closed the group"
                elif self._identities[rank].gone:
                    lost[rank] = "its process ended"
            known = lost or len(states) == self._world_size or self._store.check(["failure"])
            if known or time.monotonic() > end:
                return states, lost
            time.sleep(POLL)

    def _diagnose(
        self, states: dict[int, Any], lost: dict[int, str], text: str, where: str, sequence: int, limit: float
    ) -> RankwiseError:
        operation = where.partition("(")[0]
        missing = tuple(rank for rank in range(self._world_size) if rank not in states)
        if any(state["timed_out"] for state in states.values()) and not lost:
            found = {rank: f"in {state['call']} #{state['sequence']}" for rank, state in states.items()}
            found |= dict.fromkeys(missing, "in no call of this group")
            ranks = f" from rank {', '.join(map(str, missing))}" if missing else ""
            waited = f"rank {self._rank} in {where} #{sequence}"
            lines = [f"no answer within the timeout of {limit:g} s{ranks}, awaited by {waited}"]
            lines += [f"  rank {rank}: {found[rank]}" for rank in sorted(found)]
            return CollectiveTimeout(
                "\n".join(lines), limit=limit, missing=missing, states=found, operation=operation, sequence=sequence
            )
        if missing:
            rank, how = next(iter(lost.items()), (missing[0], f"its connection failed ({text})"))
            message = f"rank {rank} was lost in {where} #{sequence}: {how}"
            return PeerLostError(message, rank=rank, how=how, operation=operation, sequence=sequence)
        if len({state["call"] for state in states.values()}) > 1:
            return calls.mismatch({rank: state["call"] for rank, state in states.items()}, sequence)
        return RankwiseError(f"gloo failed in {where} #{sequence}: {text}")


def reason(error: Exception) -> str:
    """The sentence of torch's message that says what happened."""
    return str(error).partition("\n")[0].partition(". ")[0].rpartition(".cc:")[2].partition("] ")[2] or str(error)
