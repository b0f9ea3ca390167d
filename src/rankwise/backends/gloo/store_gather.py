"""How processes that can reach a store, but not yet each other, gather a value from every rank."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Mapping

from rankwise.backends.composed.opening import packed, unpacked
from rankwise.contract.errors import CollectiveTimeout
from rankwise.contract.ranks import ranks_in_words
from rankwise.meeting.torch_store import LateStore

PATIENCE = 1.0  # seconds for which the others wait longer than rank 0's process, whose answer says who is missing

_ALL, _MISSING = b"A", b"M"


def gather(store: LateStore, mine: Mapping[int, bytes], world_size: int, timeout: float, end: float) -> list[bytes]:
    """Every rank's value, by rank. Each process passes the values of some ranks, and calls this once for this store.

    The process with rank 0's value combines all values into one, so each process makes a constant number of requests.
    end: the time (time.monotonic) at which `timeout` seconds have passed. Then CollectiveTimeout is raised, which names
    the ranks whose values are missing.
    """
    try:
        answer = _combined(store, mine, world_size, end) if 0 in mine else _awaited(store, mine, end)
    except RuntimeError as error:
        text = f"init: rank 0, or the store at which the ranks meet, did not answer within {timeout:g} s"
        reason = str(error).partition("\n")[0]
        raise CollectiveTimeout(f"{text}: {reason}", limit=timeout, missing=(0,), operation="init") from error
    if answer[:1] == _MISSING:
        missing = tuple(json.loads(answer[1:]))
        text = f"init: the {world_size} ranks did not all meet within {timeout:g} s"
        reason = f"{ranks_in_words(missing)} did not come"
        raise CollectiveTimeout(f"{text}: {reason}", limit=timeout, missing=missing, operation="init")
    return unpacked(zlib.decompress(answer[1:]))


def _combined(store: LateStore, mine: Mapping[int, bytes], world_size: int, end: float) -> bytes:
    """In rank 0's process: the answer for all processes, with all values, or after `end` with the missing ranks."""
    keys = [_key(rank) for rank in range(world_size) if rank not in mine]
    missing: list[int] = []
    try:
        store.wait(keys, end - time.monotonic())
    except RuntimeError:  # torch may time out a little early; if the store is gone, the next request raises too
        missing = [rank for rank in range(world_size) if rank not in mine and not store.check([_key(rank)])]
    if missing:
        answer = _MISSING + json.dumps(missing).encode()
    else:
        theirs = iter(store.get_several(keys))
        values = [mine[rank] if rank in mine else next(theirs) for rank in range(world_size)]
        answer = _ALL + zlib.compress(packed(values), 1)
    store.set("all", answer)
    return answer


def _awaited(store: LateStore, mine: Mapping[int, bytes], end: float) -> bytes:
    store.set_several({_key(rank): value for rank, value in mine.items()})
    store.wait(["all"], end + PATIENCE - time.monotonic())
    return store.get("all")


def _key(rank: int) -> str:
    return f"rank {rank}"
