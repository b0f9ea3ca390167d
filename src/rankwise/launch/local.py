"""Starts the ranks of a job on this host and watches them until they end.

A rank's *group* is its process group, which contains every process that the rank started. The
*watchdog* is a shell that only waits for this process to die; if that happens before the job ends, it
kills the groups. To start fast, this file imports neither NumPy nor dataclasses nor anything else that
a job can do without.
"""

from __future__ import annotations

import errno
import fcntl
import os
import selectors
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

from rankwise._native import Segment
from rankwise._native import adopt_orphans as adopt_orphans  # for the tools
from rankwise._native import usable_cores as usable_cores
from rankwise.contract.settings import SPANS_MEMFD, TIMEOUT, is_timeout
from rankwise.launch.output import OutputMultiplexer, OutputStream

TYPE_CHECKING = False  # typing would take time to import
if TYPE_CHECKING:
    from typing import Any

GRACE = 1.0  # seconds in which ranks may exit on their own, and again between SIGTERM and SIGKILL
HOLD = 1.0  # seconds that a traceback is held back while its rank runs
QUIET = 0.1  # seconds without output after which an incomplete line is shown on a terminal
PIECE = 1 << 16  # bytes read from a pipe at once
PIPE_LIMIT = 1 << 20  # bytes that a pipe can hold

# Reads process ids, one per line, until end-of-file: when the launcher has ended, and so has every rank that had not
# yet run its command.
_WATCHDOG = 'groups=; while read -r pid; do groups="$groups -$pid"; done; [ -z "$groups" ] || kill -KILL $groups'

# How a rank gets its own process group. Ranks that share cores stay in the launcher's session: if the kernel schedules
# by session (autogroup), ranks of different sessions cannot yield a core to each other. Python 3.11 made this possible.
_OWN_SESSION: dict[str, Any] = {"start_new_session": True}
_SAME_SESSION: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else _OWN_SESSION

# How Python prints errors that another rank caused; importing their classes would import NumPy.
_LOST = "rankwise.contract.errors.PeerLostError: "
_TIMED_OUT = "rankwise.contract.errors.CollectiveTimeout: "


def _leave_terminal() -> None:
    """Detach from the session's terminal, which would stop a background process that reads from it."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return  # there is no terminal
    fcntl.ioctl(terminal, termios.TIOCNOTTY)
    os.close(terminal)


class RankProcess:
    """One rank's process and, once it has ended, how and where it ended.

    returncode: exit status, or minus the signal; None while it runs. operation, sequence: its last
    operation, empty if it never joined the others. call: both as text. inside: whether it was still in
    that operation. error: the error in its last traceback, "ValueError: bad" and the indented lines
    after it, or ""; known when the job is over.
    """

    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self.number = number
        self.process = process
        self.pidfd = -1
        self.returncode: int | None = None
        self.operation = ""
        self.sequence = 0
        self.call = ""
        self.inside = False
        self.error = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def how(self) -> str:
        """'was killed by SIGKILL', 'exited with status 3', or 'runs'."""
        if self.returncode is None:
            return "runs"
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

    def note_end(self) -> None:
        """Record how the process ended. It is not reaped yet, so that its pid and its group's id stay reserved."""
        end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert end is not None
        self.returncode = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        os.close(self.pidfd)

    def signal_group(self, signum: int) -> bool:
        """Send a signal to the rank's whole group; 0 sends none. Returns False if no process is left."""
        try:
            os.killpg(self.pid, signum)
        except ProcessLookupError:
            return False
        return True


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"  # one of the unnamed real-time signals


class LocalJob:
    """The n ranks of one job: n processes of one command.

    `with LocalJob(...) as job:` starts them; at the end of the block none of their processes runs any
    more. In between, `wait` forwards their output and watches them. When one rank fails, the others
    are notified, get a moment to report their errors, and are ended.

    argv: the command, which is the same for every rank. stdin: whether rank 0 inherits it. pass_fds:
    descriptors that the ranks inherit, under the same numbers. backend, timeout: the ranks'
    RANKWISE_BACKEND and RANKWISE_TIMEOUT, if given. spans: whether to collect the spans of
    rankwise.trace. fork: whether this process has only one thread, so that each rank can be forked and
    register with the watchdog before it runs its command. Otherwise a rank is registered a moment
    later, and the command itself must end if this process is killed in that moment.

    Raises ValueError for n below 1 or a timeout that is 0, negative or endless; MemoryError when there is
    no room for the shared memory; OSError when a process cannot be started, or this one may not open the
    files that so many ranks take.
    """

    def __init__(
        self,
        argv: Sequence[str],
        n: int,
        output: OutputMultiplexer,
        *,
        stdin: bool = False,
        pass_fds: Sequence[int] = (),
        backend: str | None = None,
        timeout: float | None = None,
        spans: bool = False,
        fork: bool = False,
    ) -> None:
        if n < 1:
            raise ValueError(f"n={n}: expected a number of ranks of at least 1")
        if timeout is not None and not is_timeout(timeout):
            raise ValueError(f"timeout={timeout:g}: expected {TIMEOUT}")
        self.ranks: list[RankProcess] = []
        self.failures: list[RankProcess] = []
        """The ranks that failed before the launcher began to end ranks, in that order."""
        self.survivors = 0
        """How many ranks still ran at the first failure, or when `interrupt` was called."""
        self.interrupted: int | None = None
        """The signal given to `interrupt`."""
        self.argv = list(argv)
        self._n = n
        self._output = output
        self._stdin = stdin
        self._pass_fds = tuple(pass_fds)
        self._backend = backend
        self._timeout = timeout
        self._keep_spans = spans
        self._fork = fork
        self._spans: list[int] = []  # for each rank the memfd that holds its spans
        self._selector = selectors.DefaultSelector()
        self._pipes: dict[int, OutputStream] = {}
        self._plan: list[tuple[float, int]] = []  # the signals to send, with their times
        self._ending = False  # the first of them has been sent
        self._lost: int | None = None  # the rank that others had already lost at the first failure
        self._over = False  # no process of the ranks runs any more
        self._wake_reader, self.wake_writer = os.pipe()
        """A byte written to `wake_writer` wakes `wait` (see signal.set_wakeup_fd)."""
        self._secret = os.urandom(16).hex()
        self._segment: Segment | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        # Bound but never listening, which reserves the port so that rank 0 may listen on it.
        self._port = socket.socket()

    def __enter__(self) -> LocalJob:
        try:
            self._start()
        except OSError as error:
            words = self._too_many_files() if error.errno == errno.EMFILE else ""
            self._close()
            if words:
                raise OSError(words) from error
            raise
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def culprit(self) -> RankProcess | None:
        """The rank to blame: the failed rank that the others lost, else the first that failed for its own reasons."""
        for rank in self.failures:
            if rank.number == self._lost:
                return rank
        causes = [rank for rank in self.failures if not rank.error.startswith(_LOST)]
        return next(iter(causes or self.failures), None)

    @property
    def hang(self) -> str:
        """If a timeout was the cause: which rank did not come, then a line with the state of each rank; else ""."""
        culprit = self.culprit
        return culprit.error.removeprefix(_TIMED_OUT) if culprit and culprit.error.startswith(_TIMED_OUT) else ""

    @property
    def exit_code(self) -> int:
        """The exit code of the rank to blame, 128 + signal for a signal; 0 if no rank failed."""
        if self.interrupted is not None:
            return 128 + self.interrupted
        if self.culprit is None:
            return 0
        code = self.culprit.returncode
        assert code is not None
        return code if code > 0 else 128 - code

    def wait(self) -> None:
        """Return when all ranks and the processes they started have ended and their output is forwarded."""
        while self._running():
            self._step(None)
        if self._leftovers():
            now = time.monotonic()
            self._plan = [(now, signal.SIGTERM), (now + GRACE, signal.SIGKILL)]
            while self._leftovers() and time.monotonic() < now + 2 * GRACE:
                self._step(0.01)
        self._over = True
        for fd in list(self._pipes):
            for _ in range(PIPE_LIMIT // PIECE):
                if not self._read(fd):
                    break
            if fd in self._pipes:  # held open by a process that left its group
                self._end_pipe(fd)
        for rank in self.failures:
            rank.error = self._output.error(rank.number)
        # The traceback of the rank to blame comes last.
        self._output.release(last=-1 if self.culprit is None else self.culprit.number)

    def interrupt(self, signum: int) -> None:
        """Pass a signal on to the ranks. Those that it does not end are ended a moment later.

        May be called from a signal handler.
        """
        if self.interrupted is None:
            self.interrupted = signum
            self.survivors = self._running()
            self._end_after_grace()
        self._signal_all(signum)

    @property
    def segment_fd(self) -> int:
        """The descriptor of the job's shared memory, while the job is open."""
        assert self._segment is not None
        return self._segment.fd

    def spans(self) -> list[bytes]:
        """Each rank's spans of rankwise.trace, while the job is open; complete once the rank has ended."""
        return [os.pread(fd, os.fstat(fd).st_size, 0) for fd in self._spans] or [b""] * len(self.ranks)

    def kill(self) -> None:
        """Kill every rank and all processes they started. May be called from a signal handler."""
        self._signal_all(signal.SIGKILL)

    def _start(self) -> None:
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("127.0.0.1", 0))
        self._segment = segment = Segment.create(self._n)
        segment.announce_statuses()
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # a signal to the launcher's group must not end it
            bufsize=0,
        )
        assert self._watchdog.stdin is not None
        kept = self._watchdog.stdin.fileno()

        def announce() -> None:
            _leave_terminal()
            os.write(kept, b"%d\n" % os.getpid())

        self._listen(self._wake_reader, self._woken)
        if self._keep_spans:
            self._spans = [os.memfd_create(SPANS_MEMFD) for _ in range(self._n)]
        for number in range(self._n):
            if self.interrupted is not None:
                break
            process = subprocess.Popen(
                self.argv,
                stdin=None if self._stdin and number == 0 else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=self._environment(number, segment.fd),
                pass_fds=(segment.fd, *self._spans[number : number + 1], *self._pass_fds),
                **(_SAME_SESSION if self._n > usable_cores() else _OWN_SESSION),
                preexec_fn=announce if self._fork else None,  # runs in the new process, which is already in its group
            )
            rank = RankProcess(number, process)
            self.ranks.append(rank)
            if not self._fork:
                os.write(kept, b"%d\n" % rank.pid)
            rank.pidfd = os.pidfd_open(rank.pid)
            self._selector.register(rank.pidfd, selectors.EVENT_READ, rank)
            for pipe, stream in zip((process.stdout, process.stderr), self._output.add(number), strict=True):
                assert pipe is not None
                self._pipes[pipe.fileno()] = stream
                self._listen(pipe.fileno(), self._read)

    def _too_many_files(self) -> str:
        """How many open files the ranks need, and this process's limit."""
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        each = 4 if self._keep_spans else 3  # two pipes and a pidfd, and the memory of its spans
        needed = limit + each * (self._n - len(self.ranks))
        return (
            f"{self._n} ranks need about {needed} open files in the process that starts them, but its limit is "
            f"{limit}; `ulimit -n {needed}` before the command raises it"
        )

    def _environment(self, number: int, segment_fd: int) -> dict[str, str]:
        env = dict(os.environ)
        env.update(
            RANKWISE_RANK=str(number),
            RANKWISE_WORLD_SIZE=str(self._n),
            RANKWISE_SEGMENT_FD=str(segment_fd),
            RANKWISE_LAUNCHER_PID=str(os.getpid()),
            RANKWISE_SECRET=self._secret,
            PYTHONUNBUFFERED="1",  # lines come out as they are written
            # What torch.distributed reads ("env://").
            RANK=str(number),
            WORLD_SIZE=str(self._n),
            LOCAL_RANK=str(number),
            LOCAL_WORLD_SIZE=str(self._n),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(self._port.getsockname()[1]),
        )
        env.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # set by a torchrun around this launcher
        env.pop("RANKWISE_TRACE_FD", None)  # set by a launcher around this one
        if self._spans:
            env["RANKWISE_TRACE_FD"] = str(self._spans[number])
        if self._backend is not None:
            env["RANKWISE_BACKEND"] = self._backend
        if self._timeout is not None:
            env["RANKWISE_TIMEOUT"] = repr(self._timeout)
        # OpenMP, MKL and OpenBLAS all respect it unless a more specific variable is set.
        env.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // self._n)))
        return env

    def _listen(self, fd: int, ready: Callable[[int], object]) -> None:
        os.set_blocking(fd, False)
        self._selector.register(fd, selectors.EVENT_READ, ready)

    def _step(self, limit: float | None) -> None:
        """Sleep for at most `limit` seconds until an event happens or a signal is due, and handle it."""
        waits = [] if limit is None else [limit]
        if self._plan:
            waits.append(max(0.0, self._plan[0][0] - time.monotonic()))
        holding = self._output.holds() and not self._plan  # while ranks are being ended all are held to the end
        if self._output.hides() or holding:
            waits.append(QUIET)
        events = self._selector.select(min(waits, default=None))
        if not events:
            self._output.quiet()
        if holding:
            self._output.release(before=time.monotonic() - HOLD)
        ended: list[RankProcess] = []
        for key, _ in events:
            if isinstance(key.data, RankProcess):
                self._selector.unregister(key.fd)
                key.data.note_end()
                ended.append(key.data)
            else:
                key.data(key.fd)
        # If several ranks are found to have ended at once, a rank killed by a signal is taken for the cause.
        for rank in sorted(ended, key=lambda rank: rank.returncode is not None and rank.returncode >= 0):
            self._rank_ended(rank)
        while self._plan and self._plan[0][0] <= time.monotonic():
            self._ending = True
            self._signal_all(self._plan.pop(0)[1])

    def _rank_ended(self, rank: RankProcess) -> None:
        assert rank.returncode is not None
        assert self._segment is not None
        operation, sequence, call, pid, inside = self._segment.state(rank.number)
        if pid:
            rank.operation, rank.sequence, rank.call, rank.inside = operation, sequence, call, inside
        if not self.failures:
            # A failing rank may close its group long before its process ends.
            self._lost = self._segment.lost_rank()
        self._segment.mark_exited(rank.number, rank.returncode, rank.pid)
        if rank.returncode == 0 or self._ending or self.interrupted is not None:
            return
        if not self.failures:
            self.survivors = self._running()
            self._end_after_grace()
        self.failures.append(rank)

    def _running(self) -> int:
        return sum(rank.returncode is None for rank in self.ranks)

    def _end_after_grace(self) -> None:
        now = time.monotonic()
        self._plan = [(now + GRACE, signal.SIGTERM), (now + 2 * GRACE, signal.SIGKILL)]

    def _signal_all(self, signum: int) -> None:
        for rank in self.ranks:
            rank.signal_group(signum)

    def _leftovers(self) -> bool:
        """Whether the ranks' groups still have processes. Children of ours that have ended are reaped."""
        left = False
        for rank in self.ranks:
            rank.process.poll()
            try:
                while os.waitid(os.P_PGID, rank.pid, os.WEXITED | os.WNOHANG) is not None:
                    pass
            except ChildProcessError:
                pass  # none of them is a child of this process
            left = rank.signal_group(0) or left
        return left

    def _read(self, fd: int) -> bool:
        """Forward at most one piece of a pipe's content. Returns False if the pipe is empty or closed."""
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return False
        if data:
            self._output.feed(self._pipes[fd], data)
        else:
            self._end_pipe(fd)
        return bool(data)

    def _end_pipe(self, fd: int) -> None:
        self._selector.unregister(fd)
        self._output.end(self._pipes.pop(fd))

    def _woken(self, fd: int) -> None:
        os.read(fd, 4096)

    def _close(self) -> None:
        """End all processes that still run and release everything."""
        try:
            if not self._over:
                self._signal_all(signal.SIGTERM)
                deadline = time.monotonic() + GRACE
                while self._leftovers() and time.monotonic() < deadline:
                    time.sleep(0.01)
        finally:
            if not self._over:
                self._signal_all(signal.SIGKILL)
            with suppress(OSError):  # the reader of our output may be gone
                self._output.release()
            for rank in self.ranks:
                rank.process.wait()
                if rank.returncode is None and rank.pidfd >= 0:
                    os.close(rank.pidfd)
                for pipe in (rank.process.stdout, rank.process.stderr):
                    assert pipe is not None
                    pipe.close()
            if self._watchdog is not None:
                self._watchdog.kill()
                self._watchdog.communicate()
            self._segment = None  # unmapped now, even while a traceback keeps this object
            for fd in self._spans:
                os.close(fd)
            self._spans.clear()
            self._selector.close()
            self._port.close()
            os.close(self._wake_reader)
            os.close(self.wake_writer)
