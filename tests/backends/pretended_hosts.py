"""Ranks of several pretended hosts on this machine, as torchrun would start them.

They are forked from this process after it has imported torch and rankwise, which takes seconds and 200 MB. So hundreds
of them can run. This process must have no other threads when it forks. A rank's body is a generator: what it yields
is sent to this process, and it continues when this process calls `go_on`.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import traceback
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from typing import Any

from rankwise.system import locality

Body = Callable[[int], Iterator[Any]]  # rank -> values that JSON can represent


class RankFailed(Exception):
    """A rank ended early; it has printed why."""


class PretendedHosts:
    """`hosts` times `ranks` processes, numbered as ranks. A context manager, whose exit ends them."""

    def __init__(self, hosts: int, ranks: int, body: Body) -> None:
        self.pids: list[int] = []
        self._from: list[Any] = []
        self._to: list[int] = []
        for rank in range(hosts * ranks):
            (mine, theirs), (go, start) = os.pipe(), os.pipe()
            pid = os.fork()
            if not pid:
                os.close(mine)
                os.close(start)
                _be(rank, hosts, ranks, body, theirs, go)
            os.close(theirs)
            os.close(go)
            self.pids.append(pid)
            self._from.append(os.fdopen(mine, "r"))
            self._to.append(start)

    def start(self, port: int) -> None:
        """Start the ranks. port: of the store at which they meet."""
        self._send(f"{port}\n".encode())

    def values(self, dead: Container[int] = ()) -> dict[int, Any]:
        """What each rank yields next, except the ranks in `dead`."""
        lines: dict[int, str] = {}
        with selectors.DefaultSelector() as waiting:
            for rank, source in enumerate(self._from):
                if rank not in dead:
                    waiting.register(source, selectors.EVENT_READ, rank)
            while waiting.get_map():  # the first that fails is the one to name: the others may wait for it
                for key, _ in waiting.select():
                    lines[key.data] = self._from[key.data].readline()
                    waiting.unregister(key.fileobj)
                    if not lines[key.data]:
                        raise RankFailed(f"rank {key.data}")
        return {rank: json.loads(lines[rank]) for rank in sorted(lines)}

    def go_on(self) -> None:
        """Let the ranks continue after their last `yield`."""
        self._send(b"\n")

    def _send(self, line: bytes) -> None:
        for target in self._to:
            with suppress(BrokenPipeError):
                os.write(target, line)

    def __enter__(self) -> PretendedHosts:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            os.waitpid(pid, 0)
        for source in self._from:
            source.close()
        for target in self._to:
            os.close(target)


def _be(rank: int, hosts: int, ranks: int, body: Body, target: int, source: int) -> None:
    """Runs in the rank's process, and ends it."""
    code = 1
    try:
        signals = os.fdopen(source, "r")
        port = signals.readline().strip()
        if port:
            _pretend(rank, hosts, ranks, port)
            for value in body(rank):
                os.write(target, json.dumps(value).encode() + b"\n")
                if not signals.readline():
                    break
            code = 0
    except BaseException:  # noqa: BLE001 - it is printed, and the exit status says so
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _pretend(rank: int, hosts: int, ranks: int, port: str) -> None:
    host, local = divmod(rank, ranks)
    here = locality.locality()
    locality.locality = lambda: here | {"pretended host": host}  # type: ignore[assignment]
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(hosts * ranks),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": str(host),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": f"pretended hosts of {os.getppid()}",
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is not served by rank 0
        "OMP_NUM_THREADS": "1",
    }
