"""With RANKWISE_TIMEOUT_STACKS=1: a thread that tells other ranks this process's Python stacks when they ask.

It sleeps until then. It answers whatever the other threads do, unless one of them holds the GIL.
"""

from __future__ import annotations

import threading

from rankwise import _native
from rankwise.contract.settings import Settings
from rankwise.contract.stacks import all_threads


def answer(segment: _native.Segment, rank: int) -> bool:
    """Begin to answer for this rank, where the environment asks for it; `segment.stop_stacks(rank)` ends it."""
    if not Settings.read().timeout_stacks:
        return False
    segment.offer_stacks(rank)
    threading.Thread(target=_answer, args=(segment, rank), name="rankwise stacks", daemon=True).start()
    return True


def _answer(segment: _native.Segment, rank: int) -> None:
    while segment.await_question(rank):
        segment.tell_stacks(rank, all_threads())
