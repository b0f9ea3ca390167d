"""gloo: torch's ProcessGroupGloo, over TCP between any hosts.

The group is made directly from torch's class and a TCPStore; torch.distributed's own groups are neither needed
nor touched. We use gloo to move bytes, and for the large all_reduces that it does as the contract requires.

What each rank calls is compared before each collective unless RANKWISE_CHECK=0: gloo ends a process that receives
more than it expects. After a failure each rank announces in the store which call it was in; the first rank that knows
why the group failed records the reason, and all ranks raise it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from rankwise._native import address, reduce_local
from rankwise.backends import tuning
from rankwise.backends.composed import counting
from rankwise.backends.composed.calls import SCATTER_ARRAY
from rankwise.backends.composed.communicator import ComposedCommunicator
from rankwise.backends.composed.memory import gathered
from rankwise.backends.gloo.direct_envelopes import DirectEnvelopes
from rankwise.backends.gloo.group_store import GroupStore, Outcome, StoreIntegers, decide, explain, reason, record
from rankwise.backends.gloo.meeting import Meeting, gather
from rankwise.backends.gloo.p2p import Channel
from rankwise.backends.gloo.roster import roster_type
from rankwise.backends.gloo.transport import Transport
from rankwise.contract.communicator import bind
from rankwise.contract.errors import BackendUnavailable, ClosedError, CollectiveTimeout, RankwiseError, too_late
from rankwise.contract.job import Job
from rankwise.contract.operations import Call, divided
from rankwise.contract.shared_integers import SharedIntegers
from rankwise.contract.types import ITEMSIZE, DType, ReduceOp
from rankwise.meeting.torch_store import TorchStore
from rankwise.system.locality import ProcessIdentity
from rankwise.system.settings import Settings

CONNECTING = 10.0  # seconds within which the survivors of a group, which have just agreed, connect


def open_communicator(job: Job, timeout: float, algorithms: Mapping[str, str] | None = None) -> GlooCommunicator:
    """Meet the other ranks at the job's store: torchrun's or MASTER_ADDR's, else one made for the ranks of this host.

    algorithms: to force; None: as in RANKWISE_ALGORITHM. Raises BackendUnavailable if there is no torch, or its gloo
    is missing; ValueError if several hosts have no MASTER_ADDR and MASTER_PORT.
    """
    try:
        from torch._C._distributed_c10d import ProcessGroupGloo
    except ImportError as error:
        raise BackendUnavailable("gloo", f"torch with gloo ({error})", "pip install 'rankwise[gloo]'") from None
    named = os.environ.get("GLOO_SOCKET_IFNAME") and job.master is not None
    check = Settings.read().check is not False
    with Meeting(job, timeout) as meeting:
        device = (
            ProcessGroupGloo.create_default_device()
            if named
            else ProcessGroupGloo.create_device(hostname=meeting.address)
        )
        comm = GlooCommunicator(
            meeting.store, device, job.rank, job.world_size, timeout, meeting.all_gather, checks=check, serves=True
        )
    comm.force(Settings.read().algorithms if algorithms is None else algorithms)
    return comm


class GlooCommunicator(ComposedCommunicator):
    """One rank's communicator in one gloo group."""

    backend = "gloo"
    any_source = True
    engine_errors = (RuntimeError,)
    _channel: Channel

    def __init__(
        self,
        store: TorchStore,
        device: Any,
        rank: int,
        world_size: int,
        timeout: float,
        exchange: Callable[[bytes], list[bytes]],
        *,
        checks: bool,
        serves: bool = False,
    ) -> None:
        """Connect `world_size` ranks. store: for their later announcements. device: gloo's, made by ProcessGroupGloo.

        exchange: gathers their addresses; each rank calls it once. serves: rank 0's process may serve the store, so it
        leaves last.
        """
        self._store = store
        self._device = device
        self._serves = serves
        self._splits = self._words = 0
        peers = roster_type()(exchange)
        peers.set(f"process {rank}", ProcessIdentity.own().text())
        try:
            self._transport = Transport(peers, device, rank, world_size, timeout)
            texts = [peers.get(f"process {member}").decode() for member in range(world_size)]
            peers.clear()
        except RuntimeError as error:
            if peers.failure is not None:
                raise peers.failure from None
            what = f"init: the {world_size} ranks did not all connect"
            raise too_late(what, timeout, f": {reason(error)}", operation="init") from error
        self._group_store = GroupStore(store, rank, list(map(ProcessIdentity.parse, texts)), timeout)
        self._channel = Channel(self._transport, self._message_failed, self._group_store.has_left)
        bind(self, self._channel, "await_arrival", "left")
        super().__init__(rank, world_size, timeout, checks=checks)

    def _timeout_set(self, timeout: float) -> None:
        self._transport.set_timeout(timeout)

    def words(self, number: int) -> SharedIntegers:
        self._words += 1
        return StoreIntegers(self._group_store, f"words {self._words}", number, self._message_failed)

    # ---- a scatter whose array only its source knows ----

    def announce_array(self, header: Any, send: int, recv: int, src: int) -> bytes | None:
        """See Communicator.announce_array. header: an array of int64."""
        forced = self._forced.get("scatter", "")
        call = Call(SCATTER_ARRAY, count=header.size, dtype=DType.I64, root=src, algorithm=forced)
        parts = forced in ("", "inline")
        part = self._run(call, self._announce_array, (header, send, recv, src, parts))
        if part is not None:
            whole = int(np.prod(header[2 : 2 + header[1]])) * ITEMSIZE[DType(header[0])]
            counting.moved("scatter", whole if src == self._rank else len(part))
        return part

    def _announce_array(self, header: Any, send: int, recv: int, src: int, parts: bool) -> bytes | None:
        """Broadcast the header alone: the ranks do not compare their calls, or it did not fit into the envelopes."""
        self._broadcast(address(header), header.nbytes, src)
        return None

    # ---- moves ----

    def _barrier(self) -> None:
        self._transport.barrier()

    def _broadcast(self, ptr: int, size: int, root: int) -> None:
        if self._algorithm("broadcast", tuning.gloo_broadcast(self._world_size, size)) == "binomial":
            self._transport.broadcast(ptr, size, root)
            return
        # R. Thakur, R. Rabenseifner, W. Gropp: Optimization of Collective Communication Operations in MPICH, 2005.
        blocks = divided(size, self._world_size)
        own_part = ptr + sum(blocks[: self._rank])
        self._scatter_v(ptr, own_part, blocks, root)
        self._all_gather_v(own_part, ptr, blocks)

    def _collect(self, own: int, everybody: int, size: int) -> None:
        self._transport.all_gather_v(own, everybody, (size,) * self._world_size)

    def _new_envelopes(self) -> DirectEnvelopes:
        return DirectEnvelopes(self._transport, tuning.envelope("gloo", self._world_size))

    def _all_to_all_v(self, send: int, recv: int, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> None:
        self._transport.all_to_all_v(send, recv, send_sizes, recv_sizes)

    def _all_gather_v(self, send: int, recv: int, sizes: Sequence[int]) -> None:
        chosen = tuning.gloo_all_gather(self._world_size, sizes[0])
        if min(sizes) == max(sizes) and self._algorithm("all_gather", chosen) == "ring":
            self._transport.all_gather(send, recv, sizes[0])
        else:
            self._transport.all_gather_v(send, recv, sizes)

    def _all_reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        size, rings = count * ITEMSIZE[dtype], self._transport.reduces(dtype, op)
        if self._algorithm("all_reduce", tuning.gloo_all_reduce(self._world_size, size, rings)) != "ring":
            super()._all_reduce(ptr, count, dtype, op)
            return
        if not rings:
            why = "gloo does not reduce this dtype and op as the contract requires"
            raise tuning.cannot_run("gloo", "all_reduce", "ring", why)
        self._transport.all_reduce(ptr, size, dtype, op)
        if op is ReduceOp.MEAN:
            reduce_local(ptr, [ptr], count, dtype, op, self._world_size)

    # ---- going on after a loss ----

    def failed(self) -> dict[int, str]:
        try:
            return self._group_store.lost()
        except ConnectionError as error:
            raise self._group_store.unreachable() from error

    def agree(self, flag: int) -> int:
        self._check_open()
        self._drain()
        return decide(self._group_store, "agree", flag, self._timeout).flag

    def shrink(self, exclude: Sequence[int] = ()) -> GlooCommunicator:
        """The survivors connect anew. If one of them dies meanwhile, which only some may notice, all do it again."""
        self._check_open()
        if self._rank in exclude or not set(exclude) <= set(range(self._world_size)):
            expected = f"expected ranks of the group, 0 to {self._world_size - 1}, without this one, {self._rank}"
            raise ValueError(f"exclude={list(exclude)}: {expected}")
        self._drain()
        tried: set[tuple[int, ...]] = set()
        while True:
            outcome = decide(self._group_store, "shrink", -1, self._timeout, exclude)
            if outcome.present in tried:
                what = f"shrink: ranks {list(outcome.present)}, of which none was lost, could not connect"
                raise too_late(what, CONNECTING, operation="shrink")
            tried.add(outcome.present)
            part = self._connected(outcome)
            if decide(self._group_store, "connected", int(part is not None), self._timeout).flag:
                assert part is not None  # each survivor is connected
                part.former_ranks = outcome.present
                part.timeout = self._timeout
                part.force(self._forced)
                return part
            if part is not None:
                part.close(0.0)

    def _connected(self, outcome: Outcome) -> GlooCommunicator | None:
        store = self._store.under(f"shrunk {outcome.number}")
        rank, size = outcome.present.index(self._rank), len(outcome.present)
        limit = min(self._timeout, CONNECTING)
        end = time.monotonic() + limit

        def survivors(value: bytes) -> list[bytes]:
            return gather(store, {rank: value}, size, limit, end)

        try:
            return GlooCommunicator(
                store, self._device, rank, size, limit, survivors, checks=self.checks, serves=self._serves
            )
        except CollectiveTimeout:
            return None

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("this communicator was closed")

    # ---- groups, ends ----

    def _part(self, color: int, members: Sequence[int]) -> GlooCommunicator:
        """The whole group exchanges the addresses over its connections, also ranks in no part."""
        self._splits += 1
        store = self._store.under(f"split {self._splits} {color}")
        rank = members.index(self._rank)

        def of_members(value: bytes) -> list[bytes]:
            everybody = self._gathered(value)
            return [everybody[member] for member in members]

        size, device = len(members), self._device
        part = GlooCommunicator(store, device, rank, size, self._timeout, of_members, checks=self.checks)
        part.force(self._forced)
        return part

    def _no_part(self) -> None:
        self._splits += 1
        self._gathered(b"")

    def _gathered(self, value: bytes) -> list[bytes]:
        return gathered(self._collect, self._world_size, value)

    def _explain(self, error: Exception, where: str = "") -> RankwiseError:
        where = where or str(self._last_call)
        limit, waits = self._transport.patience, self.waits_for_reports
        return explain(self._group_store, error, where, self._sequence, limit, waits_for_reports=waits)

    def explain_timeout(self, call: str, sequence: int) -> RankwiseError:
        return explain(self._group_store, TimeoutError("it took too long"), call, sequence, self._timeout)

    def _announce_failure(self, error: RankwiseError, *, known_to_all: bool) -> None:
        record(self._group_store, error)
        self._channel.fail(error)

    def _release(self, timeout: float, healthy: bool) -> None:
        end = time.monotonic() + timeout
        try:
            if healthy:
                self._channel.flush(end)
        finally:
            with suppress(ConnectionError):  # the store's process has ended, and nobody asks it
                self._group_store.leave()
            self._channel.close(max(0.0, end - time.monotonic()))
            self._transport.close()
            self._envelopes = None
            # The others, whose connections to this rank have ended now, ask the store whether it has left.
            if healthy and self._serves and self._rank == 0:
                self._group_store.wait_for_leaving(end)
            self._group_store.close()
