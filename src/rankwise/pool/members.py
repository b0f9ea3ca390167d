"""The ranks of a pool that are the ranks of a group: rank 0 is the client, and the others serve."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import numpy as np

from rankwise.contract.errors import RankwiseError, UnsupportedError
from rankwise.contract.timeouts import LONGEST_TIMEOUT
from rankwise.contract.work import Work
from rankwise.group import default_group
from rankwise.group.group import Group
from rankwise.group.work import wait_all
from rankwise.pool import wire
from rankwise.pool.dealer import Dealer, Outcome, Task
from rankwise.pool.pickled import Call, PickledRanks, outcome
from rankwise.pool.serving import Server

CALLS, TASKS = 1, 2  # the tags of replies

_STOP = b"Z"


class Members(PickledRanks):
    """The ranks of `group` but for rank 0; collective. The pool numbers them from 0.

    On rank 0 it is what a dealer needs. A thread receives the results of tasks; it waits for a message only while a
    task runs. The launcher writes the ranks' output, and passes Ctrl-C on to all of them.
    """

    def __init__(self, group: Group, timeout: float | None) -> None:
        if group.world_size < 2:
            raise ValueError("group: it has one rank, which would have nobody to call; expected at least 2 ranks")
        super().__init__(group.world_size - 1)
        self._group = group
        self._control = group.dup("pool")
        self._control.timeout = LONGEST_TIMEOUT
        self._members = group.split(None if group.rank == 0 else 0, name="ranks of the pool")
        if self._members is not None and timeout is not None:
            self._members.timeout = timeout
        self._running = threading.Semaphore(0)  # the tasks whose replies have not come
        self._sending: dict[int, Work[None]] = {}  # by rank, its latest task, which it may not take for long
        self._ended = False
        self._thread = threading.Thread(target=self._receive, name="rankwise pool", daemon=True)

    # ---- on rank 0 ----

    def start(self, dealer: Dealer) -> None:
        self.dealer = dealer
        for rank in range(self.n):
            dealer.joined(rank)
        self._thread.start()

    def send_task(self, rank: int, task: Task) -> None:
        with suppress(RankwiseError):  # the thread that receives raises it too
            self._sending[rank] = self._send(rank, wire.TASK, task.number, task.call)
        self._running.release()

    def _call(self, kind: bytes, call: Call) -> list[Outcome]:
        try:
            wait_all([self._send(rank, kind, 0, call) for rank in range(self.n)])
            return [outcome(*self._control.recv_any(tag=CALLS).data[1]) for _ in range(self.n)]
        except BaseException as error:  # a rank is lost, or a signal handler raises: the replies fit no later call
            self.dealer.broke(error)
            raise

    def close(self, *, now: bool) -> None:
        self.end()
        if threading.current_thread() is not self._thread and not now:
            self._thread.join()
            self._control.close()

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            with suppress(RankwiseError):
                for rank in range(self.n):
                    self._control.send_object((_STOP, 0, []), rank + 1)
            self._running.release()

    def _send(self, rank: int, kind: bytes, number: int, call: Call) -> Work[None]:
        kind, parts = self._message(rank, kind, call)
        return self._control.isend_object((kind, number, [*map(_array, parts)]), rank + 1)

    def _receive(self) -> None:
        while True:
            self._running.acquire()
            if self._ended:
                return
            try:
                number, message = self._control.recv_any(tag=TASKS).data
            except BaseException as error:  # noqa: BLE001 - whoever waits for a task raises it
                self.dealer.broke(error)
                return
            self.dealer.answered([(number, outcome(*message), False)])

    # ---- on the others ----

    def serve(self) -> None:
        """Make the calls that rank 0 asks for, until it shuts the pool down."""
        members = self._members
        assert members is not None
        server = Server(self._meet)
        with default_group.rank_of_this_thread(members):
            while True:
                kind, number, parts = self._control.recv_object(0)
                if kind == _STOP:
                    break
                reply, parts = server.answer(kind, parts)
                answer: Any = (number, (members.rank, reply, [*map(_array, parts)]))
                self._control.send_object(answer, 0, TASKS if kind.upper() == wire.TASK else CALLS)
            last = default_group.current()
        for group in (last, self._control):
            if group is not None:
                group.close()

    def _meet(self) -> None:
        group = default_group.default_group()
        with suppress(UnsupportedError):  # over MPI they go on in the same group
            group.shrink()
            group.close()


def _array(part: Any) -> Any:
    """A part as plain data, which is sent without a copy if it is large."""
    return part if isinstance(part, bytes) else np.frombuffer(part, np.uint8)
