"""MPI's extension for fault tolerance (ULFM): how ranks go on after a loss, and find out why a group failed.

If a rank is lost, only the ranks that wait for it learn of it from MPI. So the first of them *revokes* MPI's
communicator, which ends every rank's pending and later calls on it. MPI does not say why a communicator was revoked, so
each rank sends the others a *notice* that does, over a communicator of the whole job that is never revoked.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rankwise.backends.composed.calls import timed_out
from rankwise.contract.errors import PeerLostError, RankwiseError, error_of
from rankwise.contract.failure import Failure
from rankwise.contract.failure_kinds import LOST

if TYPE_CHECKING:
    from mpi4py import MPI

REPORTS = 1.0  # seconds for which a rank waits for the notices of the other ranks of a failed group
POLL = 0.002  # seconds between two polls for notices
TAG = 0
ENDING = ""  # in a notice, in place of a group's name: the program of this rank has ended
FT_ENABLED = "OMPI_MCA_mpi_ft_enable"  # set by mpiexec --with-ft ulfm


def before_mpi() -> None:
    """Leave MPI's Finalize to `Notices.finalize`, if fault tolerance is requested and MPI is not yet initialized."""
    if _requested() and "mpi4py.MPI" not in sys.modules:
        import mpi4py

        mpi4py.rc.finalize = False


def enabled(mpi: Any) -> bool:
    """Whether MPI reports lost ranks in this job. Open MPI always has the functions, but reports only on request."""
    return _requested() and hasattr(mpi.Comm, "Ack_failed") and mpi.Query_thread() == mpi.THREAD_MULTIPLE


def _requested() -> bool:
    return os.environ.get(FT_ENABLED, "0").lower() in ("1", "true", "yes", "enabled", "on", "y", "t")


class Notices:
    """The notices that this process sends and receives about its groups.

    A notice is {"group": the group's name, "call": the call in which its sender was, "lost": the ranks that the sender
    knows to be lost, "failure": why the group failed, or None}. A group has the same name on all its ranks. Only the
    last notice of each rank about a group counts. The methods number the ranks as the job does.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        """comm: a communicator of all ranks of the job, which this object owns from then on."""
        from mpi4py import MPI

        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.mpi, self.comm = MPI, comm
        self._lock = threading.Lock()
        self._sent: list[Any] = []  # requests, which keep their messages alive
        self._received: dict[str, dict[int, dict[str, Any]]] = {}
        self._worlds = 0

    def world(self) -> tuple[MPI.Intracomm, FaultTolerance]:
        """A new communicator of all ranks of the job. Collective."""
        self._worlds += 1
        world = self.mpi.COMM_WORLD
        parent = FaultTolerance(world, self, str(self._worlds))
        comm = parent.make(world.Dup)
        return comm, parent.part(comm)

    def send(self, ranks: Sequence[int], notice: dict[str, Any]) -> None:
        message = json.dumps(notice, default=str).encode()
        for rank in ranks:
            with suppress(self.mpi.Exception):  # it is lost
                self._sent.append(self.comm.Isend(message, rank, TAG))

    def received(self, ranks: Sequence[int], group: str) -> dict[int, dict[str, Any]]:
        """By rank, the notices of this group that these ranks have sent so far."""
        with self._lock:
            self._sent = [request for request in self._sent if not self._complete(request)]
            for rank in ranks:
                with suppress(self.mpi.Exception):
                    while self.comm.Iprobe(rank, TAG):
                        self._take(rank)
            return dict(self._received.get(group, {}))

    def _complete(self, request: Any) -> bool:
        try:
            return bool(request.Test())
        except self.mpi.Exception:
            return True

    def _take(self, rank: int) -> None:
        status = self.mpi.Status()
        self.comm.Probe(rank, TAG, status)
        message = bytearray(status.Get_count(self.mpi.BYTE))
        self.comm.Recv(message, rank, TAG)
        notice = json.loads(message)
        self._received.setdefault(notice["group"], {})[rank] = notice

    def all_end(self, seconds: float) -> bool:
        """Whether all living ranks reach the end of their programs within `seconds`; each calls this at its own end."""
        others = [rank for rank in range(self.comm.size) if rank != self.comm.rank]
        self.send(others, {"group": ENDING})
        end = time.monotonic() + seconds
        while set(others) - set(self.received(others, ENDING)) - set(lost(self.comm)):
            if time.monotonic() > end:
                return False
            time.sleep(POLL)
        return True

    def finalize(self) -> None:
        """Call MPI's Finalize, unless a rank is lost, for which Open MPI would sometimes wait forever."""
        import mpi4py

        if not mpi4py.rc.finalize and not lost(self.comm):
            self.mpi.Finalize()


class FaultTolerance:
    """What ULFM does for one communicator of MPI, on which a group of rankwise with this name runs."""

    def __init__(self, comm: MPI.Intracomm, notices: Notices, name: str) -> None:
        self._mpi, self._comm, self._notices, self._name = notices.mpi, comm, notices, name
        self._rank = comm.rank
        self._world_ranks = list(comm.Get_group().Translate_ranks(None, notices.comm.Get_group()))
        self._others = [world for rank, world in enumerate(self._world_ranks) if rank != self._rank]
        self._parts = 0
        self._along: list[MPI.Intracomm] = []
        self._reported: set[int] = set()  # the ranks that are lost according to the others' notices
        self.overdue = False
        """Whether a call took longer than the timeout, so that `end_call` has ended it."""

    def part(self, comm: MPI.Intracomm) -> FaultTolerance:
        """The FaultTolerance of a communicator that `make` has just made."""
        return FaultTolerance(comm, self._notices, f"{self._name}.{self._parts}")

    def make(self, make: Callable[[], MPI.Intracomm]) -> MPI.Intracomm:
        """Call `make`, with which all living ranks make a new communicator. Either all of them get it, or none.

        Open MPI crashes if a communicator is revoked while a rank is still making it, so no rank uses it before all
        have made it. Raises PeerLostError if a rank is lost meanwhile, unless all others have made the communicator.
        """
        self._parts += 1
        made, why = None, None
        try:
            made = make()
        except self._mpi.Exception as error:
            why = error
            self._comm.Revoke()  # so that no rank waits in `make` for this one
        if self.agree(made is not None):
            return made
        if made:  # not COMM_NULL
            made.Free()
        raise self._peer_lost("making a communicator") from why

    def make_along(self, make: Callable[[], MPI.Intracomm]) -> MPI.Intracomm:
        """As `make`, a communicator for calls of the same group: it is revoked together with this one."""
        comm = self.make(make)
        self._along.append(comm)
        return comm

    def lost(self) -> list[int]:
        """The ranks of this communicator that are known to be lost."""
        return sorted(self._reported.union(lost(self._comm)))

    def agree(self, flag: int) -> int:
        """The AND of 64 bits over the living ranks, in two agreements of 32.

        An agreement fails on all ranks unless all ranks had acknowledged the losses before; then all repeat both.
        """
        while True:
            self._comm.Ack_failed()
            try:
                low, high = (self._comm.Agree(_c_int(flag >> shift)) for shift in (0, 32))
            except self._mpi.Exception as error:
                if error.Get_error_class() != self._mpi.ERR_PROC_FAILED:
                    raise
                continue
            return int(high << 32 | low & 0xFFFFFFFF)

    def shrink(self) -> tuple[MPI.Intracomm, tuple[int, ...]]:
        """A new communicator of the living ranks, and their numbers in this one."""
        while True:
            with suppress(PeerLostError):  # during the call
                comm = self.make(self._comm.Shrink)
                return comm, tuple(comm.Get_group().Translate_ranks(None, self._comm.Get_group()))

    def end_call(self) -> bool:
        """End this rank's present call, which has taken longer than the timeout. False if that was tried before."""
        if self.overdue:
            return False
        self.overdue = True
        self._revoke()
        return True

    def fail(self, error: RankwiseError) -> None:
        """The group has failed with this error: tell the other ranks why, and end their calls."""
        self._notify("", error.failure.to_json())
        self._revoke()

    def _revoke(self) -> None:
        for comm in (self._comm, *self._along):
            comm.Revoke()

    def explain(self, error: Exception, where: str, limit: float) -> RankwiseError | None:
        """The error for MPI's call `where` that failed because of another rank, or after `limit` seconds; else None."""
        kind = error.Get_error_class() if isinstance(error, self._mpi.Exception) else None
        if kind in (self._mpi.ERR_PROC_FAILED, self._mpi.ERR_PROC_FAILED_PENDING):
            return self._peer_lost(where)
        # A collective that ends because of a revocation or a loss may also raise MPI_ERR_OTHER.
        if kind is None or kind == self._mpi.ERR_TRUNCATE or not (self._comm.Is_revoked() or self.lost()):
            return None
        self._notify(where, None)
        calls, failure = self._reports()
        if failure is not None:
            return error_of(Failure.from_json(failure))
        return self._peer_lost(where) if self.lost() else self._timed_out(calls, where, limit)

    def _notify(self, call: str, failure: str | None) -> None:
        notice = {"group": self._name, "call": call, "lost": lost(self._comm), "failure": failure}
        self._notices.send(self._others, notice)

    def _reports(self) -> tuple[dict[int, str], str | None]:
        """The call in which each other rank was when the group failed, and why it failed.

        Calls of some ranks may be missing if the reason is known, a rank is lost, or REPORTS seconds have passed.
        """
        end = time.monotonic() + REPORTS
        while True:
            notices = self._notices.received(self._others, self._name)
            self._reported.update(*(notice["lost"] for notice in notices.values()))
            failures = [notice["failure"] for notice in notices.values() if notice["failure"] is not None]
            if failures or self.lost() or len(notices) == len(self._others) or time.monotonic() > end:
                calls = {self._world_ranks.index(world): notice["call"] for world, notice in notices.items()}
                return calls, failures[0] if failures else None
            time.sleep(POLL)

    def _peer_lost(self, where: str) -> RankwiseError:
        lost = self.lost()
        if not lost:
            return RankwiseError(f"another rank failed in {where}")
        return error_of(Failure(LOST, to_blame=tuple(lost), how="ended").found_in(*_parsed(where)))

    def _timed_out(self, calls: dict[int, str], where: str, limit: float) -> RankwiseError:
        calls = calls | {self._rank: where}
        missing = [rank for rank in range(len(self._world_ranks)) if rank not in calls]
        return error_of(timed_out(calls, missing, limit).found_in(*_parsed(where)))


def lost(comm: MPI.Intracomm) -> list[int]:
    """The ranks of a communicator that MPI knows to be lost."""
    return list(comm.Get_failed().Translate_ranks(None, comm.Get_group()))


def _c_int(number: int) -> int:
    """The lowest 32 bits as a signed int."""
    return ctypes.c_int32(number & 0xFFFFFFFF).value


def _parsed(where: str) -> tuple[str, int]:
    """The operation and the sequence number in "all_reduce(count=3) #7"; -1 if the text has no number."""
    call, _, sequence = where.partition(" #")
    return call.partition("(")[0], int(sequence or -1)
