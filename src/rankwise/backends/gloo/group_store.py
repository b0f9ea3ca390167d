"""What the ranks of one gloo group know of each other through its store: who has left it, and whose process ended; how
the survivors agree to go on; and why the group failed.

All of this is in *logs* of the store, to which every rank appends. So a rank reads what all others have announced
with one request, however many they are, and where several announce the same thing, all ranks take the first.

A rank notices a death when a connection ends: by gloo's RuntimeError in a call, or in `Channel.disconnected`.
`explain` asks the store who was lost, `record` announces the one reason, and all ranks raise it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_
from typing import Any, TypeVar

from rankwise._native import HostStream
from rankwise.backends.composed import calls
from rankwise.contract.errors import CollectiveTimeout, MismatchError, PeerLostError, RankwiseError, error_of
from rankwise.contract.failure import Failure
from rankwise.contract.failure_kinds import LOST
from rankwise.contract.logger import logger
from rankwise.contract.ranks import ranks_in_words
from rankwise.contract.shared_integers import SharedIntegers
from rankwise.contract.work import Work
from rankwise.meeting.torch_store import TorchStore
from rankwise.system.locality import ProcessIdentity

T = TypeVar("T")

POLL = 0.002  # seconds between two requests for what is not there yet
LEFT = "left the group"
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
        self._stream = HostStream.create()
        self._answers = True
        self.agreements = 0
        """How many there were."""

    def announce(self, log: str, key: int | str, value: Any) -> None:
        """Append a value to a log. key, value: as JSON has them."""
        line = f"{json.dumps([key, value])}\n"
        self._ask(lambda store: store.append(self.prefix + log, line))

    def announced(self, log: str) -> dict[Any, Any]:
        """The first value that was announced for each key."""

        def read(store: Any) -> bytes:
            store.append(self.prefix + log, "")  # else it might not be there, and the request would wait for it
            return bytes(store.get(self.prefix + log))

        announcements: dict[Any, Any] = {}
        for line in self._ask(read).splitlines():
            announcements.setdefault(*json.loads(line))
        return announcements

    def lost(self) -> dict[int, str]:
        """The other ranks that are known to be lost, and how.

        The ranks of a host see when a process there ends, and announce it to the others. If all ranks of a host end,
        nobody does.
        """
        announced = self.announced("lost")
        for rank, identity in enumerate(self._identities):
            if rank not in announced and rank not in self._lost and identity.gone:
                self.announce("lost", rank, "ended")
                announced[rank] = "ended"
        self._lost = announced | self._lost
        self._lost.pop(self.rank, None)
        return dict(sorted(self._lost.items()))

    def has_left(self, rank: int) -> bool:
        """Whether this rank, to which a connection has ended, is known to have closed the group; else it is cut off."""
        with suppress(ConnectionError):
            if self.announced("lost").get(rank) == LEFT:
                return True
        self.cut_off.append(rank)
        return False

    def leave_out(self, rank: int) -> None:
        """The others have agreed to go on without this rank."""
        self._lost.setdefault(rank, "was left out when the others agreed to go on")

    def leave(self) -> None:
        """This rank closes the group."""
        self.announce("lost", self.rank, LEFT)

    def wait_for_leaving(self, end: float) -> None:
        """Wait until every rank has left or is known to have ended, or until `end` (of time.monotonic)."""
        while len(self.announced("lost")) < self.world_size and time.monotonic() < end:
            time.sleep(POLL)

    def unreachable(self, operation: str = "", sequence: int = -1) -> PeerLostError:
        """The error of an operation of the group during which a request raised ConnectionError."""
        how = "ended" if self._identities[0].gone else "cannot be reached"
        text = f"rank 0, which serves the job's store, {how}: the others cannot meet; start the job again"
        return PeerLostError(text, rank=0, how=how, operation=operation, sequence=sequence)

    def close(self) -> None:
        self._stream.close(0)

    def ask(self, request: Callable[[Any], T], limit: float) -> T:
        """What `request` returns for torch's store. Raises ConnectionError after `limit` seconds."""
        if not self._answers:
            raise ConnectionError("the store does not answer")
        answer: Work[T] = self._stream.submit(partial(super()._ask, request))
        try:
            return answer.wait(limit)
        except CollectiveTimeout:
            self._answers = False
            self._stream.close(0)
            raise ConnectionError("the store does not answer") from None

    def _ask(self, request: Callable[[Any], T]) -> T:
        return self.ask(request, LIMIT)


class StoreIntegers(SharedIntegers):
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


# ---- how the survivors agree, through the store, on who is left and what they pass ----
#
# The agreements of a group are numbered. In each, every rank writes that it has arrived, and waits until each other
# rank has arrived or is known to be lost. Then it proposes the ranks that take part, and all take the first proposal.

DECISION = "decision"  # the key of the proposals, beside the ranks' own


@dataclass(frozen=True)
class Outcome:
    """What one agreement decided. number: the agreement's. present: the ranks that live. flag: the AND of theirs."""

    number: int
    present: tuple[int, ...]
    flag: int


def decide(store: GroupStore, operation: str, flag: int, timeout: float, exclude: Sequence[int] = ()) -> Outcome:
    """Take part in the next agreement. Raises PeerLostError if the others went on without this rank, or if the store
    cannot be reached. Hosts that lose all their ranks are waited for until the timeout.

    If others call another operation meanwhile, `agree` raises MismatchError, and the others wait for it again.
    exclude: ranks that are left out, whether or not they come; if the callers exclude different ranks, all of them
    raise MismatchError.
    """
    try:
        while True:
            mixed, outcome = _decide(store, operation, flag, timeout, sorted(set(exclude)))
            if not mixed:
                return outcome
            if operation == "agree":
                raise MismatchError("some ranks called agree while others called shrink")
    except ConnectionError as error:
        raise store.unreachable(operation) from error


def _decide(store: GroupStore, operation: str, flag: int, timeout: float, exclude: list[int]) -> tuple[bool, Outcome]:
    store.agreements += 1
    log, me, everybody = f"agreement {store.agreements}", store.rank, range(store.world_size)
    store.announce(log, me, (operation, flag, exclude))
    end = time.monotonic() + timeout
    while DECISION not in (arrived := store.announced(log)):
        lost = store.lost()
        counting = [rank for rank in everybody if rank not in lost and rank not in exclude]
        present = [rank for rank in counting if rank in arrived]
        if present == counting or time.monotonic() > end:
            store.announce(log, DECISION, present)
        else:
            time.sleep(POLL)
    present = arrived[DECISION]
    if me not in present:
        how = "was excluded from the group, by the others' call or because it did not come before their timeout"
        raise PeerLostError(f"rank {me} {how}", rank=me, how=how)
    operations, flags, exclusions = zip(*(arrived[rank] for rank in present), strict=True)
    mixed = len(set(operations)) > 1
    if not mixed and any(each != exclude for each in exclusions):
        which = ranks_in_words(exclude) if exclude else "none"
        text = f"the ranks do not all exclude the same ranks; rank {me} excludes {which}"
        raise MismatchError(f"{operation}: {text}")
    for rank in set(everybody).difference(present):
        store.leave_out(rank)
    return mixed, Outcome(store.agreements, tuple(present), reduce(and_, flags))


# ---- why the group failed: what the ranks announce in the store, and the one error that all of them raise ----

REASON = "reason"  # the key of the recorded failure, beside the ranks' reports
REPORTS = 1.0  # seconds within which the surviving ranks announce where they are, after a failure

SILENT = ("Connection timed out", "No route to host")
"""What a system says of a connection to a host that has not answered for too long."""


def explain(
    store: GroupStore, error: Exception, where: str, sequence: int, limit: float, *, waits_for_reports: bool = True
) -> RankwiseError:
    """The recorded failure, if there is one, else the meaning of gloo's `error` in this rank's call `where`.

    limit: the group's timeout in seconds. waits_for_reports: see ComparingCommunicator.
    """
    operation = where.partition("(")[0]
    silent = any(text in str(error) for text in SILENT)
    timed_out = silent or isinstance(error, TimeoutError) or "imed out" in str(error)
    own_state = {"call": where, "sequence": sequence, "timed_out": timed_out}
    try:
        store.announce("failure", store.rank, own_state)
        states, lost = _reports(store, REPORTS if waits_for_reports or not timed_out else 0.0)
        if REASON in states:
            return error_of(Failure.from_json(states[REASON]))
    except ConnectionError:  # the store's process is gone: rank 0's, unless torchrun serves the store
        return store.unreachable(operation, sequence)
    missing = tuple(rank for rank in range(store.world_size) if rank not in states)
    if silent:  # the other missing ranks may be busy
        missing = tuple(rank for rank in missing if rank in store.cut_off) or missing
    if any(state["timed_out"] for state in states.values()) and not lost:
        positions = {rank: f"{state['call']} #{state['sequence']}" for rank, state in states.items()}
        failure = calls.timed_out(positions, missing, limit)
    elif missing:
        cut_off = next((rank for rank in store.cut_off if rank in missing), missing[0])
        rank, how = next(iter(lost.items()), (cut_off, f"its connection failed ({reason(error)})"))
        failure = Failure(LOST, to_blame=(rank,), how=how)
    elif len({state["call"] for state in states.values()}) > 1:
        return calls.mismatch({rank: state["call"] for rank, state in states.items()}, sequence)
    else:
        return RankwiseError(f"gloo failed in {where} #{sequence}: {reason(error)}")
    return error_of(failure.found_in(operation, sequence))


def record(store: GroupStore, error: RankwiseError) -> None:
    """Record that the group has failed with this error, unless another one was recorded first."""
    try:
        if REASON not in store.announced("failure"):
            store.announce("failure", REASON, error.failure.to_json())
    except ConnectionError:
        logger().debug("the store is gone, so the other ranks learn of the failure only when their connections end")


def _reports(store: GroupStore, patience: float) -> tuple[dict[Any, Any], dict[int, str]]:
    """What each rank reports that it is in, and how those that report nothing were lost; and the REASON, if known.

    It is complete unless a rank is known to be lost, the failure is recorded, or `patience` seconds have passed.
    """
    end = time.monotonic() + patience
    while True:
        lost, states = store.lost(), store.announced("failure")
        lost = {rank: how for rank, how in lost.items() if rank not in states}
        if lost or REASON in states or len(states) == store.world_size or time.monotonic() > end:
            return states, lost
        time.sleep(POLL)


def reason(error: Exception) -> str:
    """The sentence of torch's message that says what happened."""
    return str(error).partition("\n")[0].partition(". ")[0].rpartition(".cc:")[2].partition("] ")[2] or str(error)
