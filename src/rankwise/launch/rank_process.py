"""One rank's process, seen from the launcher: how it is started, how and where it ended."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

from rankwise._native import SegmentView
from rankwise.contract.failure_kinds import ERROR
from rankwise.system import proc
from rankwise.system.texts import signal_name

TYPE_CHECKING = False  # typing would take time to import
if TYPE_CHECKING:
    from typing import IO, Any

    from rankwise.contract.failure import Failure
    from rankwise.launch.output import OutputStream

# How a rank gets its own process group. Ranks that share cores stay in the launcher's session: if the kernel schedules
# by session (autogroup), ranks of different sessions cannot yield a core to each other. Python 3.11 made this possible.
OWN_SESSION: dict[str, Any] = {"start_new_session": True}
SAME_SESSION: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else OWN_SESSION


class RankProcess:
    """One rank's process and, once it has ended, how and where it ended.

    returncode: exit status, or minus the signal; None while it runs. operation, sequence: its last
    operation, empty if it never joined the others. call: both as text. inside: whether it was still in
    that operation. failure: why its program failed, if it has reported that. restart: 0, or 1 for the rank's first
    replacement, 2 for its second, ... index: its number among the ranks of this node, and in their segment. host: the
    name of the host if the job has several nodes, or "". joined_as: the pid that the segment has for the rank when it
    has ended. stderr: what it writes there. left_out: it was ended because all others, which had gone on without it,
    had ended. done: a replacement of it would find nothing to take part in.
    """

    def __init__(
        self,
        number: int,
        process: subprocess.Popen[bytes],
        replaced: RankProcess | None = None,
        *,
        first: int = 0,
        host: str = "",
    ) -> None:
        """first: the number of this node's first rank."""
        self.number = number
        self.index = number - first
        self.host = host
        self.process = process
        self.restart: int = 0 if replaced is None else replaced.restart + 1
        self.joined_as: int = 0 if replaced is None else replaced.joined_as
        self.pidfd = -1
        self.returncode: int | None = None
        self.operation = ""
        self.sequence = 0
        self.call = ""
        self.inside = False
        self.left_out = False
        self.done = False
        self.failure: Failure | None = None
        self.stderr: OutputStream | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def pipes(self) -> list[IO[bytes]]:
        """Its stdout and stderr."""
        return [pipe for pipe in (self.process.stdout, self.process.stderr) if pipe is not None]

    @property
    def how(self) -> str:
        """'was killed by SIGKILL', 'exited with status 3', 'was left out by the others ...', or 'runs'."""
        if self.returncode is None:
            return "runs"
        if self.left_out:
            return "was left out by the others and had to be ended"
        if self.returncode >= 0:
            return f"exited with status {self.returncode}"
        return f"was killed by {signal_name(-self.returncode)}"

    @property
    def where(self) -> str:
        """' in all_reduce #17', ' after recv from rank 1', ' before its first operation', or '' before it joined."""
        if not self.operation:
            return ""
        if not self.call:
            return " before its first operation"
        return f" {'in' if self.inside else 'after'} {self.call}"

    @property
    def name(self) -> str:
        """'rank 2 (pid 4711)', or 'rank 2 (pid 4711 on host-b)' if the job has several nodes."""
        on_host = f" on {self.host}" if self.host else ""
        return f"rank {self.number} (pid {self.pid}{on_host})"

    @property
    def end(self) -> str:
        """'rank 2 (pid 4711) was killed by SIGKILL in all_reduce #17'."""
        return f"{self.name} {self.how}{self.where}"

    @property
    def cause(self) -> str:
        """': KeyError: 'x' at train.py:7', or ': the ranks called different operations: ...', if it is known.

        If not, and it has exited, its last line on stderr, which may be the text of `sys.exit("no such file")`.
        """
        if self.failure is None:
            line = self.stderr.last_line if self.stderr is not None and (self.returncode or 0) > 0 else ""
            return f"; its last line on stderr: {line!r}" if line else ""
        site = next((at.site for at in self.failure.ranks.values()), "") if self.failure.kind == "error" else ""
        return f": {self.failure.summary}{f' at {site}' if site else ''}"

    @property
    def failed_by_loss(self) -> bool:
        """Whether it failed only because another rank was lost."""
        return self.failure is not None and self.failure.kind == "lost"

    @property
    def timeout(self) -> str:
        """If a timeout was the reason: the whole error; else ""."""
        return self.failure.message if self.failure is not None and self.failure.kind == "timeout" else ""

    @property
    def code(self) -> int:
        """The exit code as in a shell: 128 + the number of the signal if a signal killed the process."""
        assert self.returncode is not None
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    def open_pidfd(self) -> bool:
        """Open `pidfd`, which becomes readable when the process ends. False if the kernel does not allow that."""
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except OSError as error:  # a kernel before 5.3, or a container's seccomp profile
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
        return self.pidfd >= 0

    def has_ended(self) -> bool:
        """Whether the process has ended; it is not reaped."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def note_end(self) -> None:
        """Record how the process ended. It is not reaped yet, so that its pid and its group's id stay reserved."""
        end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert end is not None
        self.returncode = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        if self.pidfd >= 0:
            os.close(self.pidfd)

    def read_failure(self, failures_fd: int, segment_fd: int) -> None:
        """What the rank has reported. If it ended for its own reasons after its last operation failed, that counts."""
        from rankwise.system import failure_report  # imports dataclasses, without which the launcher starts sooner

        report = failure_report.read(failures_fd, self.number)
        failure_report.forget(failures_fd, self.number)
        self.failure = report.uncaught
        if report.latest is not None and (report.uncaught is None or report.uncaught.kind == ERROR):
            last = SegmentView(segment_fd).state(self.index).operation
            if last is not None and last.failed:
                self.failure = report.latest

    def signal_group(self, signum: int) -> bool:
        """Send a signal to the rank's whole group; 0 sends none. Returns False if no process is left."""
        try:
            os.killpg(self.pid, signum)
        except ProcessLookupError:
            return False
        return True


def leave_terminal() -> None:
    """Detach from the session's terminal, which would stop a background process that reads from it."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return  # there is no terminal
    fcntl.ioctl(terminal, termios.TIOCNOTTY)
    os.close(terminal)


@contextmanager
def placed(cpus: Collection[int]) -> Iterator[None]:
    """Within this context this thread, and a process that it starts, may use only these CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def leftovers(ranks: Sequence[RankProcess]) -> bool:
    """Whether the ranks' groups still have processes. Children of ours that have ended are reaped."""
    left = False
    for rank in ranks:
        rank.process.poll()
        try:
            while os.waitid(os.P_PGID, rank.pid, os.WEXITED | os.WNOHANG) is not None:
                pass
        except ChildProcessError:
            pass  # none of them is a child of this process
        left = rank.signal_group(0) or left
    return left


def kill_strays(secret: str) -> None:
    """Kill what has left the groups of this process's ranks, as a daemon does with os.setsid, but has their variables.

    secret: the ranks' RANKWISE_SECRET, which the ranks of other nodes on this host have too.
    """
    marks = {"RANKWISE_SECRET": secret, "RANKWISE_LAUNCHER_PID": str(os.getpid())}.items()
    for pid in proc.pids():
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended, or is another user's
            if marks <= proc.environment(pid).items():
                os.kill(pid, signal.SIGKILL)


# Reads process ids, one per line, until end-of-file: when the launcher has ended, and so has every rank that had not
# yet run its command.
_PROGRAM = 'groups=; while read -r pid; do groups="$groups -$pid"; done; [ -z "$groups" ] || kill -KILL $groups'


class Watchdog:
    """The *watchdog* of a job: a shell that only waits for its launcher to die, and then kills the ranks' groups."""

    def __init__(self) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # a signal to the launcher's group must not end it
            bufsize=0,
        )

    def add(self, pid: int) -> None:
        """Watch the group whose first process is `pid`. The launcher calls this, or the new process itself."""
        assert self._shell.stdin is not None
        os.write(self._shell.stdin.fileno(), b"%d\n" % pid)

    def end(self) -> None:
        """End the watchdog when the job is over; it leaves the groups alone."""
        self._shell.kill()
        self._shell.communicate()
