"""MPI's sends and receives under way."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from rankwise.backends.composed.calls import DTYPE_NAMES, ITEMSIZE
from rankwise.backends.composed.matching import mismatch
from rankwise.contract.communicator import ANY
from rankwise.contract.errors import CollectiveTimeout, RankwiseError
from rankwise.contract.types import DType
from rankwise.contract.work import Work

if TYPE_CHECKING:
    from rankwise.backends.mpi.communicator import MpiCommunicator

TAGS_A_TAG = 32  # MPI's tags for each of ours: one a dtype

SPINS = 200  # looks at a request, with nothing in between, before the first yield
YIELDS = 2e-3  # seconds of looks with yields in between, before the first nap
NAP, LONGEST_NAP = 50e-6, 1e-3
STRANGERS = 0.1  # seconds between two looks for a message of the right tag and another dtype


class MpiMessage(Work[None]):
    """A request of MPI. A receive's source and tag are the message's, once it is complete.

    expected: a receive's count and dtype. peer, tag: as send and recv were told.
    """

    def __init__(
        self,
        comm: MpiCommunicator,
        operation: str,
        request: Any,
        expected: tuple[int, DType] | None,
        peer: int,
        tag: int,
    ) -> None:
        self._comm = comm
        self._operation = operation
        self._test_request = request.Test
        self._status = None if expected is None else comm.mpi.Status()
        self._expected = expected
        self.source, self.tag = peer, tag
        self._lock = threading.Lock()
        self._over = False
        self._error: RankwiseError | None = None

    @property
    def _where(self) -> str:
        expects = f", count={self._expected[0]}, dtype={DTYPE_NAMES[self._expected[1]]}" if self._expected else ""
        return f"{self._operation}(rank={self.source}, tag={self.tag}{expects})"

    def wait(self, timeout: float | None = None) -> None:
        if not self._over:
            with self._lock:
                for _ in range(SPINS):
                    if self._over or self._test():
                        break
            if not self._over:
                self._wait(timeout)
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        if self._over:
            return True
        with self._lock:
            return self._over or self._test()

    def _test(self) -> bool:
        """Whether MPI has completed it, which is asked until it has."""
        comm = self._comm
        try:
            if not comm.guarded(self._test_request, self._status):
                return False
            if self._expected is not None:
                self._check(self._status, *self._expected)
        except comm.engine_errors as error:
            self._error = comm.message_failed(error, self._where)
        self._over = True
        comm.message_over(self)
        return True

    def _check(self, status: Any, count: int, dtype: DType) -> None:
        self.source = status.Get_source()
        self.tag, code = divmod(status.Get_tag(), TAGS_A_TAG)
        sent = status.Get_elements(self._comm.mpi.BYTE) // ITEMSIZE[code]
        wrong = mismatch(self.tag, sent, DType(code), count, dtype)
        if wrong is not None:
            self._error = self._comm.message_failed(wrong, self._where)

    def _wait(self, timeout: float | None) -> None:
        """Look again and again. CollectiveTimeout past `timeout`, which leaves it under way, or past the
        communicator's own, which fails the group."""
        start = look = time.monotonic()
        limit = self._comm.timeout if timeout is None else timeout
        nap = NAP
        while not self.done():
            now = time.monotonic()
            if now - start > limit:
                text = f"{self._operation} was not complete within {limit:.3g} s"
                error = CollectiveTimeout(text, limit=limit, operation=self._operation)
                raise error if timeout is not None else self._comm.message_failed(error, self._where)
            if now - start < YIELDS:
                os.sched_yield()
                continue
            if now - look > STRANGERS:
                look = now
                self._look_for_strangers()
            time.sleep(nap)
            nap = min(2 * nap, LONGEST_NAP)

    def _look_for_strangers(self) -> None:
        """A message that this receive would take but for its dtype never will be taken: say so."""
        if self._expected is None or ANY in (self.source, self.tag):
            return
        found = self._comm.probe(self.source, self.tag)
        if found is not None and found.dtype is not self._expected[1]:
            wrong = mismatch(self.tag, found.count, found.dtype, *self._expected)
            assert wrong is not None
            raise self._comm.message_failed(wrong, self._where)
