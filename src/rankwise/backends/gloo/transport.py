"""Moves bytes between the ranks of one gloo group: torch's ProcessGroupGloo, called with addresses."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise._native import address
from rankwise.contract.timeouts import LONGEST_TIMEOUT
from rankwise.contract.types import DType, ReduceOp

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store

# gloo's tags of point-to-point transfers have 31 bits. p2p.py defines the tags of envelopes and their data.
STANDING_TAG = 2**31 - 3
EXCHANGE_TAG = 2**31 - 2
NEVER_TAG = 2**31 - 1  # no transfer uses it

_FOREVER = timedelta(seconds=LONGEST_TIMEOUT)  # gloo ends all connections after it
_WRITE = 0x200  # PyBUF_WRITE
_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype = ctypes.py_object
_view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


class Transport:
    """One rank's connections to the others.

    Addresses point to the caller's memory; sizes are in bytes and may be 0. The collectives block; `send` and `recv`
    return torch's Work, for `wait`. If gloo fails, every method raises RuntimeError, and all connections end.
    """

    def __init__(self, store: Store, device: Any, rank: int, world_size: int, timeout: float) -> None:
        """Connect `world_size` ranks, whose addresses are in `store`. device: gloo's, made by ProcessGroupGloo."""
        from torch._C._distributed_c10d import ProcessGroupGloo

        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stubs lack it
        options._devices = [device]
        options._threads = 2
        options._timeout = timedelta(seconds=timeout)
        self.rank, self.world_size = rank, world_size
        self.timeout = self.patience = timeout
        before = _sockets()
        self._group: Any = ProcessGroupGloo(store, rank, world_size, options)
        self._connections = _sockets().keys() - before

    def set_timeout(self, seconds: float) -> None:
        """Set how long an operation may wait for the other ranks. With the longest timeout, only `patience` limits it,
        the timeout before: for so long another host's system may not answer.
        """
        if seconds < LONGEST_TIMEOUT:
            self.patience = seconds
        else:
            self._limit_silence(self.patience)
        self.timeout = seconds
        self._group._set_default_timeout(timedelta(seconds=seconds))

    # ---- point-to-point ----

    def send(self, ptr: int, size: int, peer: int, tag: int) -> Any:
        return self._group.send([_tensor(ptr, size)], peer, tag)

    def recv(self, ptr: int, size: int, peer: int, tag: int) -> Any:
        return self._group.recv([_tensor(ptr, size)], peer, tag)

    def wait(self, work: Any, seconds: float | None = None) -> None:
        """Wait for a send or recv. seconds: None means without end; after that time gloo ends all connections."""
        work.wait(_FOREVER if seconds is None else timedelta(seconds=seconds))

    def wait_all(self, works: Iterable[Any]) -> None:
        """Wait for several at most the timeout each."""
        for work in works:
            self.wait(work, self.timeout)

    # ---- collectives ----

    def barrier(self) -> None:
        self._group.barrier().wait()

    def broadcast(self, ptr: int, size: int, root: int) -> None:
        if size:
            self._group.broadcast(_tensor(ptr, size), root).wait()

    def all_gather(self, send: int, recv: int, size: int) -> None:
        if size:
            self._group._allgather_base(_tensor(recv, size * self.world_size), _tensor(send, size)).wait()

    def all_gather_v(self, send: int, recv: int, sizes: Sequence[int]) -> None:
        self.exchange([(send, sizes[self.rank])] * self.world_size, _places(recv, sizes))

    def all_to_all_v(self, send: int, recv: int, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> None:
        self.exchange(_places(send, send_sizes), _places(recv, recv_sizes))

    def exchange(self, outgoing: Sequence[tuple[int, int]], incoming: Sequence[tuple[int, int]]) -> None:
        """All messages at once, without the empty ones. outgoing, incoming: by rank, the address and size of each.

        For little data this takes half as long as gloo's own collectives, each of which has to wake a thread.
        """
        peers = [(self.rank + step) % self.world_size for step in range(1, self.world_size)]
        works = [self.recv(*incoming[peer], peer, EXCHANGE_TAG) for peer in peers if incoming[peer][1]]
        works += [self.send(*outgoing[peer], peer, EXCHANGE_TAG) for peer in peers if outgoing[peer][1]]
        ctypes.memmove(incoming[self.rank][0], *outgoing[self.rank])
        self.wait_all(works)

    def all_reduce(self, ptr: int, size: int, dtype: DType, op: ReduceOp) -> None:
        """In place. (dtype, op) must be one that `reduces` allows; MEAN gives the sum."""
        kind, how = _reductions()[dtype, op]
        self._group.allreduce(_tensor(ptr, size).view(kind), how).wait()

    def reduces(self, dtype: DType, op: ReduceOp) -> bool:
        """Whether gloo reduces these as the contract requires."""
        return (dtype, op) in _reductions()

    # ---- the end ----

    def _limit_silence(self, seconds: float) -> None:
        """End a connection if the other host's system does not answer for so long, whatever its rank does."""
        whole = max(1, min(int(seconds / 4), 30_000))  # Linux has a limit of 32,767 s
        options = [
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(int(1000 * seconds), 2**31 - 1)),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, whole),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, whole),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        ]
        for name, descriptor in _sockets().items():
            if name in self._connections:
                # What is no connection over TCP, such as another thread's socket of this moment, has no such options.
                with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                    for option in options:
                        connection.setsockopt(*option)

    def disconnect(self) -> None:
        """End the connections, so that no other rank, and no thread of this one, waits on them.

        gloo ends them when a wait times out; torch offers no other way. If a connection has ended already, such as that
        to a lost rank, a wait on it fails at once and ends no other connection. So this rank waits for each of the
        others in turn; after the first timeout, the rest fail at once.
        """
        if self._group is _CLOSED:
            return
        byte = np.empty(1, np.uint8)
        for step in range(1, self.world_size):
            with suppress(RuntimeError):
                never = self.recv(address(byte), 1, (self.rank + step) % self.world_size, NEVER_TAG)
                never.wait(timedelta(milliseconds=1))

    def close(self) -> None:
        self._group = _CLOSED


class _Closed:
    """Replaces torch's group once that has been released."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name}: this gloo group was closed")


_CLOSED = _Closed()


def _sockets() -> dict[str, int]:
    """The descriptors of this process's sockets, by a name that no other socket has meanwhile."""
    sockets = {}
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it has been closed
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if name.startswith("socket:"):
                sockets[name] = int(descriptor)
    return sockets


def _places(ptr: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """The address and size of blocks that follow each other."""
    return list(zip(accumulate(sizes, initial=ptr), sizes, strict=False))


def _tensor(ptr: int, size: int) -> torch.Tensor:
    """Bytes of the caller's memory as a tensor, without a copy."""
    import torch

    if not size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(_view(ptr, size, _WRITE), dtype=torch.uint8)


@cache
def _reductions() -> dict[tuple[DType, ReduceOp], tuple[Any, Any]]:
    """The reductions that gloo does as the contract requires: torch's dtype and op. A complex sum is a sum of floats.

    gloo's MIN and MAX of floats lose NaNs, and its 16-bit sums round at every step, so they are not included.
    """
    import torch
    from torch._C._distributed_c10d import ReduceOp as Gloo

    kinds = {
        DType.F64: torch.float64,
        DType.F32: torch.float32,
        DType.C128: torch.float64,
        DType.C64: torch.float32,
        DType.I64: torch.int64,
        DType.I32: torch.int32,
    }
    ops = {ReduceOp.SUM: Gloo.SUM, ReduceOp.MEAN: Gloo.SUM, ReduceOp.PROD: Gloo.PRODUCT}
    orders = {ReduceOp.MIN: Gloo.MIN, ReduceOp.MAX: Gloo.MAX}
    return {
        (dtype, op): (kind, how)
        for dtype, kind in kinds.items()
        for op, how in (ops | orders).items()
        if op.refused_for(dtype) is None
        and not (dtype.is_complex and op is ReduceOp.PROD)
        and (dtype.is_integral or op not in orders)
    }
