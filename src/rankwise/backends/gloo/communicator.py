"""gloo: torch's ProcessGroupGloo, over TCP between any hosts.

The group is made directly from torch's class and a TCPStore; torch.distributed's own groups are neither needed
nor touched. We use gloo to move bytes, and for the large all_reduces that it does as the contract requires.

What each rank calls is compared before each collective unless RANKWISE_CHECK=0: gloo ends a process that receives
more than it expects. After a failure each rank announces in the store which call it was in; the first rank that knows
why the group failed records the reason, and all ranks raise it.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise._native import reduce_local
from rankwise.backends import tuning
from rankwise.backends.composed import calls
from rankwise.backends.composed.calls import ITEMSIZE, check_count, check_rank
from rankwise.backends.composed.communicator import ComposedCommunicator, address
from rankwise.backends.gloo.exchange import Exchange
from rankwise.backends.gloo.failure_record import FailureRecord, reason
from rankwise.backends.gloo.meeting import meet
from rankwise.backends.gloo.p2p import Channel
from rankwise.backends.gloo.process_identity import ProcessIdentity
from rankwise.backends.gloo.transport import Transport
from rankwise.contract.communicator import ANY, Message
from rankwise.contract.errors import BackendUnavailable, CollectiveTimeout, RankwiseError
from rankwise.contract.job import Job
from rankwise.contract.settings import Settings
from rankwise.contract.types import DType, ReduceOp
from rankwise.contract.work import Work

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


def open(job: Job, timeout: float, algorithms: Mapping[str, str] | None = None) -> GlooCommunicator:
    """Meet the other ranks at the job's store: torchrun's or MASTER_ADDR's, else one made for the ranks of this host.

    algorithms: to force; None: as in RANKWISE_ALGORITHM. Raises BackendUnavailable if there is no torch, or its gloo
    is missing; ValueError if several hosts have no MASTER_ADDR and MASTER_PORT.
    """
    try:
        from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo
    except ImportError as error:
        raise BackendUnavailable("gloo", f"torch with gloo ({error})", "pip install 'rankwise[gloo]'") from None
    store, host = meet(job, timeout)
    named = os.environ.get("GLOO_SOCKET_IFNAME") and job.master is not None
    device = ProcessGroupGloo.create_default_device() if named else ProcessGroupGloo.create_device(hostname=host)
    check = Settings.read().check is not False
    prefixed = PrefixStore("rankwise", store)
    comm = GlooCommunicator(prefixed, device, job.rank, job.world_size, timeout, checks=check, serves=True)
    comm.force(Settings.read().algorithms if algorithms is None else algorithms)
    return comm


class GlooCommunicator(ComposedCommunicator):
    """One rank's communicator in one gloo group."""

    backend = "gloo"
    any_source = True
    engine_errors = (RuntimeError,)

    def __init__(
        self,
        store: Store,
        device: Any,
        rank: int,
        world_size: int,
        timeout: float,
        *,
        checks: bool,
        serves: bool = False,
    ) -> None:
        """Meet `world_size` ranks in `store`. device: gloo's, made by ProcessGroupGloo.

        serves: rank 0's process may serve the store, so it leaves last.
        """
        from torch._C._distributed_c10d import PrefixStore

        self._store = PrefixStore("group", store)
        self._device = device
        self._serves = serves
        self._splits = 0
        try:
            self._transport = Transport(PrefixStore("gloo", store), device, rank, world_size, timeout)
            self._store.set(f"process/{rank}", ProcessIdentity.own().text())
            texts = [self._store.get(f"process/{r}").decode() for r in range(world_size)]
        except RuntimeError as error:
            text = f"init: the {world_size} ranks did not all meet within {timeout:g} s: {reason(error)}"
            raise CollectiveTimeout(text, limit=timeout, operation="init") from error
        self._record = FailureRecord(self._store, rank, [ProcessIdentity.parse(text) for text in texts])
        self._channel = Channel(self._transport, self._message_failed)
        super().__init__(rank, world_size, timeout, checks=checks)

    def _timeout_set(self, timeout: float) -> None:
        self._transport.timeout = timeout

    # ---- point-to-point ----

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int = 0) -> Work[None]:
        self._check_message(count, dest, "dest", tag)
        return self._channel.send(ptr, count, dtype, dest, tag)

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int = 0) -> Work[None]:
        self._check_message(count, src, "src", tag)
        return self._channel.recv(ptr, count, dtype, src, tag)

    def probe(self, src: int, tag: int) -> Message | None:
        self._check_message(0, src, "src", tag)
        return self._channel.probe(src, tag)

    def sync(self) -> None:
        self._drain()
        self._channel.sync()

    def _message_failed(self, operation: str, error: Exception) -> RankwiseError:
        """Fail the group because of an error in a message; returns what every call raises from now on."""
        if self._refusal is None:
            if isinstance(error, CollectiveTimeout) or not isinstance(error, RankwiseError):
                error = self._explain(error, operation)
            self._fail(error)
        return self._refused()

    def _check_message(self, count: int, peer: int, name: str, tag: int) -> None:
        check_count(count)
        if name == "dest" or peer != ANY:
            check_rank(peer, self._world_size, name)
        if tag < 0 and (name == "dest" or tag != ANY):
            raise ValueError(f"tag={tag}: expected 0 or more")
        if self._refusal is not None:
            raise self._refused()

    # ---- moves ----

    def _barrier(self) -> None:
        self._transport.barrier()

    def _broadcast(self, ptr: int, size: int, root: int) -> None:
        self._transport.broadcast(ptr, size, root)

    def _gather(self, send: int, recv: int, size: int, root: int) -> None:
        self._transport.gather(send, recv, size, root)

    def _scatter(self, send: int, recv: int, size: int, root: int) -> None:
        self._transport.scatter(send, recv, size, root)

    def _all_gather(self, send: int, recv: int, size: int) -> None:
        if self._algorithm("all_gather", tuning.gloo_all_gather(size * self._world_size)) == "ring":
            self._transport.all_gather(send, recv, size)
        elif size:
            self._mover(send, recv, size)()

    def _mover(self, mine: int, everybody: int, size: int) -> Exchange:
        return Exchange(self._transport, mine, everybody, size)

    def _all_to_all(self, send: int, recv: int, size: int) -> None:
        if size:
            even = [size] * self._world_size
            self._transport.all_to_all(send, recv, even, even)

    def _all_to_all_v(self, send: int, recv: int, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> None:
        self._transport.all_to_all(send, recv, send_sizes, recv_sizes)

    def _gather_v(self, send: int, recv: int, sizes: Sequence[int], root: int) -> None:
        mine = [sizes[self._rank] if rank == root else 0 for rank in range(self._world_size)]
        self._all_to_all_v(send, recv, mine, sizes if self._rank == root else [0] * self._world_size)

    def _scatter_v(self, send: int, recv: int, sizes: Sequence[int], root: int) -> None:
        mine = [sizes[self._rank] if rank == root else 0 for rank in range(self._world_size)]
        self._all_to_all_v(send, recv, sizes if self._rank == root else [0] * self._world_size, mine)

    def _all_gather_v(self, send: int, recv: int, sizes: Sequence[int]) -> None:
        """Padded to one size if that adds little; else a broadcast from each rank, as gloo has nothing better."""
        n, most = self._world_size, max(sizes)
        if min(sizes) == most:
            return self._all_gather(send, recv, most)
        starts = [sum(sizes[:rank]) for rank in range(n)]
        if self._algorithm("all_gather_v", tuning.gloo_all_gather_v(n, most, sum(sizes))) == "padded":
            padded, everybody = np.empty(most, np.uint8), np.empty((n, most), np.uint8)
            ctypes.memmove(address(padded), send, sizes[self._rank])
            self._all_gather(address(padded), address(everybody), most)
            for start, size, row in zip(starts, sizes, everybody, strict=True):
                ctypes.memmove(recv + start, address(row), size)
            return None
        ctypes.memmove(recv + starts[self._rank], send, sizes[self._rank])
        for rank, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            self._broadcast(recv + start, size, rank)
        return None

    def _all_reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        size, rings = count * ITEMSIZE[dtype], self._transport.reduces(dtype, op)
        if self._algorithm("all_reduce", tuning.gloo_all_reduce(size * self._world_size, rings)) != "ring":
            super()._all_reduce(ptr, count, dtype, op)
            return
        if not rings:
            why = "gloo does not reduce this dtype and op as the contract requires"
            raise tuning.cannot_run("gloo", "all_reduce", "ring", why)
        self._transport.all_reduce(ptr, size, dtype, op)
        if op is ReduceOp.MEAN:
            reduce_local(ptr, [ptr], count, dtype, op, self._world_size)

    # ---- groups, ends ----

    def _part(self, color: int, members: Sequence[int]) -> GlooCommunicator:
        from torch._C._distributed_c10d import PrefixStore

        self._splits += 1
        store = PrefixStore(f"split {self._splits} {color}", self._store)
        rank = members.index(self._rank)
        return GlooCommunicator(store, self._device, rank, len(members), self._timeout, checks=self.checks)

    def _no_part(self) -> None:
        self._splits += 1

    def _explain(self, error: Exception, operation: str = "") -> RankwiseError:
        where = operation or calls.describe(self._call_lock.call)
        return self._record.explain(error, where, self._call_lock.sequence, self._timeout)

    def _failed(self, error: RankwiseError, *, known_to_all: bool) -> None:
        self._record.record(error)
        self._channel.fail(error)
        self._transport.disconnect()

    def _release(self, timeout: float, healthy: bool) -> None:
        end = time.monotonic() + timeout
        try:
            if healthy:
                self._channel.flush(end)
            self._record.leave()
            if healthy and self._serves and self._rank == 0:
                self._record.wait_for_leaving(end)
        finally:
            if not self._channel.idle:
                self._transport.disconnect()  # wakes the threads that wait in gloo
            self._channel.close(timeout)
            self._record.close()
            self._transport.close()
            self._envelopes = None
