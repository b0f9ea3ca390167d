"""A communicator in Python, whose ranks make one call at a time and compare it first.

A lock serialises the threads' collectives, and functions that call several. What was started runs on a stream, and a
blocking call waits for it first.
"""

from __future__ import annotations

import copy
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from rankwise._native import HostStream, address, counted
from rankwise.backends.closing import OpenCommunicator
from rankwise.backends.composed import calls
from rankwise.backends.composed.envelopes import Different, Envelopes, GatheredEnvelopes
from rankwise.backends.composed.memory import gathered
from rankwise.backends.composed.part_errors import to_pass_on
from rankwise.contract import measuring
from rankwise.contract.closing import CLOSE_TIMEOUT
from rankwise.contract.errors import ClosedError, MismatchError, PeerLostError, RankwiseError, UnsupportedError
from rankwise.contract.failure import Failure
from rankwise.contract.operations import ALL_TO_ALL_V, BARRIER, SPLIT, Call
from rankwise.contract.work import Work

T = TypeVar("T")


class ComparingCommunicator(OpenCommunicator):
    """One rank's end of one group. `_run` makes a call, compared with those of the other ranks if `checks` is true.

    The first error of the engine fails the group, and later calls raise it as explained: `_explain` converts
    `engine_errors` to rankwise's.
    """

    blocking = True
    engine_errors: tuple[type[Exception], ...] = ()
    """What the engine raises, other than rankwise's errors."""

    waits_for_reports = True
    """Whether a rank that timed out waits until the others have said where they are."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        timeout: float,
        *,
        checks: bool,
        inline: Mapping[str, int] | None = None,
        shared_lock: threading.RLock | None = None,
    ) -> None:
        """checks: whether the ranks compare what they call before each collective.

        inline: by operation, the most bytes of data that travel with the comparison, in place of a move. shared_lock:
        the lock of other communicators, if the engine allows one call per process at a time.
        """
        self._timeout = timeout
        self.checks = checks and world_size > 1
        self._inline = inline or {}
        self._call_lock = shared_lock or threading.RLock()
        self._last_call, self._sequence = Call(BARRIER), 0
        """The call that this rank is in, or was in last, and how many there were."""
        self._inside = False
        """Whether it is in progress."""
        self._stream = HostStream.create()
        self._final_error: RankwiseError | None = None
        """What every call raises from now on."""
        self._envelopes: Envelopes | None = None
        super().__init__(rank, world_size)

    @property
    def timeout(self) -> float:
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._timeout = seconds
        self._timeout_set(seconds)

    # ---- the contract ----

    def call(self, function: Callable[[], T]) -> T:
        if not self._stream.idle():
            self._drain()
        with self._call_lock:
            return function()

    def _drain(self) -> None:
        """Wait for what was started before, unless this thread has the lock, for which that may wait in turn."""
        if not self._call_lock._is_owned():  # type: ignore[attr-defined]
            self._stream.sync()

    def start_call(self, function: Callable[[], T], *, at_once: bool = True) -> Work[T]:
        self._check_usable()
        return self._stream.submit(partial(self.call, function))

    def split(self, color: int, key: int = 0) -> OpenCommunicator | None:
        return self._run(Call(SPLIT), self._split, (color, key))

    def fail(self, how: str) -> None:
        self._fail(PeerLostError(f"rank {self._rank} {how}", rank=self._rank, how=how))

    def has_failed(self) -> bool:
        return self._final_error is not None

    def become_part(self) -> None:
        super().become_part()
        self.checks = self.waits_for_reports = False

    def fail_as_part(self, failure: Failure) -> None:
        self._fail(PeerLostError(failure.message, rank=self._rank, how=to_pass_on(failure)))

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        if self.closed:
            return
        self.closed = True
        end = time.monotonic() + timeout
        trouble = ""
        try:
            if not self._stream.close(timeout)[0]:
                trouble = f"operations that were started did not complete within {timeout:g} s"
            # If another thread is in a call, it holds the lock, and the engine's resources are not released.
            if not self._call_lock.acquire(timeout=max(0.0, end - time.monotonic())):
                trouble = "another thread is in a call"
            else:
                try:
                    healthy = self._final_error is None
                    self._final_error = ClosedError("this communicator was closed")
                    self._release(max(0.0, end - time.monotonic()), healthy and not trouble)
                finally:
                    self._call_lock.release()
        except Exception as error:  # noqa: BLE001 - close never raises
            trouble = str(error)
        if trouble:
            self._warn(trouble)

    def forked(self) -> None:
        # The lock's holder, if any, is a thread of the parent.
        self._call_lock = threading.RLock()
        self._stream = HostStream.create()
        self.closed = True
        self._final_error = ClosedError(
            "this communicator belongs to the process that opened it, not to its forked child"
        )

    # ---- what a backend provides ----

    @abstractmethod
    def _collect(self, own: int, everybody: int, size: int) -> None:
        """Gather `size` bytes of host memory from every rank."""

    def _new_envelopes(self) -> Envelopes:
        """How the ranks compare their calls. Called once for a group."""
        return GatheredEnvelopes(self._rank, self._world_size, max([0, *self._inline.values()]), self._collect)

    @abstractmethod
    def _part(self, color: int, members: Sequence[int]) -> OpenCommunicator:
        """The group of these ranks, in this order; this rank is one of them.

        Every rank of the present group calls `_part` or `_no_part` at the same time. color: a number from 0
        on, a different one for each new group.
        """

    def _no_part(self) -> None:
        """This rank is in none of the groups that the other ranks now make."""

    def _explain(self, error: Exception, where: str = "") -> RankwiseError:
        """rankwise's error for an engine's error, raised in the message `where`, or else in this rank's call."""
        return RankwiseError(str(error))

    @abstractmethod
    def _release(self, timeout: float, healthy: bool) -> None:
        """Release what the engine holds for this group. healthy: nothing has failed, and nothing is pending."""

    def _announce_failure(self, error: RankwiseError, *, known_to_all: bool) -> None:
        """The group has failed with this error: inform the other ranks, if the engine can.

        known_to_all: every rank detects the failure, and may still be doing so.
        """

    def _timeout_set(self, timeout: float) -> None:
        """The timeout was set; some engines must be informed."""

    # ---- serialisation, comparison, failures ----

    def _run(self, call: Call, move: Callable[..., T], args: tuple[Any, ...]) -> T:
        """One collective, with no other at the same time: move(*args), if all ranks make this call."""
        if not self._stream.idle():
            self._drain()
        run: Callable[..., T] = self._locked
        if measuring.measurements and self.counted:
            nbytes = call.own_bytes(self._rank, self._world_size)
            run = partial(counted, call.operation.label, 1, nbytes, self._locked)
        if not self.checks:
            return run(call, move, args)
        if call.operation is ALL_TO_ALL_V:
            return run(call, self._checked_counts, (call, move, args))
        return run(call, self._checked, (call, calls.payload(call, self._world_size), move, args))

    def _locked(self, call: Call, move: Callable[..., T], args: tuple[Any, ...]) -> T:
        with self._call_lock:
            try:
                self._check_usable()
                self._sequence += 1
                self._last_call, self._inside = call, True
                return move(*args)
            except BaseException as error:
                self._leave_call_by(error)
                raise
            finally:
                self._inside = False

    def _leave_call_by(self, error: BaseException) -> None:
        """A call that has begun is left by an exception, so the group fails. Raises what explains an engine's error."""
        if isinstance(error, self.engine_errors):
            failure = self._explain(error)
            self._fail(failure)
            raise failure from error
        if not isinstance(error, RankwiseError):
            # A signal handler's, for example. The other ranks must not wait for this one, nor may its next call take
            # what they sent for this one.
            self.abort(f"it was interrupted in {self._last_call.operation.name}")
        elif not isinstance(error, UnsupportedError):  # which is no failure
            self._fail(error)

    def _checked(self, call: Call, payload: int, move: Callable[..., T], args: tuple[Any, ...]) -> T:
        """The same, after checking that all ranks call it: with the data in the envelopes, or after them.

        payload: the most bytes that a rank contributes.
        """
        if self._envelopes is None:
            self._envelopes = self._new_envelopes()
        envelopes, name = self._envelopes, call.operation.name
        envelopes.digest = calls.digest(call.agreed)
        try:
            if payload <= self._inline.get(name, -1) and call.algorithm in ("", "inline"):
                done: T = getattr(envelopes, name)(*args)
                return done
            envelopes.exchange()
        except Different:
            difference = self._difference(call)
            self._fail(difference, known_to_all=True)
            raise difference from None
        return move(*args)

    def _checked_counts(self, call: Call, move: Callable[..., T], args: tuple[Any, ...]) -> T:
        """`_checked` for all_to_all_v, after also checking that each rank expects what the others send to it."""
        own = np.array((call.send_sizes, call.recv_sizes), np.int64)
        everybody = np.empty((self._world_size, *own.shape), np.int64)
        self._checked(call, own.nbytes, self._collect, (address(own), address(everybody), own.nbytes))
        difference = calls.unmatched(call, everybody, self._sequence)
        if difference is not None:
            self._fail(difference, known_to_all=True)
            raise difference
        return move(*args)

    def _difference(self, call: Call) -> MismatchError:
        """What each rank calls. All ranks have detected a difference, and exchange their descriptions."""
        texts = gathered(self._collect, self._world_size, str(call).encode()[: calls.DESCRIPTION])
        described = {rank: text.decode(errors="replace") for rank, text in enumerate(texts)}
        return calls.mismatch(described, self._sequence)

    def _split(self, color: int, key: int) -> OpenCommunicator | None:
        wishes = np.empty((self._world_size, 2), np.int64)
        own = np.array([color, key], np.int64)
        self._collect(address(own), address(wishes), own.nbytes)
        if color < 0:
            self._no_part()
            return None
        members = [rank for rank in range(self._world_size) if wishes[rank, 0] == color]
        members.sort(key=lambda rank: (int(wishes[rank, 1]), rank))
        return self._part(sorted(set(wishes[:, 0])).index(color), members)

    def _fail(self, error: RankwiseError, *, known_to_all: bool = False) -> None:
        if self._final_error is None:
            self._final_error = error
            self._announce_failure(error, known_to_all=known_to_all)

    def _check_usable(self) -> None:
        if self._final_error is not None:
            raise self._final_error_copy()

    def _final_error_copy(self) -> RankwiseError:
        """The error that every call raises from now on, as a new object."""
        assert self._final_error is not None
        return copy.copy(self._final_error)
