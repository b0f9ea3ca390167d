"""Garbage at the socket where the ranks of a job meet is ignored, and the job continues."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
import uuid
from contextlib import suppress

from faults.trials import Trial, fault
from rankwise._native import Segment
from rankwise.backends.native import rendezvous
from rankwise.contract.job import Job


def disturb(address: bytes, rng: random.Random, over: threading.Event) -> None:
    """Connect again and again; speak nonsense, too little, too much, late, or nothing at all."""
    kept: list[socket.socket] = []
    while not over.is_set():
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stranger.settimeout(0.05)
        try:
            stranger.connect(address)
            if rng.random() < 0.5:
                kept.append(stranger)
            if rng.random() < 0.3:
                stranger.recv(4096)
            for _ in range(rng.randrange(3)):
                stranger.send(rng.randbytes(rng.choice((0, 1, 15, 16, 48, 49, 200, 4096, 60_000))))
        except OSError:
            time.sleep(0.001)
        if stranger not in kept:
            stranger.close()
    for stranger in kept:
        stranger.close()


@fault(15, "garbage while the ranks meet", few=1, full=80)
def test_garbage(trial: Trial) -> None:
    n = trial.rng.randint(2, 5)
    name, secret = f"fault {uuid.uuid4()}", trial.rng.choice((b"", b"only we know"))
    jobs = [Job(rank, n, None, None, "test", name, secret) for rank in range(n)]
    delays = [trial.rng.uniform(0, 0.1) for _ in range(n)]
    met: dict[int, object] = {}

    def meet(rank: int) -> None:
        time.sleep(delays[rank])
        with suppress(Exception):  # whoever did not meet is missing below
            met[rank] = rendezvous.meet(jobs[rank], 20.0)

    over = threading.Event()
    strangers = [
        threading.Thread(target=disturb, args=(rendezvous._address(jobs[0]), random.Random(f"{trial.seed}{i}"), over))
        for i in range(2)
    ]
    ranks = [threading.Thread(target=meet, args=(rank,)) for rank in range(n)]
    begin = time.monotonic()
    for thread in (*strangers, *ranks):
        thread.start()
    for thread in ranks:
        thread.join()
    trial.took(time.monotonic() - begin - max(delays))
    over.set()
    for thread in strangers:
        thread.join()
    assert len(met) == n, "not all ranks met"
    assert len({os.fstat(segment.fd).st_ino for segment in met.values() if isinstance(segment, Segment)}) == 1
