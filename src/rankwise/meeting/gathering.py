"""How ranks meet through a store: each leaves a value, and rank 0 makes one answer of all of them, for all of them.

If a rank does not come, or rank 0 finds that the ranks cannot meet, the answer is the error that all of them raise. The
launchers of several nodes meet in the same way; their ranks are the numbers of the nodes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence

from rankwise.contract.errors import (
    BackendUnavailable,
    CollectiveTimeout,
    MismatchError,
    PeerLostError,
    RankwiseError,
    UnsupportedError,
    error_of,
)
from rankwise.contract.failure import Failure, text
from rankwise.contract.failure_kinds import TIMEOUT
from rankwise.meeting.served_store import StoreClient
from rankwise.meeting.store import Missing, Store
from rankwise.meeting.torch_store import TorchStore

ANSWER = "answer"
GRACE = 1.0  # seconds for which the others wait longer than rank 0, whose answer says who is missing
SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.1  # seconds between two attempts to reach rank 0
NOTE_AFTER = 2.0  # seconds after which a note says who is missing

Late = Callable[[Sequence[int], str], Exception]
"""The error if some ranks do not come in time, made of their numbers and the reason, which may be unknown: ""."""

_MET, _GROUP_FAILED, _FAILED = b"M", b"G", b"F"
_GROUP_ERRORS = (PeerLostError, MismatchError, CollectiveTimeout)
_OTHER_ERRORS = (UnsupportedError, BackendUnavailable, RankwiseError, MemoryError, ValueError, TimeoutError, OSError)


def lead(
    store: Store,
    own_values: Mapping[int, bytes],
    size: int,
    end: float,
    late: Late,
    decide: Callable[[list[bytes]], bytes],
    note: Callable[[list[int]], object] | None = None,
) -> bytes:
    """In the process of rank 0: wait for the values of all ranks, and give all the answer that `decide` makes of them.

    A rank's value is stored under its number. own_values: this process's, by rank. end: when `late` is raised, a
    time of time.monotonic. If decide, or the store, raises an error that the others can raise too, they do. note:
    called with the missing ranks after a moment.
    """
    try:
        keys = [str(rank) for rank in range(size) if rank not in own_values]
        if note is not None:
            try:
                store.wait(keys, min(end, time.monotonic() + NOTE_AFTER))
            except Missing as missing:
                note(list(map(int, missing.keys)))
        try:
            values = iter(store.wait(keys, end))
        except Missing as missing:
            raise late(list(map(int, missing.keys)), "") from None
        answer = decide([own_values[rank] if rank in own_values else next(values) for rank in range(size)])
    except (*_GROUP_ERRORS, *_OTHER_ERRORS) as error:
        store.set(ANSWER, failed(error))
        raise
    store.set(ANSWER, met(answer))
    return answer


def follow(store: StoreClient | TorchStore, own_values: Mapping[int, bytes], end: float) -> bytes:
    """In another process: leave the values of its ranks and wait for the answer, which `opened` opens."""
    return store.exchange({str(rank): value for rank, value in own_values.items()}, ANSWER, end + GRACE)


def join(
    connect: Callable[[float], StoreClient],
    rank: int,
    value: bytes,
    end: float,
    late: Late,
    note: Callable[[list[int]], object] | None = None,
) -> tuple[StoreClient, bytes]:
    """On a rank that rank 0 serves: `follow`, as soon as a connection can be made. Returns it, and the answer.

    connect: makes a connection; it is given the time at which it must be made.
    """
    reason, pause, noted = "", SHORTEST_PAUSE, time.monotonic() + NOTE_AFTER
    while time.monotonic() < end:
        try:
            client = connect(end + GRACE)
            return client, follow(client, {rank: value}, end)
        except OSError as error:
            reason = error.strerror or str(error)
        if note is not None and time.monotonic() > noted:
            note([0])
            note = None
        time.sleep(pause)
        pause = min(1.25 * pause, LONGEST_PAUSE)
    raise late([0], reason)


def met(answer: bytes) -> bytes:
    """An answer as it is sent."""
    return _MET + answer


def failed(error: Exception) -> bytes:
    """An error as it is sent instead of an answer."""
    if isinstance(error, _GROUP_ERRORS):
        return _GROUP_FAILED + error.failure.to_json().encode()
    number = next(number for number, kind in enumerate(_OTHER_ERRORS) if isinstance(error, kind))
    return _FAILED + json.dumps([number, error.__reduce__()[1]], default=str).encode()


def opened(sent: bytes) -> bytes:
    """The answer in what was sent. Raises the error if there is one instead."""
    kind, answer = sent[:1], sent[1:]
    if kind == _GROUP_FAILED:
        raise error_of(Failure.from_json(answer))
    if kind == _FAILED:
        number, arguments = json.loads(answer)
        raise _OTHER_ERRORS[number](*arguments)
    return answer


def other_version(rank: object, version: object, own: str) -> MismatchError:
    """The error of a rank that runs another release than rank 0. version: that rank's, if it is known."""
    release = f"rankwise {version}" if isinstance(version, str) and version else "another version of rankwise"
    why = f"init: rank {rank} runs {release}, and rank 0 runs rankwise {own}"
    return MismatchError(f"{why}: expected the same version on all ranks")


def ranks_late(timeout: float, hint: str = "") -> Late:
    """Makes CollectiveTimeout. hint: what to do, for the text."""

    def late(missing: Sequence[int], reason: str) -> CollectiveTimeout:
        why = text(Failure(TIMEOUT, operation="init", to_blame=tuple(missing), limit=timeout))
        message = f"{why}{f' ({reason})' if reason else ''}{f'; {hint}' if hint else ''}"
        return CollectiveTimeout(message, limit=timeout, missing=tuple(missing), operation="init")

    return late
