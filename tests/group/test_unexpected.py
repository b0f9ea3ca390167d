"""Messages that nobody has posted a receive for: their receiver keeps them, as long as it has memory."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import numpy as np

import rankwise as rw

MIB = 1 << 20


def flood(over: Path) -> str:
    """Rank 1 sends until that fails; rank 0, where only the engine's thread receives, may use 64 MiB more. What rank 1
    was told.
    """
    group = rw.init()
    told = ""
    if group.rank == 0:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        before = resource.getrlimit(resource.RLIMIT_AS)
        never = group.irecv(np.zeros(1), 1, tag=1)
        resource.setrlimit(resource.RLIMIT_AS, (used + 64 * MIB, before[1]))
        group.broadcast(np.zeros(1))
        while not over.exists():
            time.sleep(0.01)
        resource.setrlimit(resource.RLIMIT_AS, before)
        assert not never.done() or never.error is not None
    else:
        group.broadcast(np.zeros(1))
        try:
            for _ in range(64):
                group.send(np.zeros(4 * MIB // 8), 0, tag=2)
        except rw.PeerLostError as error:
            told = str(error)
        over.touch()
    return told


def test_a_rank_without_memory_for_messages_says_so(tmp_path: Path) -> None:
    told = rw.spawn(flood, 2, tmp_path / "over", timeout=60)[1]
    assert "had no memory for the messages that it had not received yet" in told
