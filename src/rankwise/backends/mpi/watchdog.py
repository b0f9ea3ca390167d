"""A thread that ends a call, or the job, when MPI itself would wait forever."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
import threading
import time
import weakref
from abc import abstractmethod
from types import TracebackType

from rankwise.backends.closing import OpenCommunicator
from rankwise.backends.mpi.fault_tolerance import REPORTS, Notices
from rankwise.contract.logger import logger


class Watched(OpenCommunicator):
    """A communicator whose calls are watched."""

    @property
    @abstractmethod
    def present_call(self) -> tuple[int, str] | None:
        """The number of the call that this rank is in, and the call as text, or None."""

    @abstractmethod
    def end_call(self) -> bool:
        """End the present call with an error. Returns False if that is impossible."""


class Watchdog:
    """Ends the job when MPI itself would wait forever.

    This happens when a collective takes longer than its group's timeout, and when a rank ends after an exception or
    with a failed group: MPI's Finalize would wait for ranks that wait for this one.

    If MPI tolerates faults (ULFM), the job goes on: the call ends with an error, and a rank that ends after an
    exception sends itself SIGKILL, because Open MPI's Abort hangs in such a job, and Open MPI reports only ranks that
    die of a signal as lost.
    """

    def __init__(self) -> None:
        self._watched: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._since: weakref.WeakKeyDictionary[Watched, tuple[int, float]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self._why = ""
        self.notices: Notices | None = None
        """The notices of the job, if MPI tolerates faults."""

    def watch(self, comm: Watched) -> None:
        with self._lock:
            self._watched.add(comm)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rankwise mpi watchdog", daemon=True)
                self._thread.start()
                self._pid = os.getpid()
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
            if comm.end_call():
                self._since[comm] = (sequence, now)
                return
            where = f"{present_call[1]} #{sequence}"
            logger().critical(
                "rank %d of %d has waited longer than %g s for other ranks in %s; MPI cannot cancel a call, so the "
                "%s is ended; the stacks of this rank:", comm.rank, comm.world_size, comm.timeout, where,
                "job" if self.notices is None else "rank",
            )  # fmt: skip
            faulthandler.dump_traceback(all_threads=True)
            self._end()

    def _uncaught(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        self._hook(kind, value, trace)
        if issubclass(kind, Exception):
            self.note_failure(f"{kind.__name__}: {value}")

    def _at_exit(self) -> None:
        from mpi4py import MPI

        if MPI.Is_finalized() or os.getpid() != self._pid:
            return
        # If all ranks are at their end, none waits for this one, which can then end with its own exit status.
        together = self.notices is not None and self.notices.all_end(REPORTS)
        if self._why and not together:
            logger().critical("the %s is ended: %s", "job" if self.notices is None else "rank", self._why)
            self._end()
        if self.notices is not None:
            self.notices.finalize()

    def _end(self) -> None:
        """End all ranks of the job, or only this one if MPI tolerates faults."""
        from mpi4py import MPI

        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_LAST_WORDS)
        if self.notices is None:
            MPI.COMM_WORLD.Abort(1)
        else:
            os.kill(os.getpid(), signal.SIGKILL)


_OFTEN, _SELDOM = 0.02, 1.0  # seconds between two checks of the watchdog
_LAST_WORDS = 0.3  # seconds before an Abort, since some mpiexecs then drop the ranks' last output

WATCHDOG = Watchdog()
