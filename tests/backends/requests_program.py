"""The requests to the store of a group on pretended hosts: `requests_program.py BACKEND HOSTS RANKS_PER_HOST`.

Prints one line of JSON: how many come when the group opens, when it is split and when it is closed, and how many
connections the store has when the group is open.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import torch
from counting_store import CountingStore
from pretended_hosts import PretendedHosts

import rankwise as rw


def main(backend: str, hosts: int, ranks: int) -> None:
    def body(rank: int) -> Iterator[str]:
        group = rw.init(backend, timeout=120.0)
        yield "open"
        part = group.split(rank % 2)
        assert part is not None
        assert part.all_reduce(1) == part.world_size
        yield "split"
        part.close()
        group.close()
        yield "close"

    torch.set_num_threads(1)
    with PretendedHosts(hosts, ranks, body) as job:
        store = CountingStore()
        job.start(store.port)
        found, before = {}, 0
        for _ in range(3):
            (phase,) = set(job.values().values())
            found[phase] = store.total - before
            before = store.total
            if phase == "open":
                found["connections"] = store.connections
            job.go_on()
        store.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
