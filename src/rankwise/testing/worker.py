"""One rank process of a RankPool: `python -m rankwise.testing.worker FD BACKEND TIMEOUT`."""

from __future__ import annotations

import pickle
import sys
from multiprocessing.connection import Connection
from typing import Any

import rankwise
from rankwise.group.group import Group
from rankwise.launch.spawn_worker import pickler
from rankwise.testing.outcome import failed, run_on


def serve(connection: Connection, group: Group) -> None:
    """Run functions, one after the other, until the other end of the connection closes."""
    while True:
        try:
            path, task, timeout = connection.recv()
        except EOFError:
            return
        sys.path[:] = path
        group.timeout = timeout
        outcome = run_on(group, _unpacked, (task,), {})
        try:
            reply = pickler(run_on)(outcome)
        except BaseException as error:  # noqa: BLE001 - whatever its classes raise
            reply = pickle.dumps(failed(error))
        connection.send_bytes(reply)


def _unpacked(group: Group, task: bytes) -> Any:
    fn, args, kwargs = pickle.loads(task)
    return fn(group, *args, **kwargs)


def main() -> None:
    fd, backend, timeout = sys.argv[1:]
    with Connection(int(fd)) as connection, rankwise.init(backend, timeout=float(timeout)) as group:
        serve(connection, group)


if __name__ == "__main__":
    main()
