"""The ranks of a pool that are processes of this host: they are started, connected, replaced, and ended."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what the module signal is made of
import math
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import get_ident

from rankwise._native import version
from rankwise.contract.errors import ClosedError, PeerLostError, RankwiseError
from rankwise.launch.last_calls import quick_difference
from rankwise.launch.local import LocalJob
from rankwise.launch.losses import END, RESTART, Losses
from rankwise.launch.output import OutputMultiplexer
from rankwise.launch.rank_process import RankProcess
from rankwise.launch.spawn import died
from rankwise.pool import wire
from rankwise.pool.dealer import Dealer, Outcome, Part, Task
from rankwise.pool.pickled import Call, PickledRanks, outcome
from rankwise.system.settings import Settings

GRACE = 1.0  # seconds after the failure of a rank in which the others may end a call on their own
EXIT = 5.0  # seconds in which idle ranks may exit when the pool is shut down
PATIENCE = 0.005  # seconds without another thread that receives, after which the pool's does
QUICK = 1000  # microseconds of a task; a rank that does such a one gets further ones before it is done with the next
SMALL = 1 << 10  # bytes of a task that a rank may be sent while it does another
TRIES = 3  # how often in a row a replacement may die before it is ready

SIGINT, SIGKILL = int(signal.SIGINT), int(signal.SIGKILL)
_MAIN = threading.main_thread().ident

# The first code that a rank runs. It sets the client's sys.path, so that everything else can be imported.
_BOOT = """\
import pickle, sys
sys.path[:] = pickle.load(open('/proc/self/fd/' + sys.argv[1], 'rb'))
from rankwise.pool.serving import main
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


class _Connection:
    """Of a rank's process: its pid, the socket, and the rank's end of that, to take back what it has not begun.

    doorbell: wakes it when something was sent. It does not sleep on the socket, so that several messages wake it once.
    """

    def __init__(self, own_end: int, other_end: int, doorbell: int, pid: int) -> None:
        self.socket, self.rank_end = socket.socket(fileno=own_end), socket.socket(fileno=other_end)
        self.doorbell, self.pid = doorbell, pid

    def end(self) -> None:
        """Let the rank exit."""
        self.socket.shutdown(socket.SHUT_RDWR)
        os.eventfd_write(self.doorbell, 1)

    def close(self) -> None:
        self.socket.close()
        self.rank_end.close()
        os.close(self.doorbell)


class _Call(Part):
    """A call on all ranks. left: those that have not answered yet. changed: says that one has."""

    def __init__(self, left: set[int], outcomes: list[Outcome], changed: threading.Condition) -> None:
        self._left, self._outcomes, self._changed = left, outcomes, changed

    def settle(self, outcome: Outcome) -> None:
        with self._changed:
            self._outcomes.append(outcome)
            self._left.discard(outcome.rank)
            self._changed.notify_all()

    def fail(self, rank: int, error: BaseException) -> None:
        if not isinstance(error, PeerLostError):
            error = PeerLostError(f"the pool has ended: {error}", rank=rank)
        self.settle(Outcome(rank, lambda: None, error, lost=True))


class Processes(PickledRanks):
    """n ranks, each of them a process of this host.

    A thread of its own starts and watches them, and writes their output. It also receives their answers, but for those
    that come while another thread waits for one: that one then receives them all, which saves the time of two switches
    between threads.
    """

    def __init__(self, n: int, timeout: float | None) -> None:
        super().__init__(n)
        self._timeout = timeout
        self._patience = Settings.read().timeout if timeout is None else timeout
        self._connections: list[_Connection | None] = [None] * n
        self._deaths = [0] * n  # of replacements that were not ready, in a row
        self._gone: list[_Connection] = []  # of lost ranks; the thread that receives may be about to use them
        self._receiving = threading.RLock()  # held by the thread that receives
        self._depth = 0  # how often a thread that waits for an answer holds it: unpickling a result may wait for others
        self._answers = select.epoll()  # the ranks' sockets, and the doorbell
        self._ranks: dict[int, int] = {}  # by descriptor
        self._doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._answers.register(self._doorbell, select.EPOLLIN)
        self._for_the_pool = select.epoll()  # the above, unless another thread receives
        self._pool_receives = False  # whether it has the above
        self._let_pool_receive()
        self._pool_is_receiving = False  # whether the pool's thread receives just now
        self._handover_due = False  # whether the pool's thread is to look soon whether another one still receives
        self._last_received = 0.0  # when another thread has last received
        self._in_hand: deque[tuple[Part, Outcome]] = deque()  # answers that the thread that receives passes on
        self._output = OutputMultiplexer(sys.stdout, sys.stderr, alone=n == 1)
        self._job: LocalJob | None = None
        self._error: BaseException | None = None
        self._leaving = False  # whether the ranks are to exit
        self._wake_lock = threading.RLock()  # held while a thread is woken, and when the job ends
        self._job_lock = threading.Lock()  # held while a caller reads what the job has, and when the job ends
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
        with _Interrupt(lambda signum: None):  # so that nothing is done by half
            super().wake()

    def end(self) -> None:
        with self._wake_lock:
            if self._job is not None:
                os.write(self._job.wake_writer, b"\0")

    def small(self, call: Call) -> bool:
        return sum(map(len, call.parts)) <= SMALL

    def send_task(self, rank: int, task: Task) -> None:
        """If the rank is gone, the loss is noticed soon."""
        self._send(rank, wire.TASK, task.number, task.call)

    def sent(self, rank: int) -> None:
        if (connection := self._connections[rank]) is not None:
            os.eventfd_write(connection.doorbell, 1)

    def take_back(self, rank: int) -> list[int]:
        connection = self._connections[rank]
        numbers: list[int] = []
        with suppress(BlockingIOError):
            while connection is not None and (message := connection.rank_end.recv(wire.HEADER, wire.NOW)):
                numbers.append(wire.number_of(message))
                self._paths[rank] = None  # it may have been in this message
        return numbers

    def receive(self, task: Task, timeout: float | None) -> None:
        """Ctrl-C interrupts the task, which then has a moment to end."""
        count, end = 0, math.inf if timeout is None else time.monotonic() + timeout
        with _Interrupt(lambda signum: self.notify()) as interrupt, self._receiver() as receives:
            while receives and not task.done() and (end == math.inf or time.monotonic() < end):
                self._receive(end)
                if interrupt.count > count:
                    count = interrupt.count
                    self.dealer.interrupt(task)
                    end = min(end, time.monotonic() + GRACE)

    def notify(self) -> None:
        with self._wake_lock:
            if self._doorbell >= 0:
                os.eventfd_write(self._doorbell, 1)

    def help(self) -> None:
        with _Interrupt(lambda signum: None), self._receiver() as receives:
            if receives:
                self._receive(0.0)

    @contextmanager
    def _receiver(self) -> Iterator[bool]:
        """A context in which this thread receives all answers, unless another one does. Yields whether it does.

        The pool's thread goes on some time after it, so that the two do not change places at every call.
        """
        # If the pool's thread receives just now, it will soon have done so.
        if not self._receiving.acquire(timeout=PATIENCE if self._pool_is_receiving else 0.0):
            yield False
            return
        outer, passed_on = self._depth, False
        try:
            self._depth = outer + 1
            if self._pool_receives:
                self._pool_receives = False
                self._for_the_pool.unregister(self._answers)
            yield True
        finally:
            try:
                self._depth = outer
                if outer == 0:
                    self._pass_on()
                passed_on = True
            finally:
                self._depth = outer
                self._receiving.release()
                if not passed_on:  # another handler has raised an error after the one that ended the wait
                    self._handover_due = True
                    self.end()

    def _pass_on(self) -> None:
        """Let the pool's thread receive, in a moment if answers are to come."""
        self._close_gone()
        self._last_received = time.monotonic()
        if self.dealer.quiet():
            self._let_pool_receive()
        elif not self._handover_due:
            self._handover_due = True
            self.end()  # wakes the pool's thread

    def _let_pool_receive(self) -> None:
        """Let the pool's thread receive. For the thread that receives."""
        if not self._pool_receives:
            self._pool_receives = True
            self._for_the_pool.register(self._answers, select.EPOLLIN)

    def _receive(self, end: float) -> None:
        """Wait for answers until then, and give them to the dealer. For the thread that receives."""
        limit = None if end == math.inf else max(0.0, end - time.monotonic())
        ready = [] if self._in_hand else self._answers.poll(limit)
        self._answered([rank for fd, _ in ready if (rank := self._ranks.get(fd)) is not None], self._in_hand)
        if any(fd == self._doorbell for fd, _ in ready):
            with suppress(BlockingIOError):
                os.eventfd_read(self._doorbell)

    def _answered(self, ranks: list[int], in_hand: deque[tuple[Part, Outcome]]) -> None:
        """Give the answers of these ranks that have come to the dealer, and settle what is in hand."""
        answers = []
        try:
            for rank in ranks:
                left = self.dealer.tasks_of(rank)
                connection = self._connections[rank]
                with suppress(BlockingIOError):
                    while left and connection is not None and (message := wire.receive(connection.socket, wire.NOW)):
                        kind, took, number, parts = message
                        answers.append((number, outcome(rank, kind, parts), took <= QUICK))
                        left -= 1
            for rank in ranks:
                self._drain(rank)
            if answers:
                self.dealer.answered(answers, in_hand)
        except BaseException:  # of a signal handler: an answer may be lost, and so its rank is
            self.interrupt(ranks, SIGKILL)
            raise
        while in_hand:
            part, answer = in_hand.popleft()
            part.settle(answer)

    def _call(self, kind: bytes, call: Call) -> list[Outcome]:
        outcomes: list[Outcome] = []
        left = {*range(self.n)}  # the ranks that have not answered yet
        signals = [SIGKILL, SIGINT]  # for those that go on when one has failed, the last first
        number, end = next(self.dealer.numbers), math.inf
        with _Interrupt(lambda signum: self.interrupt(left, signum)) as interrupt, self._receiver() as receives:
            try:
                for rank in self.dealer.give_all(_Call(left, outcomes, self.dealer.changed), number):
                    self._send(rank, kind, number, call)
                    self.sent(rank)
                if interrupt.count:
                    self.interrupt(left)  # those whose call came after Ctrl-C
                while left:
                    failed = any(outcome.error is not None for outcome in outcomes)
                    if failed and end == math.inf and signals and not interrupt.count:
                        end = time.monotonic() + GRACE
                    if receives:
                        self._receive(end)
                    else:
                        with self.dealer.changed:
                            if left:
                                self.dealer.changed.wait(min(GRACE, max(0.0, end - time.monotonic())))
                    if time.monotonic() >= end:  # the others have had their time
                        self.interrupt(left, signals.pop())
                        end = time.monotonic() + self._patience if signals else math.inf
            except BaseException:  # of a signal handler
                self.interrupt(left)  # nobody waits for them any more
                raise
            self._drain()
        return outcomes

    def interrupt(self, ranks: Iterable[int], signum: int = SIGINT) -> None:
        """Send these ranks a signal; SIGINT interrupts the call in which a rank is. May run in a signal handler."""
        for rank in list(ranks):
            if (connection := self._connections[rank]) is not None:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(connection.pid, signum)

    def check(self) -> str:
        with self._job_lock:
            if self._job is None:
                return ""
            return quick_difference(self._job.segment_fd)

    def close(self, *, now: bool) -> None:
        with self._wake_lock:
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
            self.dealer.broke(error)
        finally:
            self._job_ends()
            self._started.set()
            if self._receiving.acquire(timeout=GRACE):
                self._gone += filter(None, self._connections)
                self._close_gone()
                for each in (self._for_the_pool, self._answers):
                    each.close()
                with self._wake_lock:
                    os.close(self._doorbell)
                    self._doorbell = -1

    def _start_and_serve(self) -> None:
        own_end, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with own_end, other_end, open(os.memfd_create("rankwise-pool"), "w+b") as boot:
            pickle.dump([os.path.abspath(entry) for entry in sys.path], boot)
            boot.flush()
            fds = [boot.fileno(), other_end.fileno()]
            argv = [sys.executable, "-c", _BOOT, *map(str, fds)]
            losses = _Replaced(self.n, self._rank_lost)
            job = LocalJob(
                argv, self.n, self._output, pass_fds=fds, backend="shm", timeout=self._timeout, losses=losses
            )
            with job:
                self._job = job
                job.listen(own_end.fileno(), lambda fd: self._connected(own_end))
                job.listen(self._for_the_pool.fileno(), lambda fd: self._receive_if_nobody_does())
                self._started.set()
                try:
                    self._serve(job, losses)
                finally:
                    self._job_ends()  # before the job closes its descriptors

    def _job_ends(self) -> None:
        with self._wake_lock, self._job_lock:
            self._job = None

    def _serve(self, job: LocalJob, losses: Losses) -> None:
        while job.running() and not (self.dealer.deal() or job.interrupted):
            job.step(self._wait_for_others() if self._handover_due else None)
        culprit = job.culprit
        self.dealer.broke(ClosedError("the pool has been shut down") if culprit is None else died(culprit))
        losses.stay = False
        self._leaving = True
        for connection in filter(None, self._connections):
            connection.end()
        job.unlisten(self._for_the_pool.fileno())
        end = time.monotonic() + EXIT
        while job.running() and time.monotonic() < end:
            job.step(end - time.monotonic())

    def _receive_if_nobody_does(self) -> None:
        self._pool_is_receiving = True
        if self._receiving.acquire(blocking=False):
            if self._pool_receives:
                self._receive(0.0)
            self._close_gone()
            self._receiving.release()
        self._pool_is_receiving = False

    def _wait_for_others(self) -> float | None:
        """How long the pool's thread may sleep. It is to receive if no other thread has done so for some time."""
        limit: float | None = PATIENCE
        self._pool_is_receiving = True
        if self._receiving.acquire(blocking=False):
            if self._pool_receives or time.monotonic() - self._last_received >= PATIENCE:
                self._let_pool_receive()
                self._handover_due, limit = False, None
            self._receiving.release()
        self._pool_is_receiving = False
        return limit

    def _connected(self, meeting: socket.socket) -> None:
        data, (own_end, other_end, doorbell), _, _ = socket.recv_fds(meeting, 256, 3)
        rank, pid, *versions = pickle.loads(data)
        if versions != [version]:
            release = f"rankwise {versions[0]}" if versions else "another version of rankwise"
            why = f"rank {rank} of the pool runs {release}, and this program still runs rankwise {version}"
            raise RankwiseError(f"{why}, which it loaded before; start the program again")
        connection = self._connections[rank] = _Connection(own_end, other_end, doorbell, pid)
        if self._leaving:
            connection.end()  # a replacement that was about to start
            return
        self._paths[rank], self._deaths[rank] = None, 0
        self._ranks[connection.socket.fileno()] = rank
        self._answers.register(connection.socket, select.EPOLLIN)
        self.dealer.joined(rank)

    def _rank_lost(self, rank: RankProcess) -> bool:
        """A process has ended. Whether another is to take its place."""
        number = rank.number
        connection = self._connections[number]
        if connection is not None:
            self._answers.unregister(connection.socket)
            del self._ranks[connection.socket.fileno()]
            self._answered([number], deque())  # it died after its task
        self.dealer.lost(number, died(rank))
        self._connections[number] = None
        if connection is not None:
            self._gone.append(connection)
        self._deaths[number] += connection is None
        return connection is not None or (rank.restart > 0 and self._deaths[number] < TRIES)

    # ---- both ----

    def _send(self, rank: int, kind: bytes, number: int, call: Call) -> None:
        """Never waits for the rank, which may be stopped: there is room for what it may be sent before it answers."""
        connection = self._connections[rank]
        if connection is None:
            return
        try:
            kind, parts = self._message(rank, kind, call)
            wire.send(connection.socket, kind, number, parts, wire.NOW)
        except ConnectionError:
            return  # that it has ended is noticed soon
        except BaseException:  # of a signal handler: perhaps it was not sent
            self.interrupt([rank], SIGKILL)
            raise

    def _close_gone(self) -> None:
        """For the thread that receives."""
        while self._gone:
            self._gone.pop().close()

    def _drain(self, rank: int | None = None) -> None:
        """Write what the ranks, or one of them, have printed."""
        if get_ident() == self._thread.ident:
            assert self._job is not None
            self._job.drain(rank)
            return
        with self._job_lock:
            if self._job is not None:
                self._job.drain(rank)


class _Interrupt:
    """A context in which Ctrl-C is passed on at once, and raised in this thread only when the block ends.

    So no message is ever lost. noted: called by the signal handler, with SIGINT, or SIGKILL from the second time on.
    """

    def __init__(self, noted: Callable[[int], object]) -> None:
        self.count = 0
        self._noted = noted
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
        if self.count and error[0] is None:
            raise KeyboardInterrupt

    def _note(self, signum: int, frame: object) -> None:
        self.count += 1
        self._noted(SIGINT if self.count == 1 else SIGKILL)
