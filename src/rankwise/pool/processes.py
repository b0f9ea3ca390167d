"""The ranks of a pool that are processes of this host: they are started, connected, replaced, and ended."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what the module signal is made of
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import get_ident

from rankwise._native import SegmentView
from rankwise.contract.errors import ClosedError, PeerLostError
from rankwise.launch.last_calls import difference, may_differ
from rankwise.launch.local import LocalJob
from rankwise.launch.losses import END, RESTART, Losses
from rankwise.launch.output import OutputMultiplexer
from rankwise.launch.rank_process import RankProcess
from rankwise.launch.spawn import died
from rankwise.pool import wire
from rankwise.pool.dealer import Dealer, Outcome, Task, TaskFuture
from rankwise.pool.pickled import Call, PickledRanks, outcome
from rankwise.system.settings import Settings

GRACE = 1.0  # seconds after the failure of a rank in which the others may end a call on their own
EXIT = 5.0  # seconds in which idle ranks may exit when the pool is shut down
TRIES = 3  # how often in a row a replacement may die before it is ready

SIGINT = int(signal.SIGINT)
_MAIN = threading.main_thread().ident

# The first code that a rank runs. It sets the client's sys.path, so that everything else can be imported.
_BOOT = """\
import pickle, sys
sys.path[:] = pickle.load(open('/proc/self/fd/' + sys.argv[1], 'rb'))
from rankwise.pool.worker import main
main(int(sys.argv[2]))
"""


class _Replaced(Losses):
    """The rule of a pool for lost ranks: each is replaced, however it ended, until the pool is shut down."""

    stay = True

    def __init__(self, n: int, lost: Callable[[RankProcess], bool]) -> None:
        super().__init__(n, restarts=1 << 30)
        self._lost = lost

    def add(self, rank: RankProcess) -> str:
        action = RESTART if self._lost(rank) else END
        self.all.append((rank, time.time(), action))
        return action

    def news(self, rank: RankProcess, action: str, others: int) -> str:
        return f"{rank.end}; another process takes its place, with an empty rw.local"


class Processes(PickledRanks):
    """n ranks, each of them a process of this host.

    A thread of its own starts and watches them, writes their output, and receives the results of tasks for which
    nobody waits yet. Whoever waits for a task or makes a call on all ranks sends and receives in its own thread, which
    saves the time of two switches between threads.
    """

    def __init__(self, n: int, timeout: float | None) -> None:
        super().__init__(n)
        self._timeout = timeout
        self._patience = Settings.read().timeout if timeout is None else timeout
        self._connections: list[socket.socket | None] = [None] * n
        self._pids = [0] * n
        self._deaths = [0] * n  # of replacements that were not ready, in a row
        self._lost: dict[int, PeerLostError] = {}  # in the present call on all ranks
        self._news = threading.Condition()  # of _lost
        # Of lost ranks; a call, or a thread that receives, may still wait for them.
        self._gone: list[socket.socket] = []
        self._receivers = 0  # threads that receive the answers to tasks, besides the pool's
        self._output = OutputMultiplexer(sys.stdout, sys.stderr, alone=n == 1)
        self._job: LocalJob | None = None
        self._view: SegmentView | None = None
        self._error: BaseException | None = None
        self._leaving = False  # whether the ranks are to exit
        self._open = threading.RLock()  # held while the pool's thread is woken, and when the job ends
        self._reading = threading.Lock()  # held while a caller reads what the job has, and when the job ends
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankwise pool", daemon=True)

    def start(self, dealer: Dealer) -> None:
        self.dealer = dealer
        self._thread.start()
        try:
            self._started.wait()
        except BaseException:
            self.close(now=True)
            raise
        if self._error is not None:
            raise self._error

    # ---- what the dealer asks for ----

    def here(self) -> None:
        self._output.here()

    def wake(self) -> None:
        """Deal tasks in this thread; the pool's thread ends the ranks."""
        with _Interrupt(lambda ranks, signum: None) as interrupt:  # a task is sent whole
            over = self.dealer.deal()
        if over:
            self.end()
        if interrupt.count:
            raise KeyboardInterrupt

    def end(self) -> None:
        with self._open:
            if self._job is not None:
                os.write(self._job.wake_writer, b"\0")

    def send_task(self, rank: int, task: Task) -> None:
        """If the rank is gone, the loss is noticed soon."""
        connection = self._connections[rank]
        with self._whole(rank):
            self._send(rank, wire.TASK, task.call)
            self._expect(rank, connection)

    def receive(self, future: TaskFuture, timeout: float | None) -> None:
        """Ctrl-C interrupts the task, which then has a moment to end."""
        with _Interrupt(lambda ranks, _: self.interrupt(ranks)) as interrupt:
            claimed = self.dealer.claim(future, self._claim)
            if claimed is not None:
                connection, rank, task = claimed
                interrupt.waiting[connection.fileno()] = rank
                reply = None
                try:
                    if _wait(connection, timeout, interrupt):
                        with self._whole(rank):
                            reply = wire.receive(connection)
                finally:
                    self._received(rank, connection, again=reply is None)
                    if reply is not None:
                        self._drain(rank)
                        self.dealer.answered(outcome(rank, *reply), task)
        if interrupt.count:
            raise KeyboardInterrupt

    def _expect(self, rank: int, connection: socket.socket | None) -> None:
        """Let the pool's thread receive the answer to a task. Not if the rank was lost meanwhile."""
        with self._news:
            if self._job is not None and connection is not None and connection is self._connections[rank]:
                self._job.listen(connection.fileno(), lambda fd: self._answered(rank, connection))

    def _claim(self, rank: int) -> socket.socket | None:
        """The rank's connection, for this thread to receive the answer, unless the pool's thread has begun to."""
        with self._news:
            connection = self._connections[rank]
            if self._job is None or connection is None or not self._job.unlisten(connection.fileno()):
                return None
            self._receivers += 1
            return connection

    def _received(self, rank: int, connection: socket.socket, *, again: bool) -> None:
        """The end of what `_claim` began. again: whether the pool's thread is to receive the answer after all."""
        if again:
            self._expect(rank, connection)
        with self._news:
            self._receivers -= 1
            self._news.notify_all()

    def _call(self, kind: bytes, call: Call) -> list[Outcome]:
        with self._news:
            connections = dict(enumerate(self._connections))
            for rank, connection in connections.items():
                if connection is not None:  # else it has just been lost, of which the dealer may not know yet
                    self._lost.pop(rank, None)
            self._close_gone()
        with _Interrupt(self.interrupt) as interrupt:
            ranks = interrupt.waiting
            poll = select.poll()
            outcomes: list[Outcome] = []
            try:
                for rank, connection in connections.items():
                    if connection is None:  # it died just now
                        continue
                    with self._whole(rank):
                        self._send(rank, kind, call)
                        ranks[connection.fileno()] = rank
                    poll.register(connection, select.POLLIN)
                if interrupt.count:
                    self.interrupt(ranks.values())  # those whose call came after Ctrl-C
                deadline: float | None = None
                signals = [int(signal.SIGKILL), SIGINT]  # for those that go on when one has failed, the last first
                while ranks:
                    limit = None if deadline is None else max(0.0, 1000 * (deadline - time.monotonic()))
                    ready = poll.poll(limit)
                    if not ready:  # the others have had their time
                        self.interrupt(ranks.values(), signals.pop())
                        deadline = time.monotonic() + self._patience if signals else None
                    for fd, _ in ready:
                        rank, connection = ranks[fd], connections[ranks[fd]]
                        with self._whole(rank):
                            reply = None if connection is None else wire.receive(connection)
                            del ranks[fd]
                        poll.unregister(fd)
                        if reply is not None:
                            del connections[rank]
                            outcomes.append(outcome(rank, *reply))
                        failed = reply is None or reply[0] == wire.ERROR
                        if failed and deadline is None and signals and not interrupt.count:
                            deadline = time.monotonic() + GRACE
            except BaseException:  # of a signal handler
                self._leave({rank: connections[rank] for rank in ranks.values()})
                raise
            outcomes += [self._loss(rank) for rank in connections]
        self._drain()
        if interrupt.count:
            raise KeyboardInterrupt
        return outcomes

    def _leave(self, connections: dict[int, socket.socket | None]) -> None:
        """Nobody waits for the present call of these ranks any more: it is interrupted, and its replies are dropped."""
        for rank, connection in connections.items():
            if connection is self._connections[rank]:
                self.dealer.leave(rank)
                self._expect(rank, connection)
        self.interrupt(connections)

    def interrupt(self, ranks: Iterable[int], signum: int = SIGINT) -> None:
        """Send these ranks a signal; SIGINT interrupts the call in which a rank is. May run in a signal handler."""
        for rank in list(ranks):
            try:
                if self._pids[rank]:
                    os.kill(self._pids[rank], signum)
            except ProcessLookupError:
                continue  # it has just ended

    def check(self) -> str:
        with self._reading:
            if self._job is None:
                return ""
            view = self._view = self._view or SegmentView(self._job.segment_fd)
            return difference(self._job.segment_fd, 0) if may_differ(view) else ""

    def close(self, *, now: bool) -> None:
        with self._open:
            if now and self._job is not None:
                self._job.interrupt(signal.SIGTERM)
                os.write(self._job.wake_writer, b"\0")  # the pool's thread sends the signal
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(3 * EXIT)

    # ---- the pool's thread ----

    def _run(self) -> None:
        try:
            self._start_and_serve()
        except BaseException as error:  # noqa: BLE001 - every error is raised in the client
            self._error = error
            self._broke(error)
        finally:
            self._job_ends()
            self._started.set()
            with self._news:
                self._news.wait_for(lambda: not self._receivers, GRACE)
                self._gone += filter(None, self._connections)
                self._close_gone()

    def _start_and_serve(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with ours, theirs, open(os.memfd_create("rankwise-pool"), "w+b") as boot:
            pickle.dump([os.path.abspath(entry) for entry in sys.path], boot)
            boot.flush()
            fds = [boot.fileno(), theirs.fileno()]
            argv = [sys.executable, "-c", _BOOT, *map(str, fds)]
            losses = _Replaced(self.n, self._rank_lost)
            job = LocalJob(
                argv, self.n, self._output, pass_fds=fds, backend="shm", timeout=self._timeout, losses=losses
            )
            with job:
                self._job = job
                job.listen(ours.fileno(), lambda fd: self._connected(ours))
                self._started.set()
                try:
                    self._serve(job, losses)
                finally:
                    self._job_ends()  # before the job closes its descriptors

    def _job_ends(self) -> None:
        with self._open, self._reading, self._news:
            self._job = None

    def _serve(self, job: LocalJob, losses: Losses) -> None:
        while job.running() and not (self.dealer.deal() or job.interrupted):
            job.step(None)
        culprit = job.culprit
        self._broke(ClosedError("the pool has been shut down") if culprit is None else died(culprit))
        losses.stay = False
        self._leaving = True
        for connection in self._connections:
            if connection is not None:
                job.unlisten(connection.fileno())
                connection.shutdown(socket.SHUT_RDWR)  # the rank exits
        end = time.monotonic() + EXIT
        while job.running() and time.monotonic() < end:
            job.step(end - time.monotonic())

    def _broke(self, error: BaseException) -> None:
        with self._news:
            for rank in range(self.n):
                self._lost.setdefault(rank, PeerLostError(f"the pool has ended: {error}", rank=rank))
            self._news.notify_all()
        self.dealer.broke(error)

    def _connected(self, meeting: socket.socket) -> None:
        data, (fd, *_), _, _ = socket.recv_fds(meeting, 256, 1)
        rank, pid = pickle.loads(data)
        self._connections[rank] = connection = socket.socket(fileno=fd)
        if self._leaving:
            connection.shutdown(socket.SHUT_RDWR)  # a replacement that was about to start
            return
        self._pids[rank], self._paths[rank], self._deaths[rank] = pid, None, 0
        self.dealer.joined(rank)

    def _answered(self, rank: int, connection: socket.socket) -> None:
        """The reply of a task has come, or the connection's end, unless another thread has received it meanwhile."""
        assert self._job is not None
        if not self._job.unlisten(connection.fileno()):
            return
        if not select.select([connection], [], [], 0)[0]:  # and the rank has another task already
            self._expect(rank, connection)
            return
        reply = wire.receive(connection)
        if reply is not None:
            self._job.drain(rank)
            self.dealer.answered(outcome(rank, *reply))

    def _rank_lost(self, rank: RankProcess) -> bool:
        """A process has ended. Whether another is to take its place."""
        number = rank.number
        self._pids[number] = 0
        with self._news:
            connection, self._connections[number] = self._connections[number], None
        ready = connection is not None
        if connection is not None:
            assert self._job is not None
            # Whoever waits for it learns of this even if its children keep the socket; what it sent can still be read.
            connection.shutdown(socket.SHUT_RDWR)
            if self._job.unlisten(connection.fileno()) and (reply := wire.receive(connection)) is not None:
                self.dealer.answered(outcome(number, *reply))  # it died after its task
            with self._news:
                self._gone.append(connection)
        error = died(rank)
        with self._news:
            self._lost[number] = error
            self._news.notify_all()
        self.dealer.lost(number, error)
        self._deaths[number] += not ready
        return ready or (rank.restart > 0 and self._deaths[number] < TRIES)

    # ---- both ----

    def _send(self, rank: int, kind: bytes, call: Call) -> None:
        """Never waits for the rank, which may be stopped: what it has no room for is sent by a thread."""
        connection = self._connections[rank]
        if connection is None:
            return
        with suppress(ConnectionError):  # if it has ended, that is noticed when its reply is read
            if left := wire.begin_to_send(connection, kind, self._message(rank, call)):
                threading.Thread(target=_send_all, args=(connection, left), daemon=True).start()

    @contextmanager
    def _whole(self, rank: int) -> Iterator[None]:
        """Within this context a message is sent or received; if a signal handler raises meanwhile, the rank is lost."""
        try:
            yield
        except BaseException:
            self.interrupt([rank], signal.SIGKILL)
            raise

    def _close_gone(self) -> None:
        while self._gone and not self._receivers:
            self._gone.pop().close()

    def _drain(self, rank: int | None = None) -> None:
        """Write what the ranks, or one of them, have printed; for threads other than the pool's."""
        with self._reading:
            if self._job is not None:
                self._job.drain(rank)

    def _loss(self, rank: int) -> Outcome:
        with self._news:
            self._news.wait_for(lambda: rank in self._lost, 10.0)
            error = self._lost.get(rank) or PeerLostError(f"rank {rank} has closed its connection", rank=rank)
        return Outcome(rank, lambda: None, error, lost=True)


def _send_all(connection: socket.socket, left: list[memoryview]) -> None:
    with suppress(OSError):  # the rank has ended
        for part in left:
            connection.sendall(part)


def _wait(connection: socket.socket, timeout: float | None, interrupt: _Interrupt) -> bool:
    """Wait until there is something to receive, for GRACE at most after Ctrl-C. Returns whether there is."""
    end = None if timeout is None else time.monotonic() + timeout
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while not interrupt.count and (end is None or time.monotonic() < end):
        left = GRACE if end is None else min(GRACE, max(0.0, end - time.monotonic()))
        if poll.poll(1000 * left):
            return True
    return False


class _Interrupt:
    """A context in which Ctrl-C interrupts the ranks' call instead of this thread, which goes on to wait for them.

    So no message is ever read by half. send: sends the ranks SIGINT, or SIGKILL the second time. waiting: the ranks
    in the call, by descriptor.
    """

    def __init__(self, send: Callable[[Iterable[int], int], None]) -> None:
        self.count = 0
        self.waiting: dict[int, int] = {}
        self._send = send
        self._replaced = False

    def __enter__(self) -> _Interrupt:
        # The functions of the module signal convert numbers to enums, which would take 20 us.
        if get_ident() == _MAIN and _signal.getsignal(SIGINT) is signal.default_int_handler:
            self._replaced = True
            _signal.signal(SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self._replaced:
            _signal.signal(SIGINT, signal.default_int_handler)

    def _note(self, signum: int, frame: object) -> None:
        self.count += 1
        self._send(self.waiting.values(), SIGINT if self.count == 1 else signal.SIGKILL)
