"""What the backends over other engines share: the whole contract, given an engine that moves bytes.

An *engine* is another library between the ranks: MPI, gloo. A *move* is an operation of it without
arithmetic: bytes from addresses to addresses. An adapter provides the moves, a way to send and receive,
and declares which reductions its engine does as the contract requires. All other reductions are made
here of moves, or of the messages of `algorithms`, and the native kernels, with operands in rank order, so that
every rank has the same bits.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from rankwise._native import CallLock, counted, reduce_local
from rankwise.backends import tuning
from rankwise.backends.closing import OpenCommunicator
from rankwise.backends.composed import calls, counting
from rankwise.backends.composed.algorithms import binomial, halving_doubling, recursive_doubling
from rankwise.backends.composed.algorithms.peers import Peers
from rankwise.backends.composed.calls import (
    ITEMSIZE,
    Call,
    Description,
    Forced,
    check_count,
    check_rank,
    check_reduction,
    checked_counts,
)
from rankwise.backends.composed.envelopes import Different, Envelopes, GatheredEnvelopes
from rankwise.backends.composed.memory import address, shares, sizes
from rankwise.backends.composed.partial import Partial
from rankwise.backends.composed.shortcuts import plain_arrays
from rankwise.backends.composed.work_queue import WorkQueue
from rankwise.contract import measuring
from rankwise.contract.closing import CLOSE_TIMEOUT
from rankwise.contract.communicator import Communicator, run_keeping
from rankwise.contract.errors import ClosedError, MismatchError, PeerLostError, RankwiseError, UnsupportedError
from rankwise.contract.shortcuts import Shortcuts
from rankwise.contract.types import DType, ReduceOp
from rankwise.contract.work import Work

T = TypeVar("T")

ROOM = 1 << 20  # bytes of scratch memory that are kept at most
LARGE = 1 << 62  # more bytes than an envelope holds

log = logging.getLogger("rankwise")


class ComposedCommunicator(OpenCommunicator):
    """One rank's end of one group of another engine.

    A lock serialises the threads' collectives, and functions that call several. What was started runs on a
    `WorkQueue`, and a blocking call waits for it first. The first error of the engine fails the group, and
    later calls raise it as explained.

    The moves are the methods from `_barrier` on; sizes are in bytes and may be 0; the address of an
    empty buffer is ignored. They raise `engine_errors`, which `_explain` converts to rankwise's errors.
    """

    blocking = True
    settles_timeouts = True
    """Whether a rank that timed out waits until the others have said where they are."""
    engine_errors: tuple[type[Exception], ...]
    _peers: Peers  # of the backends in tuning.MESSAGES

    def __init__(
        self, rank: int, world_size: int, timeout: float, *, checks: bool, shared_lock: CallLock | None = None
    ) -> None:
        """checks: whether the ranks compare what they call before each collective.

        shared_lock: the lock of other communicators, if the engine allows one call per process at a time.
        """
        self._timeout = timeout
        self.checks = checks and world_size > 1
        self._inline = tuning.inline(self.backend, world_size)
        self._forced: dict[str, str] = {}
        self._call_lock = CallLock(shared_lock, ComposedCommunicator._refused, ComposedCommunicator._failing)
        self._queue: WorkQueue | None = None
        self._queue_lock = threading.Lock()  # of its creation
        self._refusal = None
        self._envelopes: Envelopes | None = None
        self._room = np.empty(0, np.uint8)
        self._said = threading.local()  # in each thread, the description of its next call
        super().__init__(rank, world_size)

    @property
    def shortcuts(self) -> Shortcuts:
        return plain_arrays(self)

    @property
    def timeout(self) -> float:
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._timeout = seconds
        self._timeout_set(seconds)

    def force(self, algorithms: Mapping[str, str]) -> None:
        """Run these algorithms, by operation, instead of the usual choice; the same on all ranks.

        This also applies to groups that are split off later; a group of one rank ignores it. ValueError for a name that
        this backend does not have. A call that the algorithm cannot run raises UnsupportedError.
        """
        forced = tuning.check(self.backend, algorithms)
        self._forced = forced if self._world_size > 1 else {}

    @property
    def _refusal(self) -> RankwiseError | None:
        """What every call raises from now on."""
        return self._refused_by

    @_refusal.setter
    def _refusal(self, error: RankwiseError | None) -> None:
        self._refused_by = error
        self._call_lock.refuses = error is not None

    # ---- the contract ----

    def barrier(self) -> None:
        self.sync()
        self.barrier_without_sync()

    def barrier_without_sync(self) -> None:
        self._run(("barrier",), 0, self._barrier)

    def all_reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        check_reduction(count, dtype, op)
        call = ("all_reduce", count, dtype, op)
        self._run(call, count * ITEMSIZE[dtype], self._all_reduce, ptr, count, dtype, op)

    def broadcast(self, ptr: int, count: int, dtype: DType, root: int) -> None:
        check_rank(root, self._world_size)
        check_count(count)
        size = count * ITEMSIZE[dtype]
        self._run(("broadcast", count, dtype, root), size, self._broadcast, ptr, size, root)

    def reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp, root: int) -> None:
        check_rank(root, self._world_size)
        check_reduction(count, dtype, op)
        call = ("reduce", count, dtype, op, root)
        self._run(call, count * ITEMSIZE[dtype], self._reduce, ptr, count, dtype, op, root)

    def all_gather(self, send_ptr: int, recv_ptr: int, count: int, dtype: DType) -> None:
        check_count(count)
        size = count * ITEMSIZE[dtype]
        self._run(("all_gather", count, dtype), size, self._all_gather, send_ptr, recv_ptr, size)

    def gather(self, send_ptr: int, recv_ptr: int, count: int, dtype: DType, root: int) -> None:
        check_rank(root, self._world_size)
        check_count(count)
        size = count * ITEMSIZE[dtype]
        self._run(("gather", count, dtype, root), size, self._gather, send_ptr, recv_ptr, size, root)

    def scatter(self, send_ptr: int, recv_ptr: int, count: int, dtype: DType, root: int) -> None:
        check_rank(root, self._world_size)
        check_count(count)
        size = count * ITEMSIZE[dtype]
        whole = size * self._world_size
        self._run(("scatter", count, dtype, root), whole, self._scatter, send_ptr, recv_ptr, size, root)

    def reduce_scatter(self, send_ptr: int, recv_ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        check_reduction(count, dtype, op)
        whole = count * ITEMSIZE[dtype] * self._world_size
        call = ("reduce_scatter", count, dtype, op)
        self._run(call, whole, self._reduce_scatter, send_ptr, recv_ptr, count, dtype, op)

    def all_to_all(self, send_ptr: int, recv_ptr: int, count: int, dtype: DType) -> None:
        check_count(count)
        size = count * ITEMSIZE[dtype]
        whole = size * self._world_size
        self._run(("all_to_all", count, dtype), whole, self._all_to_all, send_ptr, recv_ptr, size)

    def all_gather_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: DType) -> None:
        counts = checked_counts(counts, self._world_size)
        self._run(("all_gather_v", counts, dtype), LARGE, self._all_gather_v, send_ptr, recv_ptr, sizes(counts, dtype))

    def gather_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: DType, root: int) -> None:
        check_rank(root, self._world_size)
        counts = checked_counts(counts, self._world_size)
        self._run(
            ("gather_v", counts, dtype, root), LARGE, self._gather_v, send_ptr, recv_ptr, sizes(counts, dtype), root
        )

    def scatter_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: DType, root: int) -> None:
        check_rank(root, self._world_size)
        counts = checked_counts(counts, self._world_size)
        self._run(
            ("scatter_v", counts, dtype, root), LARGE, self._scatter_v, send_ptr, recv_ptr, sizes(counts, dtype), root
        )

    def reduce_scatter_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: DType, op: ReduceOp) -> None:
        check_reduction(0, dtype, op)
        counts = checked_counts(counts, self._world_size)
        call = ("reduce_scatter_v", counts, dtype, op)
        self._run(call, LARGE, self._reduce_scatter_v, send_ptr, recv_ptr, counts, dtype, op)

    def all_to_all_v(
        self, send_ptr: int, recv_ptr: int, send_counts: Sequence[int], recv_counts: Sequence[int], dtype: DType
    ) -> None:
        send_sizes = sizes(checked_counts(send_counts, self._world_size, "send_counts"), dtype)
        recv_sizes = sizes(checked_counts(recv_counts, self._world_size, "recv_counts"), dtype)
        self._run(("all_to_all_v", dtype), LARGE, self._all_to_all_v, send_ptr, recv_ptr, send_sizes, recv_sizes)

    def call(self, function: Callable[[], T]) -> T:
        self._drain()
        with self._call_lock:
            return function()

    def _drain(self) -> None:
        """Wait for what was started before, unless this thread has the lock, for which that may wait in turn."""
        if self._queue is not None and not self._call_lock.held:
            self._queue.drain()

    def describe(self, shape: tuple[int, ...], operation: str = "") -> None:
        if self.checks:
            self._said.description = Description(tuple(shape), operation)

    def _take_description(self) -> Description | None:
        found: Description | None = vars(self._said).pop("description", None)
        return found

    def start(self, operation: str, *args: Any, keep: object = None) -> Work[None]:
        method, description = getattr(self, operation), self._take_description()
        if description is None:
            return self.start_call(partial(run_keeping, method, args, keep))

        def described() -> None:
            self._said.description = description
            run_keeping(method, args, keep)

        return self.start_call(described)

    def start_call(self, function: Callable[[], None]) -> Work[None]:
        if self._refusal is not None:
            raise self._refused()
        with self._queue_lock:  # not the lock of the calls, which operations started earlier may hold
            if self._queue is None:
                self._queue = WorkQueue(f"rankwise {self.backend} stream")
        return self._queue.put(partial(self.call, function))

    def split(self, color: int, key: int = 0) -> Communicator | None:
        return self._run(("split",), LARGE, self._split, color, key)

    def abort(self, reason: str) -> None:
        how = f"aborted the group: {reason}"
        self._fail(PeerLostError(f"rank {self._rank} {how}", rank=self._rank, how=how))

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        if self.closed:
            return
        self.closed = True
        end = time.monotonic() + timeout
        trouble = ""
        try:
            if self._queue is not None:
                if not self._queue.drain(timeout):
                    trouble = f"operations that were started did not complete within {timeout:g} s"
                self._queue.close()
            # If another thread is in a call, it holds the lock, and the engine's resources are not released.
            if not self._call_lock.acquire(max(0.0, end - time.monotonic())):
                trouble = "another thread is in a call"
            else:
                try:
                    healthy = self._refusal is None
                    self._refusal = ClosedError("this communicator was closed")
                    self._release(max(0.0, end - time.monotonic()), healthy and not trouble)
                finally:
                    self._call_lock.release()
        except Exception as error:  # noqa: BLE001 - close never raises
            trouble = str(error)
        if trouble:
            self._warn(trouble)

    def forked(self) -> None:
        # The lock's holder, if any, is a thread of the parent.
        self._call_lock = CallLock(None, ComposedCommunicator._refused, ComposedCommunicator._failing)
        self._queue, self._queue_lock = None, threading.Lock()
        self.closed = True
        self._refusal = ClosedError("this communicator belongs to the process that opened it, not to its forked child")

    # ---- what an adapter provides ----

    @abstractmethod
    def _barrier(self) -> None: ...

    @abstractmethod
    def _broadcast(self, ptr: int, size: int, root: int) -> None: ...

    @abstractmethod
    def _gather_v(self, send: int, recv: int, sizes: Sequence[int], root: int) -> None: ...

    @abstractmethod
    def _scatter_v(self, send: int, recv: int, sizes: Sequence[int], root: int) -> None: ...

    @abstractmethod
    def _all_gather_v(self, send: int, recv: int, sizes: Sequence[int]) -> None: ...

    @abstractmethod
    def _all_to_all_v(self, send: int, recv: int, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> None: ...

    @abstractmethod
    def _part(self, color: int, members: Sequence[int]) -> Communicator:
        """The group of these ranks, in this order; this rank is one of them.

        Every rank of the present group calls `_part` or `_no_part` at the same time. color: a number from 0
        on, a different one for each new group.
        """

    def _no_part(self) -> None:
        """This rank is in none of the groups that the other ranks now make."""

    @abstractmethod
    def _explain(self, error: Exception) -> RankwiseError:
        """rankwise's error for an engine's error that was raised in this rank's present call."""

    def explain_timeout(self, call: str, sequence: int) -> RankwiseError | None:
        """Which ranks are late, if this rank timed out in `call` outside this group; None if the engine cannot tell.

        It must be known where the other ranks that take part in the call are, so they call this too.
        """
        return None

    @abstractmethod
    def _release(self, timeout: float, healthy: bool) -> None:
        """Release what the engine holds for this group. healthy: nothing has failed, and nothing is pending."""

    def _failed(self, error: RankwiseError, *, known_to_all: bool) -> None:
        """The group has failed with this error: inform the other ranks, if the engine can.

        known_to_all: every rank detects the failure, and may still be doing so.
        """

    def _timeout_set(self, timeout: float) -> None:
        """The timeout was set; some engines must be informed."""

    # ---- what an adapter may do better ----

    def _mover(self, mine: int, everybody: int, size: int) -> Callable[[], object]:
        """A function that gathers `size` bytes from every rank, each time from and to the same memory."""
        return lambda: self._all_gather(mine, everybody, size)

    def _new_envelopes(self) -> Envelopes:
        """How the ranks compare their calls. Called once for a group."""
        return GatheredEnvelopes(self._rank, self._world_size, max([0, *self._inline.values()]), self._mover)

    def _gather(self, send: int, recv: int, size: int, root: int) -> None:
        self._gather_v(send, recv, (size,) * self._world_size, root)

    def _scatter(self, send: int, recv: int, size: int, root: int) -> None:
        self._scatter_v(send, recv, (size,) * self._world_size, root)

    def _all_gather(self, send: int, recv: int, size: int) -> None:
        self._all_gather_v(send, recv, (size,) * self._world_size)

    def _all_to_all(self, send: int, recv: int, size: int) -> None:
        even = (size,) * self._world_size
        self._all_to_all_v(send, recv, even, even)

    def _all_reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        n, size = self._world_size, count * ITEMSIZE[dtype]
        if n == 1:
            reduce_local(ptr, [ptr], count, dtype, op, n)
            return
        match self._algorithm("all_reduce", tuning.all_reduce(self.backend, n, size)):
            case "recursive_doubling":
                recursive_doubling.all_reduce(self._peers, ptr, count, Partial(dtype, op, n))
            case "halving_doubling":
                halving_doubling.all_reduce(self._peers, ptr, count, Partial(dtype, op, n))
            case "reduce_scatter":
                self._reduce_by_shares(ptr, count, dtype, op, None)
            case _:
                room = self._scratch(size * n)
                self._all_gather(ptr, address(room), size)
                reduce_local(ptr, [address(room) + rank * size for rank in range(n)], count, dtype, op, n)

    def _reduce_by_shares(self, ptr: int, count: int, dtype: DType, op: ReduceOp, root: int | None) -> None:
        """Piece by piece, each rank reduces its share, and root gathers the shares; if root is None, all ranks do.

        An all_reduce then sends 2(n-1)/n times the array's bytes, as few as any algorithm can.
        """
        n, item = self._world_size, ITEMSIZE[dtype]
        step = max(n, tuning.DIVIDED_AT_ONCE // item)
        for start in range(0, count, step):
            counts = shares(min(step, count - start), n)
            piece = ptr + start * item
            mine = np.empty(max(1, counts[self._rank] * item), np.uint8)
            self._reduce_scatter_v(piece, address(mine), counts, dtype, op)
            if root is None:
                self._all_gather_v(address(mine), piece, sizes(counts, dtype))
            else:
                self._gather_v(address(mine), piece, sizes(counts, dtype), root)

    def _reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp, root: int) -> None:
        n, item = self._world_size, ITEMSIZE[dtype]
        step = max(1, tuning.REDUCED_AT_ONCE // item)
        chosen = self._algorithm("reduce", tuning.reduce(self.backend, n, count * item))
        if n > 1 and chosen == "reduce_scatter":
            self._reduce_by_shares(ptr, count, dtype, op, root)
            return
        if n > 1 and chosen == "binomial":
            partial_result = Partial(dtype, op, n)
            for start in range(0, count, step):
                binomial.reduce(self._peers, ptr + start * item, min(step, count - start), partial_result, root)
            return
        at_root = self._rank == root
        room = self._scratch(min(step, count) * item * n if at_root else 0)
        for start in range(0, count, step):
            part = min(step, count - start)
            self._gather(ptr + start * item, address(room) if at_root else 0, part * item, root)
            if at_root:
                sources = [address(room) + rank * part * item for rank in range(n)]
                reduce_local(ptr + start * item, sources, part, dtype, op, n)

    def _reduce_scatter(self, send: int, recv: int, count: int, dtype: DType, op: ReduceOp) -> None:
        self._reduce_scatter_v(send, recv, (count,) * self._world_size, dtype, op)

    def _reduce_scatter_v(self, send: int, recv: int, counts: Sequence[int], dtype: DType, op: ReduceOp) -> None:
        """Each rank receives all ranks' blocks for it, and reduces them."""
        n, mine = self._world_size, counts[self._rank] * ITEMSIZE[dtype]
        room = self._scratch(mine * n)
        if min(counts) == max(counts):
            self._all_to_all(send, address(room), mine)
        else:
            self._all_to_all_v(send, address(room), sizes(counts, dtype), (mine,) * n)
        sources = [address(room) + rank * mine for rank in range(n)]
        reduce_local(recv, sources, counts[self._rank], dtype, op, n)

    # ---- serialisation, checks, failures ----

    def _run(self, call: Call, payload: int, move: Callable[..., T], *args: Any) -> T:
        """One collective, with no other at the same time.

        payload: the most bytes that a rank contributes; LARGE if it must not go in an envelope.
        """
        if self._queue is not None:
            self._drain()
        if self._forced:
            self._check_inline(call, payload)
            if call[0] in self._forced:
                call = (*call, Forced(self._forced[call[0]]))
        run: Callable[..., T] = self._call_lock.run
        if measuring.measurements and self.counted:
            nbytes = counting.argument_bytes(call, args, self._rank, self._world_size)
            run = partial(counted, counting.operation(call), 1, nbytes, self._call_lock.run)
        if not self.checks:
            return run(self, call, move, args)
        if (description := self._take_description()) is not None:
            call = (*call, description)
        check = self._checked_counts if call[0] == "all_to_all_v" else self._checked
        return run(self, call, check, (call, payload, move, args))

    def _failing(self, error: BaseException) -> None:
        """A call has raised, so the group may fail. Raises what explains an engine's error."""
        if isinstance(error, self.engine_errors):
            failure = self._explain(error)
            self._fail(failure)
            raise failure from error
        if isinstance(error, RankwiseError) and not isinstance(error, UnsupportedError):  # which is no failure
            self._fail(error)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            # The other ranks must not wait for this one, nor may its next call take what they sent for this one.
            self.abort(f"it was interrupted in {self._call_lock.call[0]}")

    def _checked(self, call: Call, payload: int, move: Callable[..., T], args: tuple[Any, ...]) -> T:
        """The same, after checking that all ranks call it: with the data in the envelopes, or after them."""
        if self._envelopes is None:
            self._envelopes = self._new_envelopes()
        envelopes = self._envelopes
        envelopes.digest = calls.digest(call)
        try:
            if payload <= self._inline.get(call[0], -1) and self._forced.get(call[0], "inline") == "inline":
                done: T = getattr(envelopes, call[0])(*args)
                return done
            envelopes.exchange()
        except Different:
            difference = self._difference(call)
            self._fail(difference, known_to_all=True)
            raise difference from None
        return move(*args)

    def _checked_counts(self, call: Call, payload: int, move: Callable[..., T], args: tuple[Any, ...]) -> T:
        """`_checked` for all_to_all_v, after also checking that each rank expects what the others send to it."""
        mine = np.array(args[2:], np.int64)  # bytes by rank, to send and to receive
        everybody = np.empty((self._world_size, *mine.shape), np.int64)
        self._checked(call, mine.nbytes, self._collect, (address(mine), address(everybody), mine.nbytes))
        difference = calls.unmatched(call, everybody, self._call_lock.sequence)
        if difference is not None:
            self._fail(difference, known_to_all=True)
            raise difference
        return move(*args)

    def _collect(self, mine: int, everybody: int, size: int) -> None:
        """Gather `size` bytes of host memory from every rank."""
        self._mover(mine, everybody, size)()

    def _algorithm(self, operation: str, chosen: str) -> str:
        """The algorithm for an operation: the chosen one, unless another is forced."""
        return self._forced.get(operation, chosen)

    def _check_inline(self, call: Call, payload: int) -> None:
        """Raises UnsupportedError, on every rank, if `inline` is forced and cannot run."""
        most = self._inline.get(call[0], -1)
        if self._forced.get(call[0]) != "inline" or (self.checks and payload <= most):
            return
        why, remedy = f"it takes at most {most} bytes, and this call has {payload}", ""
        if not self.checks:
            why, remedy = "the ranks do not compare their calls", "set RANKWISE_CHECK=1"
        raise tuning.cannot_run(self.backend, call[0], "inline", why, remedy)

    def _difference(self, call: Call) -> MismatchError:
        """What each rank calls. All ranks have detected a difference, and exchange their descriptions."""
        mine = np.frombuffer(calls.encoded(call), np.uint8)
        everybody = np.empty((self._world_size, mine.nbytes), np.uint8)
        self._collect(address(mine), address(everybody), mine.nbytes)
        described = {rank: calls.decoded(row.tobytes()) for rank, row in enumerate(everybody)}
        return calls.mismatch(described, self._call_lock.sequence)

    def _split(self, color: int, key: int) -> Communicator | None:
        wishes = np.empty((self._world_size, 2), np.int64)
        mine = np.array([color, key], np.int64)
        self._all_gather(address(mine), address(wishes), mine.nbytes)
        if color < 0:
            self._no_part()
            return None
        members = [rank for rank in range(self._world_size) if wishes[rank, 0] == color]
        members.sort(key=lambda rank: (int(wishes[rank, 1]), rank))
        part = self._part(sorted(set(wishes[:, 0])).index(color), members)
        if isinstance(part, type(self)):  # a part of a hierarchical group may have another class
            part.force(self._forced)
        return part

    def _fail(self, error: RankwiseError, *, known_to_all: bool = False) -> None:
        if self._refusal is None:
            self._refusal = error
            self._failed(error, known_to_all=known_to_all)

    def _refused(self) -> RankwiseError:
        """The error that every call raises from now on, as a new object."""
        assert self._refusal is not None
        return copy.copy(self._refusal)

    def _scratch(self, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Memory of `size` bytes, valid until the next call of this method; at most ROOM is kept."""
        if size > ROOM:
            return np.empty(size, np.uint8)
        if size > self._room.nbytes:
            self._room = np.empty(size, np.uint8)
        return self._room
