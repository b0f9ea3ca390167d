"""One rank process of a RankPool: `python -m rankwise.testing.worker FD BACKEND TIMEOUT`."""

from __future__ import annotations

import pickle
import sys
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import rankwise
from rankwise.api.group import Group
from rankwise.contract.errors import RankwiseError
from rankwise.testing.outcome import failed, run_on


def serve(connection: Connection, group: Group) -> None:
    """Run functions until the other end of the connection closes or the group has failed."""
    while True:
        try:
            path, task, timeout = connection.recv()
        except EOFError:
            return
        sys.path[:] = path
        group.timeout = timeout
        outcome = run_on(group, partial(_unpacked, task))
        healthy = not outcome.failure and arrives(group)
        try:
            reply = pickle.dumps((outcome, healthy))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            reply = pickle.dumps((failed(error), False))
        connection.send_bytes(reply)


def _unpacked(task: bytes, group: Group) -> Any:
    return pickle.loads(task)(group)


def arrives(group: Group) -> bool:
    """Whether all ranks are in step: none has called more than the others, and the group works."""
    try:
        group.barrier()
    except RankwiseError:
        return False
    return True


def main() -> None:
    fd, backend, timeout = sys.argv[1:]
    with Connection(int(fd)) as connection, rankwise.init(backend, timeout=float(timeout)) as group:
        serve(connection, group)


if __name__ == "__main__":
    main()
