"""The rank processes of one library: how they are started, queried and ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

START_TIMEOUT = 120.0  # seconds within which all ranks must have connected
ANSWER_TIMEOUT = 300.0  # seconds within which an answer must arrive
GRACE = 3.0  # seconds in which the ranks may exit on their own, and again after SIGTERM
RANK_FILE = Path(__file__).with_name("rank.py")

_numbers = count()  # of the sockets: one folder may see many Workers


class WorkersError(Exception):
    """The ranks could not be started, failed or did not answer; the message is one line."""


@dataclass(frozen=True)
class Launch:
    """How to start a library's ranks.

    name: the LIBRARY of rank.py. launcher: the command before the program, in which `{n}` stands for the
    number of ranks. python: what runs the ranks' program; empty if the launcher knows. environment: added to the
    environment of this process.
    """

    name: str
    launcher: Sequence[str]
    python: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)


class Workers:
    """n rank processes of one library; none of them runs after `close`.

    folder: receives the socket; private to this user.
    """

    def __init__(self, launch: Launch, n: int, folder: Path) -> None:
        self.launch, self.n = launch, n
        self.about = ""
        self.alive = False
        self._resources = ExitStack()
        self._connections: list[Connection[Any, Any]] = []
        self._log = self._resources.enter_context(TemporaryFile())  # noqa: SIM115 - closed with the other resources
        path = str(folder / f"{launch.name}-{n}-{next(_numbers)}")
        self._listener = self._resources.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.bind(path)
        self._listener.listen(n)
        launcher = [word.replace("{n}", str(n)) for word in launch.launcher]
        self._process = subprocess.Popen(
            [*launcher, *launch.python, str(RANK_FILE), launch.name, path],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **launch.environment},
            start_new_session=True,  # Ctrl-C goes to the benchmark alone, which then ends the ranks
        )

    def meet(self) -> None:
        """Wait until all ranks have started. Separate from __init__, so that several libraries start at once.

        Raises WorkersError if they do not start.
        """
        deadline = time.monotonic() + START_TIMEOUT
        self._listener.settimeout(0.2)
        while len(self._connections) < self.n:
            with suppress(TimeoutError):
                connection = Connection(self._listener.accept()[0].detach())
                self._connections.append(self._resources.enter_context(connection))
                continue
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise WorkersError(self._how_it_ended())
        hellos = self._answers(deadline)
        by_rank = sorted(
            zip([hello["rank"] for hello in hellos], self._connections, strict=True), key=lambda ranked: ranked[0]
        )
        self._connections = [connection for _, connection in by_rank]
        self.about = hellos[0]["about"]
        self.alive = True

    def ask(self, **request: Any) -> list[dict[str, Any]]:
        """Every rank's answer, by rank. Raises WorkersError if a rank fails; `alive` is False from then on."""
        try:
            for connection in self._connections:
                with suppress(BrokenPipeError, ConnectionResetError):  # its last answer, read below, has the reason
                    connection.send(request)
            return self._answers(time.monotonic() + ANSWER_TIMEOUT)
        except WorkersError:
            self.alive = False
            raise

    def _answers(self, deadline: float) -> list[dict[str, Any]]:
        """One answer from every rank, in the order of the connections."""
        answers: dict[Any, dict[str, Any]] = {}
        while waiting := [connection for connection in self._connections if connection not in answers]:
            ready: list[Any] = wait(waiting, max(0.0, deadline - time.monotonic()))
            if not ready:
                raise WorkersError(f"{len(waiting)} of {self.n} ranks did not answer in time")
            for connection in ready:
                try:
                    answers[connection] = connection.recv()
                except (EOFError, ConnectionResetError):
                    raise WorkersError(self._how_it_ended()) from None
                if "error" in answers[connection]:
                    raise WorkersError(answers[connection]["error"])
        return [answers[connection] for connection in self._connections]

    def _how_it_ended(self) -> str:
        """How the launcher ended, with the last lines of its output."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        self._log.seek(0)
        words = [line.strip(" -=|\t") for line in self._log.read().decode(errors="replace").splitlines()]
        status = self._process.returncode
        how = "a rank did not start, or ended" if status is None else f"the launcher ended with status {status}"
        return "; ".join([how, *[line for line in words if line][-3:]])

    def close(self) -> None:
        """End the ranks. They exit when their connections close; those that have not after a while are killed."""
        self.alive = False
        self._resources.close()
        for signum in (None, signal.SIGTERM, signal.SIGKILL):
            if signum is not None and self._process.poll() is None:
                os.killpg(self._process.pid, signum)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE)
