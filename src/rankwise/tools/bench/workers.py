"""The rank processes of one library: how they are started, queried and ended."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any

START_TIMEOUT = 120.0  # seconds within which all ranks must have connected
ANSWER_TIMEOUT = 300.0  # seconds within which an answer must arrive
GRACE = 3.0  # seconds in which the ranks may exit on their own, and again after SIGTERM
GRACE_STOPPED = 1.0  # the same after Ctrl-C; longer than most measurements, because a killed MPI leaves files behind
RANK_FILE = Path(__file__).with_name("rank.py")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: unix(7)


_numbers = count()  # of the sockets: one folder may see many Workers


def _pidfd(connection: socket.socket) -> list[int]:
    """A pidfd of the process at the other end; an empty list if the kernel or a seccomp filter refuses it.

    It kills a rank that has left the launcher's process group and does not exit; without it such a rank stays.
    """
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(credentials)[0]  # as seen from here: in its own pid namespace it may differ
    try:
        return [os.pidfd_open(pid)]
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        return []


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

    def command(self, n: int, program: Sequence[str]) -> list[str]:
        """The command that runs a Python program on n ranks."""
        return self.bare(n, [*self.python, *program])

    def bare(self, n: int, program: Sequence[str]) -> list[str]:
        """The command that runs any program on n ranks."""
        return [word.replace("{n}", str(n)) for word in self.launcher] + [*program]

    def full_environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}


class Workers:
    """n rank processes of one library. A context manager: none of them runs after its end.

    folder: receives the socket; private to this user. program: what each rank runs. Raises WorkersError if the ranks
    do not start.
    """

    def __init__(self, launch: Launch, n: int, folder: Path, program: Path = RANK_FILE) -> None:
        self.launch, self.n = launch, n
        self.about = ""
        self.memory_before: list[dict[str, int]] = []
        """Each rank's memory before it loaded the library, as rank.memory returns it."""
        self.alive = False
        self._resources = ExitStack()
        self._connections: list[socket.socket] = []
        self._files: dict[int, Any] = {}  # the reader of each connection, by descriptor
        self._pidfds: list[int] = []
        self._log = self._resources.enter_context(TemporaryFile())  # noqa: SIM115 - closed with the other resources
        path = folder / f"{launch.name}-{n}-{next(_numbers)}"
        self._listener = self._resources.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.bind(str(path))
        self._listener.listen(n)
        command = launch.command(n, [str(program), launch.name, str(path)])
        self._launcher = Path(command[0]).name
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=launch.full_environment(),
            start_new_session=True,  # Ctrl-C goes to the benchmark alone, which then ends the ranks
        )

    def meet(self) -> None:
        """Wait until all ranks have started. Separate from __init__, so that several libraries start at once."""
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
                raise WorkersError(self._how_it_ended())
            if time.monotonic() > deadline:
                raise WorkersError(f"only {len(self._connections)} of {self.n} ranks started in {START_TIMEOUT:g} s")
        hellos = self._answers(deadline)
        self._pidfds = [fd for connection in self._connections for fd in _pidfd(connection)]
        numbered = {hello["rank"]: connection for hello, connection in zip(hellos, self._connections, strict=True)}
        if sorted(numbered) != list(range(self.n)):
            raise WorkersError(f"the ranks are {sorted(hello['rank'] for hello in hellos)}, expected 0 to {self.n - 1}")
        self._connections = [numbered[rank] for rank in range(self.n)]
        self.about = hellos[0]["about"]
        self.memory_before = [hello["memory"] for hello in hellos]
        self.alive = True

    def ask(self, **request: Any) -> list[dict[str, Any]]:
        """Every rank's answer, by rank. Raises WorkersError if a rank fails; `alive` is False from then on."""
        line = json.dumps(request).encode() + b"\n"
        try:
            for connection in self._connections:
                with suppress(BrokenPipeError, ConnectionResetError):  # its last answer, read below, has the reason
                    connection.sendall(line)
            return self._answers(time.monotonic() + ANSWER_TIMEOUT)
        except WorkersError:
            self.alive = False
            raise

    def _answers(self, deadline: float) -> list[dict[str, Any]]:
        """One line from every rank, in the order of the connections."""
        answers: dict[int, dict[str, Any]] = {}
        poll = select.poll()
        for connection in self._connections:
            poll.register(connection, select.POLLIN)
        while len(answers) < len(self._connections):
            ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ready:
                raise WorkersError(f"{self.n - len(answers)} of {self.n} ranks did not answer in time")
            lines = {fd: self._read(fd) for fd, _ in ready}
            for fd, line in lines.items():
                if line:
                    poll.unregister(fd)
                    answers[fd] = json.loads(line)
            for answer in answers.values():
                if "error" in answer:
                    raise WorkersError(answer["error"])
            if not all(lines.values()):
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(GRACE)
                raise WorkersError(self._how_it_ended())
        return [answers[connection.fileno()] for connection in self._connections]

    def _read(self, fd: int) -> bytes:
        """A line, or b"" if the rank has ended."""
        try:
            line: bytes = self._files[fd].readline()
        except ConnectionResetError:
            return b""
        return line

    def _how_it_ended(self) -> str:
        """How the launcher ended, with the last lines of its output."""
        self._log.seek(0)
        text = self._log.read().decode(errors="replace")
        words = [line.strip(" -=|\t") for line in text.splitlines()]
        last = "; ".join([line for line in words if line][-3:])
        status = self._process.poll()
        how = "a rank ended" if status is None else f"{self._launcher} ended with status {status}"
        return f"{how}{': ' if last else ''}{last}"

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(GRACE_STOPPED if kind else GRACE)

    def close(self, grace: float = GRACE) -> None:
        """End the ranks. They exit when their sockets close; those that have not within `grace` s are killed."""
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
