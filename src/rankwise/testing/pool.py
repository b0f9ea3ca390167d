"""Rank processes that are started once and run many functions."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import rankwise
from rankwise import _native
from rankwise.contract.errors import RankwiseError
from rankwise.group.group import Group
from rankwise.launch.spawn import raised_on
from rankwise.pool import wire
from rankwise.pool.pickled import message_of
from rankwise.pool.serving import Server
from rankwise.testing.outcome import Args, Kwargs, Outcome, failed, run_on

T = TypeVar("T")

START_TIMEOUT = 60.0  # seconds within which all ranks must have connected


class RankPool:
    """`n` processes that form one group and run one function after another on it.

    usable: False once a function failed, a rank was lost or the group failed; `close` the pool then.
    """

    def __init__(self, n: int, backend: str) -> None:
        self.usable = True
        self._segment: _native.Segment | None = _native.Segment.create(n)
        fd = self._segment.fd
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[socket.socket] = []
        for rank in range(n):
            self._start(rank, n, backend, fd)

    def _start(self, rank: int, n: int, backend: str, fd: int) -> None:
        own_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "RANKWISE_RANK": str(rank),
            "RANKWISE_WORLD_SIZE": str(n),
            "RANKWISE_SEGMENT_FD": str(fd),
            "RANKWISE_LAUNCHER_PID": str(os.getpid()),
        }
        environment.setdefault("OMP_NUM_THREADS", "1")
        command = [sys.executable, "-c", _BOOT, str(child_end.fileno()), backend, str(START_TIMEOUT)]
        with child_end:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, pass_fds=(child_end.fileno(), fd)
            )
        self._processes.append(process)
        self._connections.append(own_end)

    def run(self, fn: Callable[..., T], args: Args, kwargs: Kwargs, timeout: float, grace: float) -> list[Outcome[T]]:
        """Run `fn(group, *args, **kwargs)` on every rank within `timeout` seconds.

        Reports of failures may take `grace` seconds more.
        """
        outcomes = self._round(fn, args, kwargs, timeout, grace)
        # Ranks out of step, or a group that failed while fn returned normally, must not affect the next function.
        if self.usable and not all(outcome.value for outcome in self._round(in_step, (), {}, timeout, grace)):
            self.usable = False
        return outcomes

    def _round(
        self, fn: Callable[..., T], args: Args, kwargs: Kwargs, timeout: float, grace: float
    ) -> list[Outcome[T]]:
        message = message_of(fn, _run, (fn, args, kwargs, timeout))
        outcomes = [Outcome[T](failure=f"no answer within {timeout:g} s") for _ in self._connections]
        waiting, readable = {}, select.poll()
        for rank, connection in enumerate(self._connections):
            waiting[connection.fileno()] = rank
            readable.register(connection, select.POLLIN)
            with suppress(ConnectionError):  # the process has ended, which the read below detects
                wire.send(connection, *message)
        end = time.monotonic() + timeout + grace
        while waiting and (ready := readable.poll(1000 * max(0.0, end - time.monotonic()))):
            for fd, _ in ready:
                readable.unregister(fd)
                rank = waiting.pop(fd)
                outcomes[rank] = self._receive(rank)
        if any(outcome.failure for outcome in outcomes):
            self.usable = False
        return outcomes

    def _receive(self, rank: int) -> Outcome[Any]:
        message = wire.receive(self._connections[rank])
        if message is None:
            status = self._processes[rank].wait()
            if self._segment is not None:
                self._segment.mark_ended(rank, status, self._processes[rank].pid)
            how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
            return Outcome(failure=f"the process {how}")
        kind, _, _, parts = message
        return failed(raised_on(rank, parts[0])) if kind == wire.ERROR else wire.unpacked(parts)

    def end(self) -> None:
        """The processes shall exit; does not wait for them."""
        for connection in self._connections:
            connection.close()  # the rank reads end-of-file

    def close(self) -> None:
        """End the processes. Those that do not exit on their own are killed."""
        self.end()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(2.0 if self.usable else 0.0)
            process.kill()
            process.wait()
        self._segment = None  # unmapped now, even while a traceback keeps this object


def in_step(group: Group) -> bool:
    """Whether the group works and all ranks have called equally many operations."""
    try:
        group.barrier()
    except RankwiseError:
        return False
    return True


# ---- a rank's process ----

_BOOT = "from rankwise.testing.pool import main; main()"
_group: Group


def _run(fn: Callable[..., Any], args: Args, kwargs: Kwargs, timeout: float) -> Outcome[Any]:
    _group.timeout = timeout
    return run_on(_group, fn, args, kwargs)


def main() -> None:
    """Make calls, one after the other, until the other end of the connection closes."""
    global _group
    fd, backend, timeout = sys.argv[1:]
    with socket.socket(fileno=int(fd)) as connection, rankwise.init(backend, timeout=float(timeout)) as _group:
        server = Server(meet=_group.barrier)
        while (message := wire.receive(connection)) is not None:
            kind, _, number, parts = message
            kind, parts = server.answer(kind, parts)
            wire.send(connection, kind, number, parts)
