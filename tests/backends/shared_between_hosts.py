"""What the ranks of several hosts share, over an engine that connects hosts: each rank passes for a host of its own."""

from __future__ import annotations

import sys
from itertools import chain

import numpy as np

import rankwise as rw
from rankwise.group.sharing import Sharing


def main(backend: str) -> None:
    Sharing._mark = lambda group: bytes([group.rank])  # type: ignore[method-assign]
    with rw.init(backend=backend) as group:
        table = group.share(np.arange(10) if group.rank == 1 else None, 1)
        assert table.tolist() == list(range(10)), table
        tickets, lock = group.counter(), group.lock()
        drawn = [tickets.next() for _ in range(20)]
        assert sorted(chain(*group.all_gather_object(drawn))) == list(range(20 * group.world_size)), drawn
        for _ in range(5):
            with lock:
                pass
        group.barrier()
        if group.rank == 0:
            lock.acquire()
        group.barrier()
        if group.rank == 1:
            missing: tuple[int, ...] = ()
            try:
                lock.acquire(timeout=0.02)
            except rw.CollectiveTimeout as error:
                missing = error.missing
            assert missing == (0,), missing
        group.barrier()
        if group.rank == 0:
            lock.release()
        found = group.map(lambda x: x + 1, range(30) if group.rank == 0 else None)
        assert found == (list(range(1, 31)) if group.rank == 0 else None), found
    print(f"rank {group.rank}: all is as it should be")


if __name__ == "__main__":
    main(sys.argv[1])
