"""The rank processes of one library: starting them, talking with them, ending them."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any

START_TIMEOUT = 120.0  # seconds for all ranks to have said who they are
ANSWER_TIMEOUT = 300.0  # seconds for an answer
GRACE = 3.0  # seconds to end by themselves, and again after SIGTERM
GRACE_STOPPED = 1.0  # the first of them after Ctrl-C; longer than most turns: a killed MPI leaves files behind
RANK_FILE = Path(__file__).with_name("rank.py")


class CrewError(Exception):
    """The ranks could not be started, failed or did not answer; says why in one line."""


@dataclass(frozen=True)
class Launch:
    """How to start a library's ranks.

    name: rank.py's CONTENDER. launcher: the words before the program, `{n}` in them the number of
    ranks; python: what runs rank.py, nothing where the launcher knows. environment: added to this
    process's.
    """

    name: str
    launcher: Sequence[str]
    python: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, n: int, program: Sequence[str]) -> list[str]:
        """The words that run a Python program on n ranks."""
        return self.bare(n, [*self.python, *program])

    def bare(self, n: int, program: Sequence[str]) -> list[str]:
        """The words that run any command on n ranks."""
        return [word.replace("{n}", str(n)) for word in self.launcher] + [*program]

    def full_environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}


class Crew:
    """n rank processes of one library; a context manager, at whose end none of them runs.

    folder: where the socket is put; private to this user. CrewError where they do not start.
    """

    def __init__(self, launch: Launch, n: int, folder: Path) -> None:
        self.launch, self.n = launch, n
        self.about = ""
        self.memory_before: list[dict[str, int]] = []
        """What each rank took before it loaded the library, as rank.memory."""
        self.alive = False
        self._resources = ExitStack()
        self._connections: list[socket.socket] = []
        self._files: dict[int, Any] = {}  # what each connection is read through, by its descriptor
        self._pidfds: list[int] = []
        self._log = self._resources.enter_context(TemporaryFile())  # noqa: SIM115 - it is closed with the others
        path = folder / f"{launch.name}-{n}-{id(self):x}"
        self._listener = self._resources.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.bind(str(path))
        self._listener.listen(n)
        command = launch.command(n, [str(RANK_FILE), launch.name, str(path)])
        self._launcher = Path(command[0]).name
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=launch.full_environment(),
            start_new_session=True,  # Ctrl-C is for the benchmark, which ends the ranks in order
        )

    def meet(self) -> None:
        """Wait until all ranks have started. Separate from starting, so that several crews start at once."""
        deadline = time.monotonic() + START_TIMEOUT
        self._listener.settimeout(0.2)
        while len(self._connections) < self.n:
            with suppress(TimeoutError):
                connection = self._resources.enter_context(self._listener.accept()[0])
                connection.settimeout(None)
                self._connections.append(connection)
                self._files[connection.fileno()] = self._resources.enter_context(connection.makefile("rb"))
                continue
            if self._process.poll() is not None:
                raise CrewError(self._obituary())
            if time.monotonic() > deadline:
                raise CrewError(f"only {len(self._connections)} of {self.n} ranks started in {START_TIMEOUT:g} s")
        hellos = self._answers(deadline)
        self._pidfds = [os.pidfd_open(hello["pid"]) for hello in hellos]
        numbered = {hello["rank"]: connection for hello, connection in zip(hellos, self._connections, strict=True)}
        if sorted(numbered) != list(range(self.n)):
            raise CrewError(f"the ranks are {sorted(hello['rank'] for hello in hellos)}, expected 0 to {self.n - 1}")
        self._connections = [numbered[rank] for rank in range(self.n)]
        self.about = hellos[0]["about"]
        self.memory_before = [hello["memory"] for hello in hellos]
        self.alive = True

    def ask(self, **request: Any) -> list[dict[str, Any]]:
        """Every rank's answer, by rank. CrewError where one fails, and from then on the crew is not alive."""
        line = json.dumps(request).encode() + b"\n"
        try:
            for connection in self._connections:
                with suppress(BrokenPipeError, ConnectionResetError):  # what it said before it ended tells why
                    connection.sendall(line)
            return self._answers(time.monotonic() + ANSWER_TIMEOUT)
        except CrewError:
            self.alive = False
            raise

    def _answers(self, deadline: float) -> list[dict[str, Any]]:
        """One line of every rank, in the order of the connections."""
        answers: dict[int, dict[str, Any]] = {}
        poll = select.poll()
        for connection in self._connections:
            poll.register(connection, select.POLLIN)
        while len(answers) < len(self._connections):
            ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ready:
                raise CrewError(f"{self.n - len(answers)} of {self.n} ranks did not answer in time")
            lines = {fd: self._read(fd) for fd, _ in ready}
            for fd, line in lines.items():
                if line:
                    poll.unregister(fd)
                    answers[fd] = json.loads(line)
            for answer in answers.values():
                if "error" in answer:
                    raise CrewError(answer["error"])
            if not all(lines.values()):
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(GRACE)
                raise CrewError(self._obituary())
        return [answers[connection.fileno()] for connection in self._connections]

    def _read(self, fd: int) -> bytes:
        """A line, or nothing where the rank has ended."""
        try:
            line: bytes = self._files[fd].readline()
        except ConnectionResetError:
            return b""
        return line

    def _obituary(self) -> str:
        """How the launcher ended, with the last words of its output."""
        self._log.seek(0)
        text = self._log.read().decode(errors="replace")
        words = [line.strip(" -=|\t") for line in text.splitlines()]
        last = "; ".join([line for line in words if line][-3:])
        status = self._process.poll()
        how = "a rank ended" if status is None else f"{self._launcher} ended with status {status}"
        return f"{how}{': ' if last else ''}{last}"

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(GRACE_STOPPED if kind else GRACE)

    def close(self, grace: float = GRACE) -> None:
        """End the ranks: they go when their sockets close; what has not within `grace` seconds is killed."""
        self.alive = False
        self._resources.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        for signum in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signum)
            try:
                self._process.wait(GRACE)
                break
            except subprocess.TimeoutExpired:
                continue
        for fd in self._pidfds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            os.close(fd)
        self._pidfds = []
