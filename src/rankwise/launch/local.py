"""Starting the ranks of a job on this host and watching them to their end.

Words: a rank's *group* is its process group, with all that the rank started. The *keeper* is a
shell that does nothing but wait for this process to die; should that happen before the job's end,
however it happens, it kills the groups. This file imports no NumPy, no dataclasses and nothing that
a job does without: the launcher starts fast.
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
from rankwise.contract.settings import SPANS_MEMFD
from rankwise.launch.output import Relay, Stream

TYPE_CHECKING = False  # without importing typing, which takes time
if TYPE_CHECKING:
    from typing import Any

GRACE = 1.0  # seconds that ranks have to end by themselves, and again between SIGTERM and SIGKILL
HOLD = 1.0  # seconds that a traceback is held back while its rank runs
QUIET = 0.1  # seconds without output after which an incomplete line is shown on a terminal
PIECE = 1 << 16  # bytes read from a pipe at once
PIPE_LIMIT = 1 << 20  # bytes that a pipe can hold

# Reads process ids, a line each, until its input ends; that happens when the launcher is no more, nor a rank that
# has yet to run its command.
_KEEPER = 'groups=; while read -r pid; do groups="$groups -$pid"; done; [ -z "$groups" ] || kill -KILL $groups'

# How a rank gets a group of its own. Ranks that share cores stay in the launcher's session: where the kernel schedules
# by session (autogroup), those of different ones cannot give each other a core. Before Python 3.11 they cannot stay.
_OWN_SESSION: dict[str, Any] = {"start_new_session": True}
_SAME_SESSION: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else _OWN_SESSION

# How Python prints the errors of which another rank is the cause; NumPy is not imported for their classes.
_LOST = "rankwise.contract.errors.PeerLostError: "
_TIMED_OUT = "rankwise.contract.errors.CollectiveTimeout: "


def _leave_terminal() -> None:
    """A session's terminal stops who reads from it in the background, unless it has given it up."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return  # there is none
    fcntl.ioctl(terminal, termios.TIOCNOTTY)
    os.close(terminal)


class Rank:
    """One rank's process, and once it has ended, how and where.

    returncode: exit status, or minus the signal; None while it runs. operation, sequence: what it
    was in or did last, empty if it never joined the others; call: both in words; inside: whether it was
    inside it. error: what its last traceback is about, "ValueError: bad" and the indented lines after
    it, empty without one; known when the job is over.
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
        """Take down how the process ended. It is not reaped yet: so long its pid, and its group's, are its own."""
        end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert end is not None
        self.returncode = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        os.close(self.pidfd)

    def signal_group(self, signum: int) -> bool:
        """Send a signal to all of the rank's group; 0 sends none. False where nobody is left."""
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


class Job:
    """The n ranks of one job: n processes of one command.

    `with Job(...) as job:` starts them, and at its end nothing of them runs any more. In between,
    `wait` passes on their output and watches them. When one fails, the others are told, have a
    moment to say what they have to say, and are ended.

    argv: the command; every rank runs the same. stdin: whether rank 0 inherits it. pass_fds:
    descriptors that the ranks inherit, under the same numbers. backend, timeout: what the ranks
    take as RANKWISE_BACKEND and RANKWISE_TIMEOUT, where given. spans: whether what the program adds
    by rankwise.trace is kept for `trace`. fork: whether this process has one thread, so that the ranks
    can be forked and each tell the keeper of itself before it runs its command. Without, the keeper
    is told a moment later, and a command must see to it itself that it ends should this process
    be killed in that moment.

    Raises ValueError for n below 1 or a timeout that is not above 0; MemoryError when there is no room
    for the shared memory; OSError when a process cannot be started, or this one may not open the files
    that so many ranks take.
    """

    def __init__(
        self,
        argv: Sequence[str],
        n: int,
        relay: Relay,
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
        if timeout is not None and not 0 < timeout < float("inf"):
            raise ValueError(f"timeout={timeout:g}: expected a number of seconds above 0")
        self.ranks: list[Rank] = []
        self.failures: list[Rank] = []
        """Ranks that failed before any was being ended, in that order."""
        self.survivors = 0
        """How many ranks still ran at the first failure, or when `interrupt` was called."""
        self.interrupted: int | None = None
        """The signal given to `interrupt`."""
        self.argv = list(argv)
        self._n = n
        self._relay = relay
        self._stdin = stdin
        self._pass_fds = tuple(pass_fds)
        self._backend = backend
        self._timeout = timeout
        self._keep_spans = spans
        self._fork = fork
        self._spans: list[int] = []  # for each rank a memfd, where they are kept
        self._selector = selectors.DefaultSelector()
        self._pipes: dict[int, Stream] = {}
        self._plan: list[tuple[float, int]] = []  # signals to send, each with its time
        self._ending = False  # the first of them has been sent
        self._lost: int | None = None  # the rank that others had lost already at the first failure
        self._over = False  # nothing of the ranks runs any more
        self._wake_reader, self.wake_writer = os.pipe()
        """A byte written to `wake_writer` ends the present sleep of `wait` (signal.set_wakeup_fd)."""
        self._secret = os.urandom(16).hex()
        self._segment: Segment | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        # Bound and never listening: rank 0 may listen there, and nobody else is given the port.
        self._port = socket.socket()

    def __enter__(self) -> Job:
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
    def culprit(self) -> Rank | None:
        """The rank to blame: the failed one that the others lost, else the first to end but for losing another."""
        for rank in self.failures:
            if rank.number == self._lost:
                return rank
        causes = [rank for rank in self.failures if not rank.error.startswith(_LOST)]
        return next(iter(causes or self.failures), None)

    @property
    def hang(self) -> str:
        """Where a timeout is the cause: which rank did not come, and in more lines the state of all; else ""."""
        culprit = self.culprit
        return culprit.error.removeprefix(_TIMED_OUT) if culprit and culprit.error.startswith(_TIMED_OUT) else ""

    @property
    def exit_code(self) -> int:
        """That of the rank to blame, 128 + signal for a signal; 0 where all went well."""
        if self.interrupted is not None:
            return 128 + self.interrupted
        if self.culprit is None:
            return 0
        code = self.culprit.returncode
        assert code is not None
        return code if code > 0 else 128 - code

    def wait(self) -> None:
        """Return when every rank has ended, and all they started, and their output is passed on."""
        while self._running():
            self._turn(None)
        if self._leftovers():
            now = time.monotonic()
            self._plan = [(now, signal.SIGTERM), (now + GRACE, signal.SIGKILL)]
            while self._leftovers() and time.monotonic() < now + 2 * GRACE:
                self._turn(0.01)
        self._over = True
        for fd in list(self._pipes):
            for _ in range(PIPE_LIMIT // PIECE):
                if not self._read(fd):
                    break
            if fd in self._pipes:  # held open by a process that left its group
                self._end_pipe(fd)
        for rank in self.failures:
            rank.error = self._relay.error(rank.number)
        # The traceback of the rank to blame is the last on the screen.
        self._relay.release(last=-1 if self.culprit is None else self.culprit.number)

    def interrupt(self, signum: int) -> None:
        """Pass a signal on to the ranks; those that it does not end are ended a moment later.

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
        """Kill every rank and all they started. May be called from a signal handler."""
        self._signal_all(signal.SIGKILL)

    def _start(self) -> None:
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("127.0.0.1", 0))
        self._segment = segment = Segment.create(self._n)
        segment.announce_statuses()
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # a signal to the launcher's group must not end it
            bufsize=0,
        )
        assert self._keeper.stdin is not None
        kept = self._keeper.stdin.fileno()

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
                preexec_fn=announce if self._fork else None,  # in the new process, already of that group
            )
            rank = Rank(number, process)
            self.ranks.append(rank)
            if not self._fork:
                os.write(kept, b"%d\n" % rank.pid)
            rank.pidfd = os.pidfd_open(rank.pid)
            self._selector.register(rank.pidfd, selectors.EVENT_READ, rank)
            for pipe, stream in zip((process.stdout, process.stderr), self._relay.add(number), strict=True):
                assert pipe is not None
                self._pipes[pipe.fileno()] = stream
                self._listen(pipe.fileno(), self._read)

    def _too_many_files(self) -> str:
        """What the ranks take of this process's limit on open files, in words."""
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        each = 4 if self._keep_spans else 3  # two pipes and a pidfd, and the memory of its spans
        needed = limit + each * (self._n - len(self.ranks))
        return (
            f"{self._n} ranks take about {needed} open files in the process that starts them, and {limit} are allowed; "
            f"`ulimit -n {needed}` before the command raises that"
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
            # The same as torch.distributed reads it ("env://").
            RANK=str(number),
            WORLD_SIZE=str(self._n),
            LOCAL_RANK=str(number),
            LOCAL_WORLD_SIZE=str(self._n),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(self._port.getsockname()[1]),
        )
        env.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # of a torchrun round us
        env.pop("RANKWISE_TRACE_FD", None)  # of a rank round us
        if self._spans:
            env["RANKWISE_TRACE_FD"] = str(self._spans[number])
        if self._backend is not None:
            env["RANKWISE_BACKEND"] = self._backend
        if self._timeout is not None:
            env["RANKWISE_TIMEOUT"] = repr(self._timeout)
        # OpenMP, MKL and OpenBLAS all heed it where nothing more special is set.
        env.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // self._n)))
        return env

    def _listen(self, fd: int, ready: Callable[[int], object]) -> None:
        os.set_blocking(fd, False)
        self._selector.register(fd, selectors.EVENT_READ, ready)

    def _turn(self, limit: float | None) -> None:
        """Sleep until something happens or is due, for `limit` seconds at most, and deal with it."""
        waits = [] if limit is None else [limit]
        if self._plan:
            waits.append(max(0.0, self._plan[0][0] - time.monotonic()))
        holding = self._relay.holds() and not self._plan  # while ranks are being ended all are held to the end
        if self._relay.hides() or holding:
            waits.append(QUIET)
        events = self._selector.select(min(waits, default=None))
        if not events:
            self._relay.quiet()
        if holding:
            self._relay.release(before=time.monotonic() - HOLD)
        ended: list[Rank] = []
        for key, _ in events:
            if isinstance(key.data, Rank):
                self._selector.unregister(key.fd)
                key.data.note_end()
                ended.append(key.data)
            else:
                key.data(key.fd)
        # Of ranks seen to have ended at once, one killed by a signal is the cause, the others the effect.
        for rank in sorted(ended, key=lambda rank: rank.returncode is not None and rank.returncode >= 0):
            self._rank_ended(rank)
        while self._plan and self._plan[0][0] <= time.monotonic():
            self._ending = True
            self._signal_all(self._plan.pop(0)[1])

    def _rank_ended(self, rank: Rank) -> None:
        assert rank.returncode is not None
        assert self._segment is not None
        operation, sequence, call, pid, inside = self._segment.state(rank.number)
        if pid:
            rank.operation, rank.sequence, rank.call, rank.inside = operation, sequence, call, inside
        if not self.failures:
            # A rank that fails may close its group long before its process is gone.
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
        """Whether processes of the ranks' groups live on. Those that ended are reaped, where they are ours."""
        left = False
        for rank in self.ranks:
            rank.process.poll()
            try:
                while os.waitid(os.P_PGID, rank.pid, os.WEXITED | os.WNOHANG) is not None:
                    pass
            except ChildProcessError:
                pass  # none of them is our child
            left = rank.signal_group(0) or left
        return left

    def _read(self, fd: int) -> bool:
        """Pass on what a pipe holds, a piece at most; False when there is nothing or never will be."""
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return False
        if data:
            self._relay.feed(self._pipes[fd], data)
        else:
            self._end_pipe(fd)
        return bool(data)

    def _end_pipe(self, fd: int) -> None:
        self._selector.unregister(fd)
        self._relay.end(self._pipes.pop(fd))

    def _woken(self, fd: int) -> None:
        os.read(fd, 4096)

    def _close(self) -> None:
        """End what still runs and release everything."""
        try:
            if not self._over:
                self._signal_all(signal.SIGTERM)
                deadline = time.monotonic() + GRACE
                while self._leftovers() and time.monotonic() < deadline:
                    time.sleep(0.01)
        finally:
            if not self._over:
                self._signal_all(signal.SIGKILL)
            with suppress(OSError):  # who read our output may be gone
                self._relay.release()
            for rank in self.ranks:
                rank.process.wait()
                if rank.returncode is None and rank.pidfd >= 0:
                    os.close(rank.pidfd)
                for pipe in (rank.process.stdout, rank.process.stderr):
                    assert pipe is not None
                    pipe.close()
            if self._keeper is not None:
                self._keeper.kill()
                self._keeper.communicate()
            self._segment = None  # unmapped now, even while a traceback keeps this object
            for fd in self._spans:
                os.close(fd)
            self._spans.clear()
            self._selector.close()
            self._port.close()
            os.close(self._wake_reader)
            os.close(self.wake_writer)
