"""The Communicator: collectives on addresses, counts and dtypes, for one rank in one group."""

from __future__ import annotations

import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from rankwise.contract.closing import CLOSE_TIMEOUT, Closeable
from rankwise.contract.errors import MismatchError, UnsupportedError
from rankwise.contract.host_memory import HostMemory
from rankwise.contract.message import IncomingMessage, Message, Receives, no_probe
from rankwise.contract.operations import (
    ALL_GATHER,
    ALL_GATHER_V,
    ALL_REDUCE,
    ALL_TO_ALL,
    ALL_TO_ALL_V,
    BARRIER,
    BROADCAST,
    GATHER,
    GATHER_V,
    REDUCE,
    REDUCE_SCATTER,
    REDUCE_SCATTER_V,
    SCATTER,
    SCATTER_V,
    Call,
)
from rankwise.contract.shared_integers import SharedIntegers
from rankwise.contract.shortcuts import Shortcuts
from rankwise.contract.stream_sync import StreamSyncOps
from rankwise.contract.types import DType, ReduceOp
from rankwise.contract.work import Work, ended

T = TypeVar("T")


class Collectives(ABC):
    """The collectives by name. Each is a call that `run` runs; `contract.operations` has the table of them."""

    @abstractmethod
    def run(self, call: Call) -> None:
        """Run one collective: the one method by which a backend does all of them.

        `call.check` checks the arguments, and `call.operation` says what to do. This rank reads `call.reads(...)`
        elements at `call.send` and writes `call.writes(...)` at `call.recv`; the two addresses are equal if the
        operation works in place. `call.vector` turns a call into one of the vector variant, so that a backend needs
        only that variant. The backend may ignore `call.shape` and `call.part_of`, which serve the comparison of calls.
        """

    def all_reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        """Reduce `count` elements over the ranks, in place; every rank receives the result."""
        self.run(Call(ALL_REDUCE, ptr, ptr, count, dtype, op))

    def broadcast(self, ptr: int, count: int, dtype: DType, root: int) -> None:
        """Copy root's `count` elements to every rank, in place."""
        self.run(Call(BROADCAST, ptr, ptr, count, dtype, None, root))

    def reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp, root: int) -> None:
        """Reduce over the ranks, in place on root; the other ranks' buffers stay unchanged."""
        self.run(Call(REDUCE, ptr, ptr, count, dtype, op, root))

    def all_gather(self, send_ptr: int, recv_ptr: int, count: int, dtype: DType) -> None:
        """Every rank receives every rank's `count` elements, by rank: recv holds count * world_size."""
        self.run(Call(ALL_GATHER, send_ptr, recv_ptr, count, dtype))

    def gather(self, send_ptr: int, recv_ptr: int, count: int, dtype: DType, root: int) -> None:
        """Root receives every rank's `count` elements, by rank; recv_ptr may be 0 elsewhere."""
        self.run(Call(GATHER, send_ptr, recv_ptr, count, dtype, None, root))

    def scatter(self, send_ptr: int, recv_ptr: int, count: int, dtype: DType, root: int) -> None:
        """Each rank receives its block of `count` of root's count * world_size; send_ptr may be 0 elsewhere."""
        self.run(Call(SCATTER, send_ptr, recv_ptr, count, dtype, None, root))

    def reduce_scatter(self, send_ptr: int, recv_ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        """Reduce count * world_size elements; each rank receives its block of `count`."""
        self.run(Call(REDUCE_SCATTER, send_ptr, recv_ptr, count, dtype, op))

    def all_to_all(self, send_ptr: int, recv_ptr: int, count: int, dtype: DType) -> None:
        """Block j of send goes to rank j, which puts it at block `rank` of its recv."""
        self.run(Call(ALL_TO_ALL, send_ptr, recv_ptr, count, dtype))

    def all_gather_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: DType) -> None:
        """all_gather in which rank i contributes counts[i] elements. All ranks pass the same `counts`."""
        self.run(Call(ALL_GATHER_V, send_ptr, recv_ptr, 0, dtype, counts=counts))

    def gather_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: DType, root: int) -> None:
        """gather in which rank i contributes counts[i] elements. All ranks pass the same `counts`."""
        self.run(Call(GATHER_V, send_ptr, recv_ptr, 0, dtype, None, root, counts))

    def scatter_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: DType, root: int) -> None:
        """scatter in which rank i receives counts[i] elements. All ranks pass the same `counts`."""
        self.run(Call(SCATTER_V, send_ptr, recv_ptr, 0, dtype, None, root, counts))

    def reduce_scatter_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: DType, op: ReduceOp) -> None:
        """reduce_scatter in which rank i receives counts[i] elements. All ranks pass the same `counts`."""
        self.run(Call(REDUCE_SCATTER_V, send_ptr, recv_ptr, 0, dtype, op, None, counts))

    def all_to_all_v(
        self, send_ptr: int, recv_ptr: int, send_counts: Sequence[int], recv_counts: Sequence[int], dtype: DType
    ) -> None:
        """all_to_all with send_counts[j] elements to rank j and recv_counts[i] from rank i.

        Rank i's send_counts[j] must equal rank j's recv_counts[i], or both raise MismatchError.
        """
        self.run(Call(ALL_TO_ALL_V, send_ptr, recv_ptr, 0, dtype, send_counts=send_counts, recv_counts=recv_counts))


class Communicator(Collectives, Closeable):
    """One rank's end of one group.

    Arguments: `ptr` is an address as an int (host memory; device memory for NCCL). `count` is in
    elements. `root` is numbered within the group. In the `_v` operations `counts` has one element
    count per rank, and each rank's block starts where the previous block ends.

    Validity: an address must stay valid, and hold `count` elements, until the operation is
    complete. The contract cannot check this; the array level does.

    Completion: an operation may return before it is complete. Call `sync()` before reading a
    result or reusing an input. send's buffer must not change before `sync()` or its Work is done.

    Collectives: every rank of the group calls the same ones, in the same order, with the same
    count, dtype, op and root; a difference raises MismatchError on the ranks. A reduction's result has
    the same bits on every rank, and in every run with the same world size.

    Aliasing: send and recv memory of one call must not overlap.

    Threads: any thread may call; calls take effect in one order. Two threads' concurrent sends may
    go in either order.

    Errors: PeerLostError, MismatchError and CollectiveTimeout are failures of the group, which
    then stays failed; `shrink` and `restore` make a new one of the ranks that live. An operation
    that a backend lacks raises UnsupportedError; after close,
    every operation raises ClosedError.
    """

    backend: str = "unnamed"
    """The name of its backend, for messages."""

    closed: bool = False
    """Whether `close` was called. It stays False on a communicator that does not keep track."""

    blocking: bool = False
    """Whether a collective is complete when it returns, so that its result can be read without `sync`."""

    device_memory: bool = False
    """Whether addresses may be in CUDA device memory; otherwise all must be in host memory."""

    any_source: bool = False
    """Whether recv accepts ANY (its Work then has `source` and `tag`) and `probe` works."""

    scans: bool = False
    """Whether `run` and `start` take SCAN and EXSCAN; send may then be recv. EXSCAN leaves recv of rank 0 as it is."""

    traced: bool = False
    """Whether it writes its operations to the trace of its job, which `rankwise status` and `rankwise trace` show."""

    counted: bool = True
    """Whether `rankwise.trace.measure` counts its operations; False if they are steps of another communicator's."""

    stream_sync: StreamSyncOps | None = None
    """Events for overlap, or None if the backend has no streams."""

    receives: Receives | None = None
    """Receives of messages of any length. None: the array level makes them of `probe` and `start_arrived`."""

    announce_array: Callable[[Any, int, int, int], bytes | None] | None = None
    """scatter's first step, if there is a shorter way than a broadcast: announce_array(header, send, recv, src).

    header: int64, src's description of its array, which the other ranks receive. Returns None where the parts follow in
    a call of their own. Otherwise they came with the header: src's own is in recv, and another rank's is returned.
    """

    @property
    def shortcuts(self) -> Shortcuts:
        """Operations on whole arrays in one call, for the common case."""
        return Shortcuts()

    @property
    def handle(self) -> int:
        """What rankwise.h's `rankwise_from_handle` takes, as long as this exists; it must be closed here."""
        why = "compiled code calls the engine, which this backend does not use"
        raise UnsupportedError("handle", self.backend, why, "use the backend shm, on one host")

    @property
    @abstractmethod
    def rank(self) -> int:
        """This rank's number in the group, 0 <= rank < world_size."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """How many ranks the group has."""

    @property
    @abstractmethod
    def timeout(self) -> float:
        """Seconds that an operation may wait for the other ranks; may be set."""

    @timeout.setter
    @abstractmethod
    def timeout(self, seconds: float) -> None: ...

    def barrier(self) -> None:
        """Return when every rank has called it. Implies `sync`."""
        self.sync()
        self.run(Call(BARRIER))

    def barrier_without_sync(self) -> None:
        """Return when every rank has called it, whatever messages are pending."""
        self.run(Call(BARRIER))

    def call(self, function: Callable[[], T]) -> T:
        """Call `function`, which calls several collectives, and return its result.

        Operations started earlier are complete by then, so the function may read their results. No other
        thread's collective runs between the function's calls, which may be nested. This default just calls it:
        a backend whose communicators may be shared by threads overrides it.
        """
        return function()

    def start(self, call: Call, keep: object = None, result: Any = None) -> Work[Any]:
        """Start a collective: `start(Call(BROADCAST, ptr, ptr, count, dtype, root=root))`.

        Started operations run in that order, before any later blocking call. This default runs the operation at once.

        Args:
            keep: what owns the memory, here and in `send` and `recv`. The communicator holds it from before the
                operation begins until it no longer uses the memory, so nothing is freed too early even if an exception,
                such as a signal handler's, takes the place of the Work; a message is then cancelled. Without `keep`,
                the caller keeps the memory alive until the Work is done.
            result: what the Work returns.
        """

        def body() -> Any:
            run_keeping(self.run, (call,), keep)
            return result

        return self.start_call(body)

    def start_call(self, function: Callable[[], T], *, at_once: bool = True) -> Work[T]:
        """Start `function`, which calls several collectives, as `start` starts one. It runs as by `call`.

        Args:
            at_once: whether it runs beside the program as soon as it can. If not, it may be left to whoever waits for
                it, on this rank or another, which is quicker.

        Returns:
            A Work whose result is the function's.
        """
        try:
            result = self.call(function)
            if not self.blocking:
                self.sync()
        except Exception as error:  # noqa: BLE001 - the Work raises every error
            return ended(error=error)
        return ended(result)

    def name_group(self, name: str) -> None:
        """Show the group by this name, where this rank's operations are shown: in errors, status and traces."""

    @abstractmethod
    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int = 0, keep: object = None) -> Work[None]:
        """Send to `dest`; returns at once. Messages match by (source, tag) in the order sent."""

    @abstractmethod
    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int = 0, keep: object = None) -> Work[None]:
        """Receive from `src`; returns at once. The message must have `count` elements of `dtype`.

        If `any_source` is true, src and tag may be ANY, which takes whichever message comes first. The
        Work, once complete, then has the message's `source` and `tag`.
        """

    def probe(self, src: int, tag: int) -> Message | None:
        """The message that a recv from `src` (or ANY) with `tag` (or ANY) would receive now, or None; never blocks."""
        raise no_probe("probe", self.backend)

    def start_arrived(self, src: int, tag: int) -> IncomingMessage | None:
        """Start to receive the message that `probe` would find, into new memory; None if there is none."""
        raise no_probe("start_arrived", self.backend)

    def await_arrival(self, seconds: float) -> None:
        """Wait until another message may have arrived, or for about so long, after `probe` has found nothing."""
        time.sleep(seconds)

    def left(self) -> Collection[int]:
        """The other ranks from which no further message can arrive, as far as this rank knows; never blocks."""
        return ()

    @abstractmethod
    def sync(self) -> None:
        """Return when every pending operation of this rank is complete.

        A send of more than its receiver keeps without a receive is complete once a receive has matched it. So ranks
        that have sent each other that much must start their receives before they call this, or `barrier`.
        """

    @abstractmethod
    def split(self, color: int, key: int = 0) -> Communicator | None:
        """Collective: ranks that pass the same color form a new group, ordered by (key, rank).

        Args:
            color: with a negative one this rank takes no part and receives None.
        """

    def subgroup(self, ranks: Sequence[int]) -> Communicator | None:
        """Collective: a communicator of these ranks, in this order; None on a rank that is not among them.

        One call may create several disjoint groups.

        Raises:
            MismatchError: two members of a group passed different `ranks`.
        """
        members = list(ranks)
        if self.rank not in members:
            return self.split(-1)
        part = self.split(zlib.crc32(repr(members).encode()) & 0x7FFFFFFF, members.index(self.rank))
        assert part is not None  # the color is not below 0
        if (size := part.world_size) != len(members):
            part.close()
            raise MismatchError(f"subgroup(ranks={members}): only {size} of these ranks called it with them")
        return part

    def make_subgroup(self, ranks: Sequence[int]) -> int | None:
        """Create a new group of `ranks` of this group, in their order, and return its number for `join_subgroup`.

        One rank calls this; unlike split it is not collective, and the caller must send the number to the
        other ranks. Returns None if the backend does not support it.
        """
        return None

    def join_subgroup(self, subgroup: int) -> Communicator:
        """This rank's communicator in the group with this number from `make_subgroup`; called once, never waits."""
        raise UnsupportedError("join_subgroup", self.backend)

    def allocate(self, nbytes: int, zeroed: bool = True) -> Any:
        """Allocate registered memory, on which the ranks' operations work in place.

        Memory that was freed is kept for the next request of the same size until the communicator is closed: at most an
        eighth of the available memory for all ranks together. The call is not collective. Operations accept any other
        memory too, with the same results.

        Args:
            zeroed: without it the content is undefined, as `numpy.empty`'s is, which saves time where it will be
                overwritten.

        Returns:
            An object with `__array_interface__` that owns the memory and may outlive the communicator, or None if the
            backend has no registered memory.
        """
        return None

    def host_memory(self, nbytes: int, ticket: Any = None, filled: bool = False) -> HostMemory | None:
        """New zeroed memory that all ranks share, and on which their operations work in place.

        Only groups whose ranks are on one host call this. One rank makes the memory; the others take it, each once.

        Args:
            nbytes: at least 1, the same on every rank.
            ticket: of the memory that another rank has made; None makes it.
            filled: whether a rank fills all of it before any views it; then it takes its pages only as it is filled.

        Returns:
            None if the backend has no such memory; the array level then shares a file.

        Raises:
            MemoryError: there is no room.
        """
        return None

    def words(self, number: int) -> SharedIntegers | None:
        """So many integers of 64 bits, all 0, which the ranks change by single indivisible steps. Collective.

        Only groups whose ranks are on several hosts call this. Returns None if the backend has no such operation.
        """
        return None

    def allocating(self) -> AbstractContextManager[None]:
        """A context in which this thread's new NumPy arrays are in registered memory, if the backend has any."""
        return nullcontext()

    # ---- going on after a loss ----

    def failed(self) -> dict[int, str]:
        """The ranks of this group that are lost, as far as this rank knows, and how each was lost.

        Lost are ranks whose process has ended, that have left the group, or without which the others went on. Not
        collective. It may be called on a group that has failed, as may all operations of this section.
        """
        raise self._cannot("failed")

    def agree(self, flag: int) -> int:
        """The bitwise AND of what the living ranks pass, the same on each of them even if ranks die meanwhile.

        Collective over the ranks of this group that live, as MPI's (ULFM's) MPIX_Comm_agree. It waits for every rank
        that is not lost, at most the timeout. Then the others go on without the ranks that are missing; these are lost
        to the group.

        Args:
            flag: a signed integer of at most 64 bits.

        Raises:
            PeerLostError: with this rank's own number, if the others went on without it.
        """
        raise self._cannot("agree")

    def shrink(self, exclude: Sequence[int] = ()) -> Communicator:
        """A new communicator of the ranks that live, in their order, without those of `exclude`.

        Collective over these, and it waits as `agree` does. `former_ranks` of the new communicator are its ranks'
        numbers in this one. This one stays as it is, and must be closed.

        Args:
            exclude: other ranks of this communicator, which may live; nobody waits for them, and from then on they
                count as lost. All callers pass the same ranks.

        Raises:
            MismatchError: the callers exclude different ranks; all raise it, and may call shrink again.
        """
        raise self._cannot("shrink")

    former_ranks: tuple[int, ...] | None = None
    """For each rank, its rank in the communicator from which `shrink` or `split` made this one.

    None after a `split` if the backend does not know them without a further collective, and on any other communicator.
    """

    def restore(self) -> Communicator:
        """A new communicator of all ranks of the job, lost ones replaced by processes that the launcher started.

        Collective over all living ranks of the job, whichever communicator they call it on; a replacement takes part by
        opening its communicator. It waits, at most the timeout, for a replacement of every lost rank.

        Raises:
            PeerLostError: the launcher does not start the rank that it names again.
            CollectiveTimeout: names the ranks that did not come.
        """
        raise self._cannot("restore")

    def abort(self, reason: str) -> None:
        """Fail the group: the present or next operation of every rank raises PeerLostError.

        Its `rank` is this rank, and its message contains the reason. Not collective.
        """
        raise self._cannot("abort")

    def _cannot(self, operation: str) -> UnsupportedError:
        return UnsupportedError(operation, self.backend, "", "use the backend shm, or start the job again")

    @abstractmethod
    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Give pending work up to `timeout` seconds, then release everything. Idempotent.

        Never raises and never hangs; errors are logged to the logger `rankwise`.
        """


class _Complete(Collectives):
    """The collectives of a communicator that is not blocking."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def run(self, call: Call) -> None:
        self._comm.run(call)
        self._comm.sync()


def complete(comm: Communicator) -> Collectives:
    """The communicator's collectives, each of which is complete when it returns."""
    return comm if comm.blocking else _Complete(comm)


def bind(comm: Communicator, part: object, *names: str) -> None:
    """Give `comm` these methods of one of its parts, in place of methods that would only call them."""
    for name in names:
        setattr(comm, name, getattr(part, name))


def run_keeping(function: Callable[..., T], args: tuple[Any, ...], keep: object) -> T:
    """function(*args); as long as it has not returned, `keep` is alive."""
    return function(*args)
