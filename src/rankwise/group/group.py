"""The group object: an ordered set of ranks, and all operations between them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NoReturn, overload

import numpy as np

from rankwise.arrays.buffers import dtype_argument, shape_argument
from rankwise.contract.closing import CLOSE_TIMEOUT, Closeable
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import ClosedError, shown
from rankwise.contract.public import public
from rankwise.contract.timeouts import check_timeout, check_wait
from rankwise.group.base import each_of, integer_64, of_kind
from rankwise.group.collectives import Collectives
from rankwise.group.farm import Farming
from rankwise.group.messages import Messages
from rankwise.group.objects import ObjectCollectives
from rankwise.group.p2p import PointToPoint
from rankwise.group.related import Related
from rankwise.group.scan import Scans
from rankwise.group.sharing import Sharing
from rankwise.group.streams import GroupStream
from rankwise.group.vector import VectorCollectives
from rankwise.system.membership import LEFT_OUT, MEMBER, Membership
from rankwise.system.once import once

RENEWALS: list[Callable[[], None]] = []
"""Functions to call when another group becomes the default one, or takes the place of one."""


def announce_renewal() -> None:
    """Call the functions in RENEWALS."""
    for renewal in RENEWALS:
        renewal()


@public
class Group(
    Collectives,
    VectorCollectives,
    Scans,
    Farming,
    Sharing,
    ObjectCollectives,
    PointToPoint,
    Messages,
    Closeable,
):
    """An ordered set of ranks that communicate, seen from one of them.

    Arrays: NumPy and anything with `__array_interface__`, the buffer protocol or DLPack, torch tensors, and Python or
    NumPy numbers; over nccl also arrays in CUDA memory: torch tensors and anything with `__cuda_array_interface__`.
    Types: bool, integers, floats, complex, bfloat16, float8_e4m3fn, float8_e5m2. A new result has the input's kind
    (torch for torch, NumPy for most others) and dtype; if `out=` is given, it receives the result and is returned.
    Numbers count as 0-d arrays; for them, operations that work in place return a new number. Arrays that are not
    contiguous work too, at the cost of a copy; for immutable arrays a new array is returned. While grad mode is on, a
    tensor that requires grad is refused, because no gradient would be computed; `rw.autograd` has operations with
    gradients.

    Every rank of the group must call the same operations in the same order, with the same shape, dtype, op and root. A
    difference raises MismatchError on the ranks, a dead rank PeerLostError, and a rank that does not arrive within
    `timeout` CollectiveTimeout. After these errors the group stays failed; the ranks that live may go on in a new one
    (`shrink`, `restore`). Groups that contain no lost rank stay usable. A bad argument raises TypeError or ValueError
    on this rank before anything is sent, and does no harm.

    Operations block until their result is available. With async_op=True they return at once a Work, whose result is the
    return value of the blocking call. Several may be pending; they run in the order of the calls, and before any later
    blocking call. An operation reads and writes its arrays when it runs on `group.stream`, not when it is called. The
    program must not touch them until the Work is done, except in streams for which the group waits before the
    operation, or which wait for the group after it. An operation runs even if nobody waits for it; if it fails,
    `group.stream.synchronize` raises its error, or it is logged when the group is closed. Any thread may call. The
    group owns its communicator and closes it in close, at the end of a `with` block, and in the destructor.

    Attributes:
        rank: this rank's number in the group.
        world_size: the number of ranks.
        ranks: the numbers of the group's ranks in the world (the group that init made), in this group's order.
        name: shown in messages and traces.

    Example:
        >>> group.world_size, group.ranks, group.rank in group.ranks, group.name
        (2, (0, 1), True, 'world')
    """

    _closed = True

    def __init__(
        self,
        comm: Communicator,
        name: str = "world",
        backend: str = "",
        parent: Group | None = None,
        ranks: Any = None,
        membership: Membership | None = None,
        allow_pickle: bool = False,
    ) -> None:
        super().__init__(comm, name, allow_pickle if parent is None else parent.allow_pickle)
        comm.name_group(str(name))
        self.backend = backend
        self.ranks: tuple[int, ...] = tuple(range(comm.world_size)) if ranks is None else tuple(ranks)
        self._is_job = parent is None
        """Whether it is the group of all ranks of the job, or what shrink and restore made from that."""
        self.related: Related = Related() if parent is None else parent.related
        """This rank's groups that were made from each other, as this one was."""
        self.membership: Membership = membership or (Membership() if parent is None else parent.membership)
        """What this rank reports to its launcher about the other ranks of the world."""
        self.successor: Group | None = None
        """The group that `shrink` or `restore` made from this one, or None."""
        self._closed = False
        self.related.add(self)

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<Group {self.name!r}, rank {self.rank} of {self.world_size}, {self.backend or 'own'} backend{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"group {self.name!r} belongs to this rank and cannot be sent; every rank makes its own with split"
        )

    @property
    def handle(self) -> int:
        """The group for compiled code: what `rankwise_from_handle` of `rankwise.h` takes (docs/how-to/compiled.md).

        It is valid as long as the group object exists, whose calls and those of compiled code run in one order.

        Raises:
            UnsupportedError: the backend is not the engine's own (solo, shm, threads).

        Example:
            >>> isinstance(group.handle, int)
            True
        """
        return self.comm.handle

    @property
    def timeout(self) -> float:
        """Seconds that an operation may wait for the other ranks; may be set, to at most 10**9. No wait is endless.

        Example:
            >>> group.timeout = 30
            >>> group.timeout
            30.0
        """
        return self.comm.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self.comm.timeout = check_timeout(seconds)

    @once
    def stream(self) -> GroupStream:
        """The stream of the group's asynchronous operations. It can wait for other streams, and they for it.

        Example:
            >>> with rw.overlap.Stream() as compute:
            ...     numbers = compute.submit(np.arange, 3)
            ...     group.stream.wait_stream(compute)
            ...     done = group.barrier(async_op=True)
            ...     group.stream.record_event().synchronize()
            ...     numbers.done(), done.done()
            (True, True)
        """
        return GroupStream(self.comm, self.pending)

    @contextmanager
    def timeout_of(self, seconds: float) -> Iterator[None]:
        """Change the timeout for the operations in a block: `with group.timeout_of(5): group.barrier()`.

        It affects this group in all threads. An operation started with async_op=True uses the timeout that is set when
        it runs; pass a timeout to its `wait` instead.

        Example:
            >>> with group.timeout_of(5):
            ...     group.barrier()
        """
        before = self.timeout
        self.timeout = seconds
        try:
            yield
        finally:
            self.timeout = before

    @property
    def closed(self) -> bool:
        """Whether the group has been closed.

        Example:
            >>> group.closed
            False
        """
        return self._closed

    @overload
    def split(self, color: int, key: int = 0, name: str | None = None) -> Group: ...
    @overload
    def split(self, color: int | None, key: int = 0, name: str | None = None) -> Group | None: ...
    def split(self, color: int | None, key: int = 0, name: str | None = None) -> Group | None:
        """Collective: the ranks that pass the same color form a new group, ordered by (key, rank).

        Args:
            color: None takes no part. A negative color means the same, as in MPI, but type checkers assume that an int
                color returns a group.

        Returns:
            The group of this rank's color, or None if this rank takes no part.

        Example:
            >>> turned = group.split(color=0, key=-group.rank)
            >>> turned.rank == 1 - group.rank, turned.ranks
            (True, (1, 0))
            >>> turned.close()
            >>> first = group.split(0 if group.rank == 0 else None)
            >>> first.world_size if first is not None else group.rank
            1
        """
        color, key = -1 if color is None else integer_64(color, "color"), integer_64(key, "key")
        comm = self.comm.split(color, key)
        if comm is None:
            return None
        part = Group(comm, name or f"{self.name}.{color}", self.backend, self)
        if comm.former_ranks is None:
            part.ranks = tuple(part.all_gather(np.array(self.ranks[self.rank])).tolist())
        else:
            part.ranks = tuple(self.ranks[former] for former in comm.former_ranks)
        return part

    def split_local(self, name: str | None = None) -> Group:
        """Collective: a new group of the ranks of this rank's host, in their order.

        A host means ranks that can share memory, so containers on one machine may count as several hosts. A rank's
        number in the new group is its local rank. As MPI's Split_type with COMM_TYPE_SHARED.

        Example:
            >>> local = group.split_local()
            >>> local.world_size, local.rank == group.rank
            (2, True)
            >>> local.close()
        """
        return self.split(self._hosts.of[self.rank], self.rank, name or f"{self.name}.local")

    def subgroup(self, ranks: Sequence[int], name: str | None = None) -> Group | None:
        """Collective: a new group of `ranks`, in that order; None on a rank that is not among them.

        Every rank of this group calls it. One call may create several disjoint groups.

        Args:
            ranks: may differ, but all members of a group must pass the same.

        Raises:
            MismatchError: two members of a group passed different `ranks`.

        Example:
            >>> first = group.subgroup([0], name="first")
            >>> first is None if group.rank == 1 else first.all_reduce(5) == 5
            True
        """
        members = [self._rank(rank, "ranks") for rank in each_of(ranks, "ranks", "ranks of the group")]
        if not members or len(set(members)) != len(members):
            raise ValueError(f"ranks={members}: expected at least one rank, and each once")
        comm = self.comm.subgroup(members)
        if comm is None:
            return None
        world_ranks = [self.ranks[rank] for rank in members]
        return Group(comm, name or f"{self.name}{members}", self.backend, self, world_ranks)

    def dup(self, name: str | None = None) -> Group:
        """Collective: another group of the same ranks. Operations and messages of the two groups never match.

        Example:
            >>> with group.dup("for a library") as copy:
            ...     copy.all_reduce(1), copy.name
            (2, 'for a library')
        """
        comm = self.comm.split(0, self.rank)
        assert comm is not None  # color >= 0
        return Group(comm, name or f"{self.name}.dup", self.backend, self, self.ranks)

    def failed(self) -> dict[int, str]:
        """The ranks of this group that are lost, as far as this rank knows, and how: {2: "was killed by SIGKILL"}.

        Lost are ranks whose process has ended, that have closed the group, or without which the others went on. A group
        that failed for another reason, such as a mismatch, has lost none. Not collective. ULFM splits this into
        MPIX_Comm_failure_ack and MPIX_Comm_failure_get_acked, for which there is no need here.

        Example:
            >>> lost = group.failed()
            >>> group.barrier()  # nobody closes the group before
            >>> lost
            {}
        """
        return self.comm.failed()

    def agree(self, flag: int) -> int:
        """The bitwise AND of the living ranks' flags, the same on each of them even if ranks die meanwhile.

        Collective over the ranks of this group that live, as ULFM's MPIX_Comm_agree: `if group.agree(done)` takes the
        same branch on all of them. It waits for every rank that is not lost, at most `group.timeout`; then the others
        go on without the ranks that are missing. (ULFM waits forever, and reports failures that were not acknowledged;
        here the result says nothing about failures.)

        Args:
            flag: an int of at most 64 bits, or a bool.

        Raises:
            PeerLostError: with this rank's own number, if the others went on without it; it is lost to the group.

        Example:
            >>> group.agree(True), group.agree(6 if group.rank == 0 else 3)
            (1, 2)
        """
        return self.comm.agree(integer_64(flag, "flag"))

    def abort(self, reason: str) -> None:
        """Wake every rank of the group: its present or next operation raises PeerLostError with the reason.

        The error's `rank` is this rank, its `how` "aborted the group: " and the reason; this rank's own later
        operations raise it too. No process ends, and all ranks may go on by `shrink`. Not collective. It is ULFM's
        MPIX_Comm_revoke, with a reason; ncclCommAbort ends only the calling rank's part.

        Example:
            >>> with group.dup() as part:
            ...     part.abort("the loss is not a number")
            ...     try:
            ...         part.barrier()
            ...     except rw.PeerLostError as error:
            ...         print(error.how.endswith("aborted the group: the loss is not a number"))
            True
        """
        if self.pending._forked:
            raise ClosedError("this group belongs to the parent of this forked process, which alone may abort it")
        self.comm.abort(reason)

    def shrink(self, exclude: Sequence[int] = ()) -> Group:
        """A new group of the ranks that live, in their order and numbered anew.

        Collective over the living ranks of this group, which may have failed. It finds the lost ranks itself, as ULFM's
        MPIX_Comm_shrink does; NCCL's ncclCommShrink takes them as an argument. Ranks may die at any moment, also during
        the call: all survivors get the same group, and if a rank of it is already lost, its first operation raises
        PeerLostError, after which it can be shrunk in turn. It waits for each rank that is not lost, at most `timeout`;
        then the others go on without the ranks that are missing, whose own call of shrink, or whose next operation,
        raises an error that says so. This group stays failed and should be closed. If it was the default group, the new
        one becomes the default group.

        Args:
            exclude: other ranks of this group to leave out although they may live; no rank need have failed. No rank
                waits for them, and they need not call anything. All callers pass the same ranks. Asynchronous
                operations that are still pending after a second fail, because they wait for one of these ranks; over
                gloo they may last until the timeout. Sends and receives stay pending.

        Raises:
            PeerLostError: with this rank's own number, if the others went on without it.
            MismatchError: on every caller if they exclude different ranks, after which they may call shrink again.
            MemoryError: on every caller if there is no room for the new group.
            ValueError: `exclude` contains this rank or a number that is no rank of the group.
            UnsupportedError: the backend is mpi and `exclude` is not empty, or MPI does not report lost ranks.

        Example:
            >>> smaller = group.shrink()
            >>> smaller.ranks, smaller.all_reduce(1)
            ((0, 1), 2)
            >>> smaller.close()
        """
        without = [self._rank(rank, "exclude") for rank in each_of(exclude, "exclude", "ranks of the group")]
        if self.rank in without:
            raise ValueError(f"exclude={without}: expected other ranks than this one, {self.rank}")
        comm = self.comm.shrink(without)
        former = comm.former_ranks
        assert former is not None
        new = Group(comm, self.name, self.backend, self, [self.ranks[rank] for rank in former])
        if self._is_job:
            self.membership.note(set(self.ranks).difference(new.ranks), LEFT_OUT)
        return self._replaced_by(new)

    def restore(self) -> Group:
        """A new group of all ranks of the job, as `init` made it: the launcher has started the lost ones again.

        Collective over all living ranks of the job, on the group of all ranks or on what `shrink` made from it; in a
        process that replaces a lost one, `init` is its part of the call. It needs `rankwise run --restarts N`. It waits
        for each lost rank, at most `timeout`, however often its replacements die. As Horovod's elastic mode, but the
        survivors' processes, connections and memory stay as they are. Groups with a lost rank stay failed; split them
        off anew.

        Raises:
            UnsupportedError: no launcher starts lost ranks again.
            PeerLostError: the launcher has given a rank up; the living ranks may still `shrink`.
            CollectiveTimeout: a rank did not come; the living ranks may still `shrink`.

        Example:
            >>> try:
            ...     group.restore()
            ... except rw.UnsupportedError as error:
            ...     print(error.remedy or error.why)  # doctest: +ELLIPSIS
            the launcher does not start lost ranks again; ...
        """
        new = Group(self.comm.restore(), self.name, self.backend, self)
        self.membership.note(new.ranks, MEMBER)
        return self._replaced_by(new)

    def _replaced_by(self, new: Group) -> Group:
        self.successor = new
        new._is_job = self._is_job
        announce_renewal()
        return new

    def translate_rank(self, rank: int, other: Group) -> int | None:
        """The number that `rank` of this group has in `other`, or None if it is not in that group.

        Raises:
            ValueError: the two groups come from different worlds.

        Example:
            >>> with group.split(0, -group.rank) as turned:
            ...     [group.translate_rank(rank, turned) for rank in range(2)]
            [1, 0]
        """
        rank = self._rank(rank, "rank")
        if of_kind(other, "other", Group, "a Group").related is not self.related:
            raise ValueError(f"other: expected a group made from the same world as {self.name!r}, got {other!r}")
        translated = self.ranks[rank]
        return other.ranks.index(translated) if translated in other.ranks else None

    def empty(self, shape: int | Sequence[int], dtype: Any = float) -> Any:
        """A new zeroed array in registered memory.

        If all ranks pass registered memory to a collective, it copies no byte more than necessary; if one rank does
        not, the usual algorithms run, with the same bits as result. This call is not collective: each rank may create
        arrays as it likes. The memory is freed with the array and its last view, even long after the group was closed.
        Until the group is closed, freed memory is kept for the next array of the same size. On a backend without such
        memory the array is an ordinary one.

        Args:
            dtype: a torch dtype gives a tensor.

        Raises:
            MemoryError: the machine has too little memory left.
            ValueError: the size is impossible.

        Example:
            >>> x = group.empty((2, 3), np.float32)
            >>> group.all_reduce(x).shape, x.dtype
            ((2, 3), dtype('float32'))
        """
        wanted, kind = dtype_argument(dtype)
        lengths = shape_argument(shape, "shape", wanted)
        size = prod(lengths) * wanted.itemsize
        memory = self.comm.allocate(size)
        return kind.over(np.zeros(size, np.uint8) if memory is None else np.asarray(memory), lengths, wanted)

    def rng(self, seed: int | Sequence[int]) -> np.random.Generator:
        """This rank's generator of random numbers, whose stream is independent of the other ranks'.

        The call communicates nothing. Rank r gets the r-th of the streams that NumPy's SeedSequence.spawn derives from
        the seed, whatever the number of ranks; a second call with the same seed begins the same stream again. If
        a program's results must not depend on the number of ranks, draw the numbers for each piece of its data
        from `np.random.default_rng([seed, piece])` instead.

        Args:
            seed: one or several ints of at least 0, the same on every rank.

        Example:
            >>> numbers = group.all_gather(group.rng(7).integers(100, size=3))
            >>> first, second = (np.random.default_rng(s) for s in np.random.SeedSequence(7).spawn(2))
            >>> numbers.tolist() == [first.integers(100, size=3).tolist(), second.integers(100, size=3).tolist()]
            True
        """
        try:  # in a list None is refused, for which each rank would get a seed of its own
            return np.random.default_rng(np.random.SeedSequence([seed], spawn_key=(self.rank,)))
        except (TypeError, ValueError) as error:
            raise type(error)(f"seed={shown(seed)}: expected one or several ints of at least 0") from None

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Give pending work up to `timeout` seconds, then release everything. May be repeated.

        Other errors than the following are logged to the logger `rankwise`. So is a difference between the ranks' last
        calls that no operation has raised, for example if every rank broadcasts with itself as src.

        Raises:
            TypeError, ValueError: `timeout` is not a number of seconds; nothing is closed then.

        Example:
            >>> part = group.split(0)
            >>> part.close()
            >>> part.closed
            True
        """
        if not self._closed:
            timeout = check_wait(timeout, optional=False)
            self._closed = True
            self.pending.before_close()
            self._close_hosts(timeout)
            self.comm.close(timeout)
            self.pending.close()

    def __del__(self, exits: Callable[[], bool] = sys.is_finalizing) -> None:
        # The engine must release the memory of pending works before that is freed. While the interpreter exits,
        # the communicator has been closed already, and modules may be gone.
        if not self._closed and not exits():
            self.close()
