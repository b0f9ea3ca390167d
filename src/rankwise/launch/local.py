"""Starts the ranks of a job, or of one of its nodes, on this host and watches them until they end.

A rank's *group* is its process group, which contains every process that the rank started. To start fast, this file
imports neither NumPy nor dataclasses nor anything else that a job can do without.
"""

from __future__ import annotations

import errno
import os
import select
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from types import TracebackType

from rankwise._native import Segment, usable_cores
from rankwise.launch import rank_variables
from rankwise.launch.ending import Ending
from rankwise.launch.last_calls import difference
from rankwise.launch.limits import too_few_files
from rankwise.launch.losses import END, GO_ON, Losses
from rankwise.launch.output import OutputMultiplexer, OutputStream
from rankwise.launch.rank_process import (
    OWN_SESSION,
    SAME_SESSION,
    RankProcess,
    Watchdog,
    kill_strays,
    leave_terminal,
    leftovers,
    placed,
)
from rankwise.launch.standard_input import StandardInput
from rankwise.launch.terminal import Terminal
from rankwise.system.membership import DONE, LEFT_OUT, Membership
from rankwise.system.settings import FAILURES_MEMFD, OF_SOME_JOBS, SPANS_MEMFD, STATE_MEMFD, Settings

TYPE_CHECKING = False  # typing would take time to import
if TYPE_CHECKING:
    from rankwise.launch.nodes import Nodes

OWN_ERRORS = 0.1  # of the grace, in which the others may end by their own errors after a rank has failed
KILLED = 1.0  # seconds in which a killed process is gone
LAST_LINES = 5.0  # seconds that left-out ranks may still run after all others have ended
HOLD = 1.0  # seconds that a traceback is held back while its rank runs
QUIET = 0.1  # seconds without output after which an incomplete line is shown on a terminal
POLL = 0.02  # seconds after which ranks are asked whether they have ended, if no descriptor says so
PIECE = 1 << 16  # bytes read from a pipe at once
PIPE_LIMIT = 1 << 20  # bytes that a pipe can hold


class LocalJob:
    """The n ranks of a job, or of this node if the job has several: n processes of one command.

    `with LocalJob(...) as job:` starts them; at the end of the block none of their processes runs any more. In between,
    `wait` forwards their output and watches them. When one rank fails, the others are notified, get a moment to report
    their errors, and are ended.

    argv: the command, which is the same for every rank. stdin: the rank that inherits it, ALL, or None. pass_fds:
    descriptors that the ranks inherit, under the same numbers. backend, timeout: the ranks' RANKWISE_BACKEND and
    RANKWISE_TIMEOUT, if given. grace: seconds from the signal that ends a rank to SIGKILL, by default RANKWISE_GRACE.
    spans: whether to collect the spans of rankwise.trace. places: for each of the n ranks, the CPUs that it may use; by
    default those of this process. losses: what to do about a lost rank (by default the job ends), and which ranks were
    lost. nodes: the connections to the launchers of the other nodes, if there are any. fork: whether this process has
    only one thread, so that each rank can be forked and register with the watchdog before it runs its command.
    Otherwise a rank is registered a moment later, and the command itself must end if this process is killed in that
    moment.

    The caller has checked n and timeout. Raises ValueError for an invalid variable of the environment; MemoryError when
    there is no room for the shared memory; OSError when a process cannot be started, or this one may not open the files
    that so many ranks take.
    """

    def __init__(
        self,
        argv: Sequence[str],
        n: int,
        output: OutputMultiplexer,
        *,
        stdin: int | str | None = None,
        pass_fds: Sequence[int] = (),
        backend: str | None = None,
        timeout: float | None = None,
        grace: float | None = None,
        spans: bool = False,
        places: Sequence[Collection[int]] | None = None,
        losses: Losses | None = None,
        nodes: Nodes | None = None,
        fork: bool = False,
    ) -> None:
        self.ranks: list[RankProcess] = []
        """Each rank's process, or its last one if it was replaced."""
        self.losses = Losses(n) if losses is None else losses
        self.failures: list[RankProcess] = []
        """The ranks whose failure ended the job, before the launcher began to end ranks, in that order."""
        self.survivors = 0
        """How many ranks still ran at the first failure, or when `interrupt` was called."""
        self.interrupted: int | None = None  # the signal given to `interrupt`
        self.argv = list(argv)
        self._n = n
        self._output = output
        self._pass_fds = tuple(pass_fds)
        self._backend = backend
        self._timeout = timeout
        self._grace = Settings.read().grace if grace is None else grace
        self._places = places
        self._keep_spans = spans or (nodes is not None and nodes.spans)
        self.nodes = nodes
        self.first = 0 if nodes is None else nodes.first  # the number of the first of these ranks
        self._world_size = n if nodes is None else nodes.world_size
        self._fork = fork
        self._started: list[RankProcess] = []  # every process, those that were replaced too
        self._memories: list[dict[str, int]] = []  # each rank's own memfds, by environment variable
        self._failures_fd = os.memfd_create(FAILURES_MEMFD)  # in which ranks report why they failed
        self._membership = Membership()  # shared with the ranks if the job may go on after losses
        self._selector = selectors.DefaultSelector()
        self._wakeups = select.epoll()  # of the selector, which takes longer to ask
        self._wakeups.register(self._selector.fileno(), select.EPOLLIN)
        self._input = StandardInput(stdin, self._selector)
        self._handling = threading.RLock()  # held while events are handled
        self._polled: list[RankProcess] = []  # the running ranks of which no descriptor says when they end
        self._pipes: dict[int, OutputStream] = {}
        self._plan: list[tuple[float, int]] = []  # the signals to send, with their times
        self._ending = False  # the first of them has been sent
        self._left_out_until: float | None = None  # when ranks that were left out are ended, if no others run
        self._lost: int | None = None  # the rank that others had already lost at the first failure
        self._over = False  # no process of the ranks runs any more
        self._last_calls = ""  # how the last calls of the ranks differ, although none of them failed
        self._wake_reader, self.wake_writer = os.pipe()
        """A byte written to `wake_writer` wakes `wait` (see signal.set_wakeup_fd)."""
        self._secret = os.urandom(16).hex() if nodes is None else nodes.secret
        self._terminal = Terminal()
        self._segment: Segment  # from `_start` on, like the next one
        self._watchdog: Watchdog
        # Bound but never listening, which reserves the port so that rank 0 may listen on it. `nodes` has its own.
        self._port = socket.socket()

    def __enter__(self) -> LocalJob:
        try:
            self._start()
        except BaseException as error:
            # For each rank two pipes and a pidfd, and the memory of its spans and of its state.
            each = 3 + self._keep_spans + bool(self.losses.restarts)
            full = os.strerror(errno.EMFILE) in str(error)
            words = too_few_files(self._n, len(self.ranks), each) if full else ""
            self._close()
            if words:
                raise OSError(words) from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def culprit(self) -> RankProcess | None:
        """The rank to blame: the failed rank that the others lost, else the first that failed for its own reasons."""
        causes = [rank for rank in self.failures if not rank.failed_by_loss] or self.failures
        lost = [rank for rank in causes if rank.index == self._lost]
        return next(iter(lost or causes), None)

    @property
    def hang(self) -> str:
        """If a timeout was the cause: which rank did not come, then a line with the state of each rank; else ""."""
        culprit = self.culprit
        return "" if culprit is None else culprit.timeout

    @property
    def ending(self) -> Ending:
        """How the job ended. Its code: the blamed rank's, or 128 + its signal; 1 if last calls differ; else 0."""
        if self.nodes is not None and self.nodes.outcome is not None:
            return self.nodes.outcome
        rank = self.culprit
        ending = Ending(ranks=len(self.ranks), survivors=self.survivors, interrupted=self.interrupted)
        if rank is not None:
            ending.code = rank.code
            ending.reason = self.hang.splitlines()[0] if self.hang else self.losses.reason(rank)
            ending.hang = bool(self.hang)
            ending.failed_by_loss = rank.failed_by_loss
        elif self._last_calls and self.interrupted is None:
            ending.code, ending.reason = 1, self._last_calls
        else:
            ending.without, ending.again = self.losses.descriptions(), self.losses.again()
            ending.code = self.losses.code
        if self.interrupted is not None:
            ending.code = 128 + self.interrupted
        return ending

    def wait(self) -> None:
        """Return when all ranks and the processes they started have ended and their output is forwarded.

        With several nodes, it returns when the ranks of all nodes have ended.
        """
        while self.running():
            self.step(None)
        if leftovers(self._started):
            if not self._ending and self.interrupted is None:
                self._end(signal.SIGTERM)
            killed = self._plan[-1][0] if self._plan else time.monotonic()
            while leftovers(self._started) and time.monotonic() < killed + KILLED:
                self.step(0.01)
        self._over = True
        for fd in list(self._pipes):
            self._drain(fd)
        if not self.losses.all and self.interrupted is None:
            self._last_calls = difference(self.segment_fd, self.first)
        # The traceback of the rank to blame comes last.
        self._output.release(last=-1 if self.culprit is None else self.culprit.number)
        if self.nodes is not None:
            self.nodes.report(self.ending)
            while self.nodes.outcome is None:
                self.step(None)

    def interrupt(self, signum: int) -> None:
        """End the ranks with this signal, unless they are being ended already; `step` sends it.

        May be called from a signal handler.
        """
        if self.interrupted is None:
            self.interrupted = signum
            self.survivors = self.running()
            if not self._ending:
                self._end(signum)

    def pass_on(self, signum: int) -> None:
        """Send a signal to the process of each rank that runs. May be called from a signal handler."""
        for rank in self.ranks:
            if rank.returncode is None and rank.process.returncode is None:
                os.kill(rank.pid, signum)

    @property
    def segment_fd(self) -> int:
        """The descriptor of the job's shared memory, while the job is open."""
        return self._segment.fd

    def spans(self) -> list[bytes]:
        """Each rank's spans of rankwise.trace, while the job is open; complete once the rank has ended."""
        fds = [own["RANKWISE_TRACE_FD"] for own in self._memories if self._keep_spans]
        return [os.pread(fd, os.fstat(fd).st_size, 0) for fd in fds] or [b""] * len(self.ranks)

    def kill(self) -> None:
        """Kill every rank and all processes they started. May be called from a signal handler."""
        self._signal_all(signal.SIGKILL)

    def _start(self) -> None:
        if self.nodes is None:
            self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._port.bind(("127.0.0.1", 0))
            self._segment = segment = Segment.create(self._n)
        else:
            self._segment = segment = Segment.create(self._n, self.nodes.node, len(self.nodes.sizes))
        segment.announce_statuses()
        if self.losses.restarts:
            segment.announce_restarts()
        self._watchdog = Watchdog()
        self._terminal.open()
        self._listen(self._wake_reader, lambda fd: os.read(fd, 4096))
        for fd in () if self.nodes is None else self.nodes.fds():
            self._selector.register(fd, selectors.EVENT_READ, self._heard)
        own = [("RANKWISE_TRACE_FD", SPANS_MEMFD)] * self._keep_spans
        own += [("RANKWISE_STATE_FD", STATE_MEMFD)] * bool(self.losses.restarts)  # for rankwise.elastic
        self._memories = [{variable: os.memfd_create(name) for variable, name in own} for _ in range(self._n)]
        if self.losses.may_go_on:
            self._membership = Membership.create(self._world_size)
        for index in range(self._n):
            if self.interrupted is not None:
                break
            self.ranks.append(self._start_rank(index))
        self._input.read_on()
        if self.interrupted is not None:  # perhaps while a rank was being started, which was not counted
            self.survivors = max(self.survivors, self.running())

    def _start_rank(self, index: int, replaced: RankProcess | None = None) -> RankProcess:
        watchdog = self._watchdog

        def announce() -> None:
            leave_terminal()
            watchdog.add(os.getpid())

        number = self.first + index
        session = SAME_SESSION if self._n > usable_cores() else OWN_SESSION
        environment = self._environment(index, 0 if replaced is None else replaced.restart + 1)
        place = nullcontext() if self._places is None else placed(self._places[index])
        with place, self._input.of(number) as stdin:
            process = subprocess.Popen(
                self.argv,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=environment,
                pass_fds=(
                    self._segment.fd,
                    self._failures_fd,
                    *self._memories[index].values(),
                    *(() if self._membership.fd is None else (self._membership.fd,)),
                    *self._terminal.fds,
                    *self._pass_fds,
                ),
                **session,
                preexec_fn=announce if self._fork else None,  # runs in the new process, which is already in its group
            )
        host = "" if self.nodes is None else self.nodes.host
        rank = RankProcess(number, process, replaced, first=self.first, host=host)
        self._started.append(rank)
        if not self._fork:
            watchdog.add(rank.pid)
        if rank.open_pidfd():
            self._selector.register(rank.pidfd, selectors.EVENT_READ, rank)
        else:
            self._polled.append(rank)
        streams = self._output.add(number)
        rank.stderr = streams[1]
        for pipe, stream in zip(rank.pipes, streams, strict=True):
            self._pipes[pipe.fileno()] = stream
            self._listen(pipe.fileno(), self._read)
        return rank

    def _environment(self, index: int, restart: int) -> dict[str, str]:
        nodes = self.nodes
        master, node = (self._port.getsockname(), None) if nodes is None else (nodes.master, nodes.node)
        count = 1 if nodes is None else len(nodes.sizes)
        rank = self.first + index
        cores, users = usable_cores(), self._n
        if self._places is not None:
            place = self._places[index]
            cores, users = len(place), self._places.count(place)
        variables: dict[str, object] = {
            # OpenMP, MKL and OpenBLAS all respect it unless a more specific variable is set.
            "OMP_NUM_THREADS": max(1, cores // users),
            **os.environ,
            **dict.fromkeys(OF_SOME_JOBS),  # set by a launcher, or torchrun, around this one
            "RANKWISE_SEGMENT_FD": self._segment.fd,
            "RANKWISE_FAILURES_FD": self._failures_fd,
            "RANKWISE_LAUNCHER_PID": os.getpid(),
            "RANKWISE_SECRET": self._secret,
            "RANKWISE_MEMBERSHIP_FD": self._membership.fd,
            **self._memories[index],
            "RANKWISE_RESTART": restart if self.losses.restarts else None,
            "PYTHONUNBUFFERED": 1,  # lines come out as they are written
            **rank_variables.of_tuning(),
            **self._terminal.variables,
            **rank_variables.of_rank(rank, self._world_size, index, self._n, master, node, count),
        }
        if self._backend is not None:
            variables["RANKWISE_BACKEND"] = self._backend
        if self._timeout is not None:
            variables["RANKWISE_TIMEOUT"] = self._timeout
        return {name: str(value) for name, value in variables.items() if value is not None}

    def listen(self, fd: int, ready: Callable[[int], object]) -> None:
        """From now on, `step` calls `ready(fd)` whenever the descriptor is readable."""
        self._selector.register(fd, selectors.EVENT_READ, ready)

    def unlisten(self, fd: int) -> bool:
        """End that. Returns whether anybody listened."""
        try:
            self._selector.unregister(fd)
        except KeyError:
            return False
        return True

    def _listen(self, fd: int, ready: Callable[[int], object]) -> None:
        os.set_blocking(fd, False)
        self.listen(fd, ready)

    def drain(self, rank: int | None = None) -> None:
        """Write all that has been printed by this rank, which pauses, or by all of them. Any thread may call it."""
        for key, _ in self._selector.select(0) if self._wakeups.poll(0) else ():
            with self._handling:
                for _ in range(PIPE_LIMIT // PIECE):
                    if key.fd not in self._pipes or not self._read(key.fd):
                        break
        with self._handling:  # the other thread may still be writing what it has read
            self._output.flush(rank)

    def step(self, limit: float | None) -> None:
        """Sleep for at most `limit` seconds until an event happens or a signal is due, and handle it."""
        waits = [] if limit is None else [limit]
        due = [at for at, _ in self._plan[:1]] + ([] if self._left_out_until is None else [self._left_out_until])
        waits += [max(0.0, at - time.monotonic()) for at in due]
        holding = self._output.holds() and not self._plan  # while ranks are being ended all are held to the end
        if self._output.hides() or holding:
            waits.append(QUIET)
        if self._polled:
            waits.append(POLL)
        events = self._selector.select(min(waits, default=None))
        with self._handling:
            self._handle(events, holding)

    def _handle(self, events: list[tuple[selectors.SelectorKey, int]], holding: bool) -> None:
        if not events:
            self._output.quiet()
        if holding:
            self._output.release(before=time.monotonic() - HOLD)
        ended = [rank for rank in self._polled if rank.has_ended()]
        for key, _ in events:
            if isinstance(key.data, RankProcess):
                self._selector.unregister(key.fd)
                ended.append(key.data)
            else:
                key.data(key.fd)
        for rank in ended:
            rank.note_end()
        self._polled = [rank for rank in self._polled if rank.returncode is None]
        # If several ranks are found to have ended at once, a rank killed by a signal is taken for the cause.
        for rank in sorted(ended, key=lambda rank: rank.returncode is not None and rank.returncode >= 0):
            self._rank_ended(rank)
        if ended:
            self._left_out_until = time.monotonic() + LAST_LINES if self._only_left_out_run() else None
        if self._left_out_until is not None and self._left_out_until <= time.monotonic():
            self._left_out_until = None
            if not self._plan:  # they are not being ended already
                self._end_left_out()
        while self._plan and self._plan[0][0] <= time.monotonic():
            self._ending = True
            self._signal_all(self._plan.pop(0)[1])
        if self.nodes is not None:
            self._follow(self.nodes)

    def _rank_ended(self, rank: RankProcess) -> None:
        assert rank.returncode is not None
        operation, sequence, call, pid, inside = self._segment.state(rank.index)
        if pid not in (0, rank.joined_as):  # as long as a replacement has not joined, this is its predecessor's
            rank.operation, rank.sequence, rank.call, rank.inside = operation, sequence, call, inside
        if not self.failures:
            # A failing rank may close its group long before its process ends.
            self._lost = self._segment.lost_rank()
        rank.joined_as = pid or rank.pid
        rank.done = self._membership.of_rank(rank.number) == DONE
        if rank.returncode:
            rank.read_failure(self._failures_fd, self.segment_fd)
        self._segment.mark_ended(rank.index, rank.returncode, rank.pid, rank.restart)
        finished = rank.returncode == 0 and not self.losses.stay
        if finished:
            self._segment.give_up(rank.index)  # a replacement of another rank need not wait for this one
        if finished or (self._ending and not rank.left_out) or self.interrupted is not None:
            return
        # The ranks are being ended, perhaps because a rank of another node failed.
        if (self.failures or self._plan) and not rank.left_out:
            self.failures.append(rank)
        elif (action := self.losses.add(rank)) == END:
            self.survivors = self.running()
            self.failures.append(rank)
            self._end(signal.SIGTERM, OWN_ERRORS * self._grace)
        else:
            if self.nodes is not None:  # first, so that node 0 counts the losses in the order in which they are shown
                self.nodes.lose(rank.end, rank.code)
            self._go_on(rank, action)

    def _only_left_out_run(self) -> bool:
        """Whether ranks still run, but only ranks that the others left out."""
        run = [rank.number for rank in self.ranks if rank.returncode is None]
        return bool(run) and not self._plan and all(self._membership.of_rank(rank) == LEFT_OUT for rank in run)

    def _end_left_out(self) -> None:
        """End the ranks that still run. A stopped process acts on SIGTERM only once it is continued."""
        for rank in self.ranks:
            rank.left_out = rank.returncode is None
        now = time.monotonic()
        self._plan = [(now, signal.SIGTERM), (now, signal.SIGCONT), (now + self._grace, signal.SIGKILL)]

    def _follow(self, nodes: Nodes) -> None:
        """If this node ends its ranks, let the other nodes do so; if another node ends its ranks, end these too."""
        if self.interrupted is not None:
            nodes.end(self.interrupted)
        elif self.failures:
            nodes.end(0)
        if nodes.ending and self.interrupted is None:
            self.interrupt(nodes.ending)
        elif nodes.ending == 0 and not (self.failures or self._plan or self._ending):
            self.survivors = self.running()
            self._end(signal.SIGTERM, OWN_ERRORS * self._grace)

    def _go_on(self, rank: RankProcess, action: str) -> None:
        """The job goes on after this loss: end what the rank has left, and start it again or leave its place empty."""
        rank.signal_group(signal.SIGKILL)
        for pipe in rank.pipes:
            self._drain(pipe.fileno())
            pipe.close()
        self._output.forget(rank.number)
        self._output.note(f"rankwise: {self.losses.news(rank, action, self.running())}")
        if action == GO_ON:
            self._segment.give_up(rank.index)
            return
        try:
            self.ranks[rank.index] = self._start_rank(rank.index, rank)
            self._input.read_on()
        except OSError as error:
            why = f"rank {rank.number} could not be started again: {error.strerror}"
            raise OSError(error.errno, why) from error

    def running(self) -> int:
        return sum(rank.returncode is None for rank in self.ranks)

    def _end(self, signum: int, wait: float = 0.0) -> None:
        """Send this signal to all ranks `wait` seconds from now, once, and SIGKILL after the grace."""
        at = time.monotonic() + wait
        self._plan = [(at, signum), (at + self._grace, signal.SIGKILL)]

    def _signal_all(self, signum: int) -> None:
        for rank in () if self._over else self._started:  # once they are over, their pids may be other processes'
            rank.signal_group(signum)

    def _read(self, fd: int) -> bool:
        """Forward at most one piece of a pipe's content. Returns False if the pipe is empty or closed."""
        if fd not in self._pipes:  # `drain` has ended it since `step` found something in it
            return False
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return False
        if data:
            self._output.feed(self._pipes[fd], data)
        else:
            self._end_pipe(fd)
        return bool(data)

    def _drain(self, fd: int) -> None:
        """Forward what is left in a pipe, and end it even if a process that left its group holds it open."""
        for _ in range(PIPE_LIMIT // PIECE):
            if fd not in self._pipes or not self._read(fd):
                break
        if fd in self._pipes:
            self._end_pipe(fd)

    def _end_pipe(self, fd: int) -> None:
        self._selector.unregister(fd)
        self._output.end(self._pipes.pop(fd))

    def _heard(self, fd: int) -> None:
        assert self.nodes is not None
        if not self.nodes.receive(fd):
            self._selector.unregister(fd)

    def _close(self) -> None:
        """End all processes that still run and release everything."""
        try:
            if not self._over:
                if not self._ending:
                    self._signal_all(signal.SIGTERM)
                deadline = time.monotonic() + self._grace
                while leftovers(self._started) and time.monotonic() < deadline:
                    time.sleep(0.01)
        finally:
            if not self._over:
                self._signal_all(signal.SIGKILL)
            kill_strays(self._secret)
            with suppress(OSError):  # the reader of our output may be gone
                self._output.release()
            for rank in self._started:
                rank.process.wait()
                if rank.returncode is None and rank.pidfd >= 0:
                    os.close(rank.pidfd)
                for pipe in rank.pipes:
                    pipe.close()
            if hasattr(self, "_watchdog"):
                self._watchdog.end()
            vars(self).pop("_segment", None)  # unmapped now, even while a traceback keeps this object
            self._membership.close()
            self._terminal.close()
            self._input.close()
            for fd in (self._failures_fd, *(fd for own in self._memories for fd in own.values())):
                os.close(fd)
            self._memories.clear()
            for each in (self._wakeups, self._selector, self._port):
                each.close()
            os.close(self._wake_reader)
            os.close(self.wake_writer)
