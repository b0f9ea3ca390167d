"""What the ranks of a host share: one copy of an array, counters and locks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import prod
from types import TracebackType
from typing import Any

import numpy as np

from rankwise._native import LockProtocol, Words, available_memory
from rankwise.arrays.base import bytes_of
from rankwise.arrays.buffers import dtype_argument, shape_argument, source
from rankwise.arrays.dtypes import DTYPES
from rankwise.arrays.numpy import NUMPY, address
from rankwise.arrays.torch import TORCH
from rankwise.contract.closing import CLOSE_TIMEOUT
from rankwise.contract.communicator import Collectives, Communicator, complete
from rankwise.contract.errors import MismatchError, RankwiseError, UnsupportedError, too_late
from rankwise.contract.host_memory import HostMemory
from rankwise.contract.logger import logger
from rankwise.contract.public import public
from rankwise.contract.shared_integers import SharedIntegers
from rankwise.contract.timeouts import check_wait
from rankwise.contract.types import DTYPE_NAMES, DType
from rankwise.group.base import GroupBase
from rankwise.group.objects import ObjectCollectives
from rankwise.system.once import once

_CHECK = 0.1  # seconds between two checks, by a rank that waits for a lock, whether its holder is alive
_HOLDER, _SLEEPERS = 0, 1  # the words of a lock
_CHECKED_MEMORY = 1 << 20  # from this size on, free memory is read first, which takes some 20 us; as in the engine
_NO_TROUBLE = ("", "")  # what kind it is, and the error's text

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@public
class Counter:
    """A counter that all ranks of a group share; `group.counter()` makes it. Any thread may use it.

    Its methods are not collective: any rank may call them at any time. If all ranks are on one host, it goes on
    working after its group has been closed or has failed.

    Example:
        >>> tickets = group.counter()
        >>> drawn = [tickets.next() for _ in range(3)]
        >>> sorted(sum(group.all_gather_object(drawn), []))
        [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, words: SharedIntegers) -> None:
        self._words = words

    def next(self) -> int:
        """The next number: each of 0, 1, 2 and so on is returned once, over all ranks.

        Example:
            >>> counter = group.counter()
            >>> counter.next() in (0, 1)
            True
        """
        return self._words.add(0, 1)

    def add(self, n: int) -> int:
        """Add `n`, which may be negative, and return the value before. The value wraps around at 2**63.

        Example:
            >>> counter = group.counter()
            >>> before = counter.add(10)
            >>> group.barrier()
            >>> before in (0, 10), counter.value
            (True, 20)
        """
        return self._words.add(0, n)

    @property
    def value(self) -> int:
        """The value now: how many numbers `next` has returned, if nobody has called `add`.

        Example:
            >>> group.counter().value
            0
        """
        return self._words.add(0, 0)


@public
class Lock:
    """A lock that one thread of one rank of the group holds at a time; `group.lock()` makes it.

    A context manager: `with lock: ...`. If a rank dies while it holds the lock, the next one gets it, a warning is
    logged, and `abandoned_by` is the rank that died: what the lock protects may be half done. The thread that holds
    the lock must not acquire it again. What a rank wrote to shared memory while it held the lock is seen by the
    ranks that hold it later.

    Attributes:
        abandoned_by: the rank that died while it held the lock, if this rank got it from there; else None. It is set by
            each `acquire`.

    Example:
        >>> lock, total = group.lock(), group.shared_zeros(1)
        >>> with lock:
        ...     total += 1
        >>> group.barrier()
        >>> total.tolist()
        [2.0]
    """

    def __init__(self, words: SharedIntegers, comm: Communicator) -> None:
        self._words, self._comm = words, comm
        self._protocol = LockProtocol(words, comm.rank, comm.world_size)
        self.abandoned_by: int | None = None

    def acquire(self, timeout: float | None = None) -> None:
        """Wait until this rank holds the lock.

        Args:
            timeout: seconds, by default the group's timeout.

        Raises:
            CollectiveTimeout: another holds it. It names the rank, and the group stays usable.
            ClosedError: this is a forked child, which is no rank; so does `release`.

        Example:
            >>> lock = group.lock()
            >>> lock.acquire(timeout=5)
            >>> lock.release()
        """
        limit = None if timeout is None else check_wait(timeout)
        if self._protocol.try_acquire():
            self.abandoned_by = None
            return
        self._words.add(_SLEEPERS, 1)
        try:
            self.abandoned_by = self._wait(self._comm.timeout if limit is None else limit)
        finally:
            self._words.add(_SLEEPERS, -1)
        if self.abandoned_by is not None:
            logger().warning(
                "rank %d got a lock that rank %d held when it was lost: what it protects may be half done",
                self._comm.rank,
                self.abandoned_by,
            )

    def release(self) -> None:
        """Let the next one have the lock.

        Raises:
            RuntimeError: this rank does not hold it.

        Example:
            >>> lock = group.lock()
            >>> try:
            ...     lock.release()
            ... except RuntimeError as error:
            ...     print(error)
            release: this rank does not hold the lock
        """
        if not self._protocol.release():
            raise RuntimeError("release: this rank does not hold the lock")

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _wait(self, limit: float) -> int | None:
        """Returns the rank that died while it held the lock, or None."""
        end, check = time.monotonic() + limit, time.monotonic() + _CHECK
        while True:
            holder = self._words.add(_HOLDER, 0)
            if not holder:
                if self._protocol.try_acquire():
                    return None
                continue
            rank = (holder - 1) % self._comm.world_size
            now = time.monotonic()
            if now >= check:
                check = now + _CHECK
                if rank in self._lost() and self._protocol.try_acquire(holder):
                    return rank
            if now >= end:
                why = f": rank {rank} holds it"
                raise too_late("the lock was not free", limit, why, operation="lock", missing=(rank,))
            self._words.sleep_while(_HOLDER, holder, min(check, end) - now)

    def _lost(self) -> dict[int, str]:
        try:
            return self._comm.failed()
        except UnsupportedError:  # this engine ends the job when a rank dies
            return {}


class _Hosts:
    """The hosts of a group's ranks.

    of: each rank's host, numbered in the order of their first ranks. local: the operations among this host's ranks.
    between: those among the hosts' first ranks, on these if there are several hosts. parts: the communicators made.
    """

    def __init__(self, group: ObjectCollectives, own_mark: bytes) -> None:
        marks = group.all_gather_object(own_mark)
        numbers = {each: number for number, each in enumerate(dict.fromkeys(marks))}
        self.of = [numbers[each] for each in marks]
        self.number = len(numbers)
        self.local: ObjectCollectives = group
        self.between: Collectives | None = None
        self.parts: list[Communicator] = []
        if self.number == 1:
            return
        host = self.of[group.rank]
        local = group.comm.split(host, group.rank)
        assert local is not None
        self.local = ObjectCollectives(local, f"{group.name}, host {host}")
        first = group.rank == self.of.index(host)
        between = group.comm.split(0 if first else -1, group.rank)
        self.between = None if between is None else complete(between)
        self.parts = [part for part in (local, between) if part is not None]


class Sharing(GroupBase):
    """Operations that make what the ranks of a host share. All are collective.

    The memory has no name. It is freed with the last of its views on any rank, even long after the group was closed.
    """

    @once
    def _hosts(self) -> _Hosts:
        """Collective when it is first used."""
        return _Hosts(self._objects, self._mark())

    @once
    def _objects(self) -> ObjectCollectives:
        """The operations on Python objects among the same ranks."""
        return ObjectCollectives(self.comm, self.name)

    def _close_hosts(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Close the communicators of the hosts, if there are any."""
        hosts: _Hosts | None = vars(self).get("_hosts")
        for part in hosts.parts if hosts is not None else ():
            part.close(timeout)

    def _mark(self) -> bytes:
        """The same on all ranks of a host."""
        from rankwise.system.locality import mark  # few programs need it, and it takes time to load

        return mark()

    def share(self, x: Any = None, src: int = 0) -> Any:
        """One copy of rank `src`'s array for each host, which all ranks read.

        Between hosts the array is broadcast once, among the hosts' first ranks. Where `empty` makes registered memory,
        the NumPy arrays of this are registered too: collectives read them in place.

        Args:
            x: an array, a tensor or a number; ignored on ranks other than `src`.

        Returns:
            On every rank, src too, a view of its host's copy, with x's shape and dtype. A NumPy array is read-only. If
            x is a tensor, so is the result, always in host memory; torch has no read-only tensors, so what a rank
            writes to it is seen by that rank alone. Otherwise the result is a NumPy array.

        Raises:
            MemoryError: on every rank, if a host has too little memory left.

        Example:
            >>> table = group.share(np.arange(6).reshape(2, 3) if group.rank == 0 else None)
            >>> table.tolist(), table.flags.writeable
            ([[0, 1, 2], [3, 4, 5]], False)
        """
        src = self._rank(src, "src")
        given = self._on_host(source(x)) if self.rank == src else None
        about = None if given is None else (int(given.dtype), given.shape, given.kind is TORCH)
        code, shape, of_torch = self._objects.broadcast_object(about, src)
        dtype, kind = DTYPES[code], TORCH if of_torch else NUMPY
        size = prod(shape) * dtype.itemsize
        hosts = self._hosts
        memory = self._host_memory(size, "share", filled=hosts.of[self.rank] == hosts.of[src])
        try:
            trouble = _NO_TROUBLE
            if given is not None:
                self._pack(given)
                try:
                    memory.fill(bytes_of(given))
                except OSError as error:
                    trouble = "memory", f"share: rank {src} could not write its array into shared memory: {error}"
            self._agree(trouble)
            if hosts.number > 1:
                if hosts.between is not None and size:
                    whole = _bytes(memory, size, writable=True)
                    hosts.between.broadcast(address(whole), size, DType.U8, hosts.of[src])
                self._barrier()
            return kind.over(_bytes(memory, size, writable=False, own_writes=of_torch), tuple(shape), dtype)
        finally:
            memory.close()

    def shared_zeros(self, shape: int | Sequence[int], dtype: Any = float) -> Any:
        """One array of zeros for each host, which all its ranks read and write.

        What a rank has written is seen by the others of its host after the next `group.barrier()`, or while they hold
        a lock that the rank released after it wrote. Without one of these, a rank may see any of the values that
        another is writing; elements of up to 8 bytes are never seen half written. Where `empty` makes registered
        memory, this array is registered too: collectives read and write it in place.

        Args:
            shape: the same on every rank.
            dtype: the same on every rank; a torch dtype gives a tensor.

        Raises:
            MemoryError: on every rank, if a host has too little memory left.
            MismatchError: on every rank, if they pass different shapes or dtypes.

        Example:
            >>> field = group.shared_zeros((2, 3))
            >>> field[group.rank] = group.rank + 1
            >>> group.barrier()
            >>> field.sum(axis=1).tolist()
            [3.0, 6.0]
        """
        wanted, kind = dtype_argument(dtype)
        lengths = shape_argument(shape, "shape", wanted)
        asked = self._objects.all_gather_object((lengths, int(wanted)))
        for rank, (other_shape, code) in enumerate(asked):
            if (other_shape, code) != asked[0]:
                first, other = (
                    f"shape {s}, dtype {DTYPE_NAMES[DTYPES[c]]}" for s, c in (asked[0], (other_shape, code))
                )
                raise MismatchError(f"shared_zeros: rank 0 asks for {first}, rank {rank} for {other}")
        size = prod(lengths) * wanted.itemsize
        return kind.over(self._zeros(size, "shared_zeros"), lengths, wanted)

    def counter(self) -> Counter:
        """A new counter, which all ranks of the group share; it begins at 0.

        Within a host it is one word of shared memory. Between hosts it is MPI's Fetch_and_op, or gloo's store. If that
        cannot be reached, counters and locks raise PeerLostError, at the latest after the timeout that the group was
        made with.

        Raises:
            UnsupportedError: the ranks are on several hosts, and the backend has no such operation.

        Example:
            >>> tasks = group.counter()
            >>> done = []
            >>> while (number := tasks.next()) < 5:
            ...     done.append(number)
            >>> sorted(sum(group.all_gather_object(done), []))
            [0, 1, 2, 3, 4]
        """
        return Counter(shared_words(self, 1, "counter"))

    def lock(self) -> Lock:
        """A new lock, which all ranks of the group share; nobody holds it.

        Raises:
            UnsupportedError: as `counter`.

        Example:
            >>> lock = group.lock()
            >>> with lock:
            ...     pass
        """
        return Lock(shared_words(self, 2, "lock"), self.comm)

    def _zeros(self, size: int, operation: str) -> Bytes:
        """New memory of this host, which all its ranks read and write."""
        memory = self._host_memory(size, operation)
        try:
            return _bytes(memory, size, writable=True)
        finally:
            memory.close()

    def _host_memory(self, size: int, operation: str, filled: bool = False) -> HostMemory:
        """New zeroed memory of this host, at least one byte. Every rank closes its own.

        Collective; if one rank cannot have it, every rank raises the error. filled: see Communicator.host_memory.
        """
        from rankwise.system.host_memory import HostFile  # few programs need sockets

        local, memory, trouble = self._hosts.local, None, _NO_TROUBLE
        end, room = time.monotonic() + self.comm.timeout, max(1, size)
        try:
            try:
                if local.rank == 0:
                    memory, trouble = _created(local.comm, room, operation, filled)
                    local.broadcast_object(memory and memory.ticket)
                    if memory is not None:
                        memory.hand_out(local.world_size - 1, end)
                elif ticket := local.broadcast_object():
                    memory = local.comm.host_memory(room, ticket) or HostFile.take(ticket, room, end)
            except OSError as error:
                trouble = "sharing", f"{operation}: rank {self.rank} could not share memory with its host: {error}"
            self._agree(trouble)
        except BaseException:
            if memory is not None:
                memory.close()
            raise
        assert memory is not None
        return memory

    def _agree(self, trouble: tuple[str, str]) -> None:
        """Raise the error on every rank if a rank has trouble. No rank goes on before all have called this."""
        for kind, text in self._objects.all_gather_object(trouble):
            if kind:
                raise MemoryError(text) if kind == "memory" else RankwiseError(text)


def shared_words(group: Sharing, number: int, operation: str) -> SharedIntegers:
    """So many words, all 0. Collective. operation: what an error names."""
    if group._hosts.number > 1:
        words = group.comm.words(number)
        if words is None:
            raise UnsupportedError(
                operation, group.comm.backend, "the ranks are on several hosts", "use the backend mpi or gloo"
            )
        return words
    memory = group._zeros(8 * number, operation)
    return Words(memory, address(memory), number)


def _created(comm: Communicator, size: int, operation: str, filled: bool) -> tuple[HostMemory | None, tuple[str, str]]:
    """New memory and no trouble, or None and what is wrong."""
    from rankwise.system.host_memory import HostFile
    from rankwise.system.shared_pages import no_room

    available = size if size < _CHECKED_MEMORY else available_memory()
    try:
        if size > available:
            raise MemoryError(no_room(size, available, operation))
        memory = comm.host_memory(size, filled=filled) or HostFile.create(size, available, operation, filled)
        return memory, _NO_TROUBLE
    except MemoryError as error:
        return None, ("memory", str(error))
    except OSError as error:
        return None, ("memory", f"{operation}: {error}")


def _bytes(memory: HostMemory, size: int, *, writable: bool, own_writes: bool = False) -> Bytes:
    """The first `size` bytes of the memory."""
    return np.frombuffer(memory.view(writable=writable, own_writes=own_writes), np.uint8, size)
