"""Why a gloo group failed: what the ranks announce in the group's store, and the one error that all of them raise."""

from __future__ import annotations

import json
import time
from typing import Any

from rankwise.backends.composed import calls
from rankwise.backends.composed.comparing import log
from rankwise.backends.gloo.group_store import POLL, GroupStore
from rankwise.contract.errors import RankwiseError, error_of
from rankwise.contract.failure import AtRank, Failure
from rankwise.contract.failure_kinds import LOST, TIMEOUT

REPORTS = 1.0  # seconds within which the surviving ranks announce where they are, after a failure

SILENT = ("Connection timed out", "No route to host")
"""What a system says of a connection to a host that has not answered for too long."""


class FailureRecord:
    """What the ranks of one group write into their store when it fails."""

    def __init__(self, store: GroupStore) -> None:
        self._store = store

    def explain(
        self, error: Exception, where: str, sequence: int, limit: float, *, settles_timeouts: bool = True
    ) -> RankwiseError:
        """The recorded failure, if there is one, else the meaning of gloo's `error` in this rank's call `where`.

        limit: the group's timeout in seconds. settles_timeouts: see ComparingCommunicator.
        """
        operation = where.partition("(")[0]
        silent = any(text in str(error) for text in SILENT)
        timed_out = silent or isinstance(error, TimeoutError) or "imed out" in str(error)
        mine = {"call": where, "sequence": sequence, "timed_out": timed_out}
        try:
            self._store.set(f"state/{self._store.rank}", json.dumps(mine).encode())
            states, lost = self._reports(REPORTS if settles_timeouts or not timed_out else 0.0)
            if (recorded := self._store.find("failure")) is not None:
                return error_of(Failure.from_json(recorded))
        except ConnectionError:  # the store's process is gone: rank 0's, unless torchrun serves the store
            return self._store.unreachable(operation, sequence)
        missing = tuple(rank for rank in range(self._store.world_size) if rank not in states)
        if silent:  # the other missing ranks may be busy
            missing = tuple(rank for rank in missing if rank in self._store.cut_off) or missing
        if any(state["timed_out"] for state in states.values()) and not lost:
            found = {rank: f"in {state['call']} #{state['sequence']}" for rank, state in states.items()}
            found |= dict.fromkeys(missing, "in no call of this group")
            ranks = {rank: AtRank(call) for rank, call in sorted(found.items())}
            failure = Failure(TIMEOUT, ranks=ranks, to_blame=missing, limit=limit)
        elif missing:
            cut_off = next((rank for rank in self._store.cut_off if rank in missing), missing[0])
            rank, how = next(iter(lost.items()), (cut_off, f"its connection failed ({reason(error)})"))
            failure = Failure(LOST, to_blame=(rank,), how=how)
        elif len({state["call"] for state in states.values()}) > 1:
            return calls.mismatch({rank: state["call"] for rank, state in states.items()}, sequence)
        else:
            return RankwiseError(f"gloo failed in {where} #{sequence}: {reason(error)}")
        return error_of(failure.found_in(operation, sequence))

    def record(self, error: RankwiseError) -> None:
        """Record that the group has failed with this error, unless another one was recorded first."""
        try:
            self._store.compare_set("failure", "", error.failure.to_json())
        except ConnectionError:
            log.debug("the store is gone, so the other ranks learn of the failure only when their connections end")

    def _reports(self, patience: float) -> tuple[dict[int, Any], dict[int, str]]:
        """What each rank reports that it is in, and how those that report nothing were lost.

        It is complete unless a rank is known to be lost, the failure is recorded, or `patience` seconds have passed.
        """
        end = time.monotonic() + patience
        while True:
            found = {rank: self._store.find(f"state/{rank}") for rank in range(self._store.world_size)}
            states = {rank: json.loads(state) for rank, state in found.items() if state is not None}
            lost = {rank: how for rank, how in self._store.lost().items() if rank not in states}
            known = lost or len(states) == self._store.world_size or self._store.check(["failure"])
            if known or time.monotonic() > end:
                return states, lost
            time.sleep(POLL)


def reason(error: Exception) -> str:
    """The sentence of torch's message that says what happened."""
    return str(error).partition("\n")[0].partition(". ")[0].rpartition(".cc:")[2].partition("] ")[2] or str(error)
