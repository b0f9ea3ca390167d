"""How ranks of three pretended hosts with two ranks each end if some of them do not meet: `meeting_program.py CASE`.

Prints one line of JSON: for each rank that lives, the error's type, the ranks that it names and its text, or the sum of
all ranks if there was none.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from counting_store import CountingStore
from pretended_hosts import PretendedHosts

import rankwise as rw
from rankwise.backends.gloo import meeting

TIMEOUT = 10.0


def killed(*_: object) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def main(case: str) -> None:
    absent = {"absent host": {4, 5}, "absent rank": {3}}.get(case, set())
    dead = {2} if case == "killed leader" else set()

    def body(rank: int) -> Iterator[Any]:
        if rank in dead:
            meeting.follow = killed
        if case == "late host" and rank in (4, 5):
            time.sleep(1.0)
        if rank in absent:
            yield None
            return
        try:
            yield rw.init("gloo", timeout=TIMEOUT).all_reduce(rank)
        except rw.CollectiveTimeout as error:
            yield "CollectiveTimeout", list(error.missing), str(error)
        except rw.PeerLostError as error:
            yield "PeerLostError", [error.rank], str(error)

    torch.set_num_threads(1)
    with PretendedHosts(3, 2, body) as job:
        store = CountingStore()
        job.start(store.port)
        print(json.dumps({rank: value for rank, value in job.values(dead).items() if rank not in absent}))
        store.close()


if __name__ == "__main__":
    main(sys.argv[1])
