"""What the backends over other engines share: the whole contract, given an engine that moves bytes.

An *engine* is another library between the ranks: MPI, gloo. A *move* is an operation of it without
arithmetic: bytes from addresses to addresses. An adapter provides the moves, a way to send and receive,
and declares which reductions its engine does as the contract requires. All other reductions are made
here of moves and the native kernels, with operands in rank order, so that every rank has the same bits.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from rankwise._native import address, reduce_local
from rankwise.backends import tuning
from rankwise.backends.composed import counting
from rankwise.backends.composed.calls import MOVES, payload
from rankwise.backends.composed.comparing import ComparingCommunicator
from rankwise.backends.composed.p2p import Channel
from rankwise.contract import measuring
from rankwise.contract.errors import RankwiseError, UnsupportedError
from rankwise.contract.message import ANY, IncomingMessage, Message
from rankwise.contract.operations import Call, check_count, check_rank, divided, in_bytes
from rankwise.contract.types import ITEMSIZE, DType, ReduceOp
from rankwise.contract.work import Work

ROOM = 1 << 20  # bytes of scratch memory that are kept at most


class ComposedCommunicator(ComparingCommunicator):
    """One rank's end of one group of another engine.

    The moves are the methods from `_barrier` on; sizes are in bytes and may be 0; the address of an
    empty buffer is ignored. They raise `engine_errors`, which `_explain` converts to rankwise's errors.
    """

    _channel: Channel
    _most_tags = 1 << 31

    def __init__(
        self, rank: int, world_size: int, timeout: float, *, checks: bool, shared_lock: threading.RLock | None = None
    ) -> None:
        """checks, shared_lock: as for ComparingCommunicator."""
        self._forced: dict[str, str] = {}
        self._room = np.empty(0, np.uint8)
        inline = tuning.inline(self.backend, world_size)
        super().__init__(rank, world_size, timeout, checks=checks, inline=inline, shared_lock=shared_lock)

    def force(self, algorithms: Mapping[str, str]) -> None:
        """Run these algorithms, by operation, instead of the usual choice; the same on all ranks.

        This also applies to groups that are split off later, or made by `shrink`; a group of one rank ignores it.
        ValueError for a name that this backend does not have. A call that the algorithm cannot run raises
        UnsupportedError.
        """
        forced = tuning.check(self.backend, algorithms)
        self._forced = forced if self._world_size > 1 else {}

    def run(self, call: Call) -> None:
        call.check(self._world_size)
        if self._forced:
            call = self._forcing(call)
        move, arguments = MOVES[call.operation]
        self._run(call, getattr(self, move), arguments(call))

    # ---- point-to-point, through a channel ----

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int = 0, keep: object = None) -> Work[None]:
        self._check_message(count, dest, tag)
        start = self._channel.send
        if measuring.measurements and self.counted:
            start = partial(counting.message, "send", start)
        return start(ptr, count, dtype, dest, tag, keep)

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int = 0, keep: object = None) -> Work[None]:
        self._check_message(count, src, tag, ANY)
        start = self._channel.recv
        if measuring.measurements and self.counted:
            start = partial(counting.message, "recv", start)
        return start(ptr, count, dtype, src, tag, keep)

    def probe(self, src: int, tag: int) -> Message | None:
        self._check_message(0, src, tag, ANY)
        return self._channel.probe(src, tag)

    def start_arrived(self, src: int, tag: int) -> IncomingMessage | None:
        self._check_message(0, src, tag, ANY)
        return self._channel.start_arrived(src, tag)

    def sync(self) -> None:
        self._drain()
        self._channel.sync()

    def _check_message(self, count: int, peer: int, tag: int, least: int = 0) -> None:
        """least: of peer and tag; a receive may pass ANY."""
        if count < 0 or not (least <= peer < self._world_size and least <= tag < self._most_tags):
            check_count(count)
            if peer < least or peer >= self._world_size:
                check_rank(peer, self._world_size, "src" if least else "dest")
            if tag < least:
                raise ValueError(f"tag={tag}: expected 0 or more")
            raise UnsupportedError(f"tag={tag}", self.backend, f"it has tags below {self._most_tags}")
        if self._final_error is not None:
            raise self._final_error_copy()

    def _message_failed(self, error: Exception, where: str) -> RankwiseError:
        """Fail the group because of an error in the message `where`; returns what every call raises from now on."""
        if self._final_error is None:
            self._fail(error if isinstance(error, RankwiseError) else self._explain(error, where))
        return self._final_error_copy()

    # ---- algorithms ----

    def _forcing(self, call: Call) -> Call:
        """The call with the algorithm that is forced. Raises UnsupportedError on every rank if `inline` cannot run."""
        name = call.operation.name
        algorithm = self._forced.get(name, "")
        size, most = payload(call, self._world_size), self._inline.get(name, -1)
        if algorithm == "inline" and not (self.checks and size <= most):
            why, remedy = f"it takes at most {most} bytes, and this call has {size}", ""
            if not self.checks:
                why, remedy = "the ranks do not compare their calls", "set RANKWISE_CHECK=1"
            raise tuning.cannot_run(self.backend, name, "inline", why, remedy)
        return call._replace(algorithm=algorithm)

    def _algorithm(self, operation: str, chosen: str) -> str:
        """The algorithm for an operation: the chosen one, unless another is forced."""
        return self._forced.get(operation, chosen)

    # ---- what an adapter provides ----

    @abstractmethod
    def _barrier(self) -> None: ...

    @abstractmethod
    def _broadcast(self, ptr: int, size: int, root: int) -> None: ...

    @abstractmethod
    def _all_gather_v(self, send: int, recv: int, sizes: Sequence[int]) -> None: ...

    @abstractmethod
    def _all_to_all_v(self, send: int, recv: int, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> None: ...

    # ---- what an adapter may do better ----

    def _collect(self, own: int, everybody: int, size: int) -> None:
        self._all_gather(own, everybody, size)

    def _gather_v(self, send: int, recv: int, sizes: Sequence[int], root: int) -> None:
        own_sizes, whole = self._rooted(sizes, root)
        self._all_to_all_v(send, recv, own_sizes, whole)

    def _scatter_v(self, send: int, recv: int, sizes: Sequence[int], root: int) -> None:
        own_sizes, whole = self._rooted(sizes, root)
        self._all_to_all_v(send, recv, whole, own_sizes)

    def _rooted(self, sizes: Sequence[int], root: int) -> tuple[Sequence[int], Sequence[int]]:
        """The bytes that this rank exchanges with each rank: its own block with root, and as root all ranks' blocks."""
        own_sizes = [sizes[self._rank] if rank == root else 0 for rank in range(self._world_size)]
        return own_sizes, sizes if self._rank == root else (0,) * self._world_size

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
        chosen = tuning.all_reduce(self.backend, self._world_size, count * ITEMSIZE[dtype])
        self._reduce_to(None, self._algorithm("all_reduce", chosen), ptr, count, dtype, op)

    def _reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp, root: int) -> None:
        chosen = tuning.reduce(self.backend, self._world_size, count * ITEMSIZE[dtype])
        self._reduce_to(root, self._algorithm("reduce", chosen), ptr, count, dtype, op)

    def _reduce_to(self, root: int | None, algorithm: str, ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        """Reduce in place on root, or on every rank if root is None: piece by piece, by one of two algorithms.

        reduce_scatter: each rank reduces its share, and root gathers the shares; an all_reduce then sends 2(n-1)/n
        times the array's bytes, as few as any algorithm can. Else root gathers all arrays and reduces them.
        """
        n, item = self._world_size, ITEMSIZE[dtype]
        if n == 1:
            reduce_local(ptr, [ptr], count, dtype, op, n)
            return
        divides = algorithm == "reduce_scatter"
        step = max(n, (tuning.DIVIDED_AT_ONCE if divides else tuning.REDUCED_AT_ONCE) // item)
        for start in range(0, count, step):
            reduce_piece = self._reduce_by_shares if divides else self._reduce_gathered
            reduce_piece(root, ptr + start * item, min(step, count - start), dtype, op)

    def _reduce_by_shares(self, root: int | None, ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        counts = divided(count, self._world_size)
        share = np.empty(max(1, counts[self._rank] * ITEMSIZE[dtype]), np.uint8)
        self._reduce_scatter_v(ptr, address(share), counts, dtype, op)
        if root is None:
            self._all_gather_v(address(share), ptr, in_bytes(counts, dtype))
        else:
            self._gather_v(address(share), ptr, in_bytes(counts, dtype), root)

    def _reduce_gathered(self, root: int | None, ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        n, size = self._world_size, count * ITEMSIZE[dtype]
        if root not in (None, self._rank):
            self._gather(ptr, 0, size, root)
            return
        memory = self._scratch(size * n)
        room = address(memory)
        if root is None:
            self._all_gather(ptr, room, size)
        else:
            self._gather(ptr, room, size, root)
        reduce_local(ptr, [room + rank * size for rank in range(n)], count, dtype, op, n)

    def _reduce_scatter(self, send: int, recv: int, count: int, dtype: DType, op: ReduceOp) -> None:
        self._reduce_scatter_v(send, recv, (count,) * self._world_size, dtype, op)

    def _reduce_scatter_v(self, send: int, recv: int, counts: Sequence[int], dtype: DType, op: ReduceOp) -> None:
        """Each rank receives all ranks' blocks for it, and reduces them."""
        n, own_bytes = self._world_size, counts[self._rank] * ITEMSIZE[dtype]
        room = self._scratch(own_bytes * n)
        if min(counts) == max(counts):
            self._all_to_all(send, address(room), own_bytes)
        else:
            self._all_to_all_v(send, address(room), in_bytes(counts, dtype), (own_bytes,) * n)
        sources = [address(room) + rank * own_bytes for rank in range(n)]
        reduce_local(recv, sources, counts[self._rank], dtype, op, n)

    def _scratch(self, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Memory of `size` bytes, valid until the next call of this method; at most ROOM is kept."""
        if size > ROOM:
            return np.empty(size, np.uint8)
        if size > self._room.nbytes:
            self._room = np.empty(size, np.uint8)
        return self._room
