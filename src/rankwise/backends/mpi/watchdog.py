"""A thread that ends the job when MPI itself would wait for ever."""

from __future__ import annotations

import atexit
import faulthandler
import sys
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Protocol

from rankwise.backends.composed import calls
from rankwise.backends.composed.communicator import log


class Watched(Protocol):
    """A communicator whose calls are watched. present_call: the sequence number of its present call, and the call."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def timeout(self) -> float: ...
    @property
    def closed(self) -> bool: ...
    @property
    def present_call(self) -> tuple[int, tuple[Any, ...]] | None: ...
    def end_job(self) -> None: ...


class Watchdog:
    """Ends the job when MPI itself would wait for ever.

    This happens when a collective takes longer than its group's timeout, and when a rank ends after an exception or
    with a failed group: MPI's Finalize would wait for ranks that wait for this one.
    """

    def __init__(self) -> None:
        self._watched: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._since: weakref.WeakKeyDictionary[Watched, tuple[int, float]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self._why = ""

    def watch(self, comm: Watched) -> None:
        with self._lock:
            self._watched.add(comm)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rankwise mpi watchdog", daemon=True)
                self._thread.start()
                self._hook = sys.excepthook
                sys.excepthook = self._uncaught
                atexit.register(self._at_exit)

    def note_failure(self, why: str) -> None:
        self._why = self._why or why

    def _run(self) -> None:
        while True:
            with self._lock:
                watched = [comm for comm in self._watched if not comm.closed]
            shortest = min([comm.timeout for comm in watched], default=_SELDOM * 10)
            time.sleep(min(_SELDOM, max(_OFTEN, shortest / 10)))
            for comm in watched:
                self._check(comm)

    def _check(self, comm: Watched) -> None:
        now, present_call = time.monotonic(), comm.present_call
        if present_call is None:
            self._since.pop(comm, None)
            return
        sequence, since = self._since.setdefault(comm, (present_call[0], now))
        if sequence != present_call[0]:
            self._since[comm] = (present_call[0], now)
        elif now - since > comm.timeout:
            where = f"{calls.describe(present_call[1])} #{sequence}"
            log.critical(
                "rank %d of %d has waited longer than %g s for other ranks in %s; MPI cannot cancel a call, so the "
                "job is ended; the stacks of this rank:", comm.rank, comm.world_size, comm.timeout, where
            )  # fmt: skip
            faulthandler.dump_traceback(all_threads=True)
            time.sleep(_LAST_WORDS)
            comm.end_job()

    def _uncaught(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        self._hook(kind, value, trace)
        if issubclass(kind, Exception):
            self.note_failure(f"{kind.__name__}: {value}")

    def _at_exit(self) -> None:
        if not self._why:
            return
        from mpi4py import MPI

        if not MPI.Is_finalized():
            log.critical("the job is ended: %s", self._why)
            sys.stdout.flush()
            sys.stderr.flush()
            time.sleep(_LAST_WORDS)
            MPI.COMM_WORLD.Abort(1)


_OFTEN, _SELDOM = 0.02, 1.0  # seconds between two checks of the watchdog
_LAST_WORDS = 0.3  # seconds before an Abort, since some mpiexecs then drop the ranks' last output

WATCHDOG = Watchdog()
