"""gloo: torch's ProcessGroupGloo, over TCP between any hosts.

The group is made directly of torch's class and a TCPStore: torch.distributed's own groups are
neither needed nor touched. Tensors are views of the caller's memory. Of gloo we use the moves, and
the large all_reduces that it does as the contract wants them; its MIN and MAX of floats lose NaNs,
and its 16-bit sums round at every step.

What each rank calls is compared before each collective unless RANKWISE_CHECK=0: gloo ends a process
that receives more than it expects. After a failure the ranks tell each other through the store
what they were in; the first to know writes down why the group failed, and all raise that.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise._native import reduce_local
from rankwise.backends.composed import calls
from rankwise.backends.composed.calls import ITEMSIZE, check_count, check_rank
from rankwise.backends.composed.communicator import ComposedCommunicator, address, log
from rankwise.backends.composed.loopback import Loopback
from rankwise.backends.gloo import process_identity
from rankwise.backends.gloo.exchange import Exchange
from rankwise.backends.gloo.p2p import Mail
from rankwise.backends.gloo.reachability import Reach
from rankwise.backends.native import shm
from rankwise.contract import errors
from rankwise.contract.errors import (
    BackendUnavailable,
    CollectiveTimeout,
    PeerLostError,
    RankwiseError,
    UnsupportedError,
)
from rankwise.contract.job import Job
from rankwise.contract.settings import Settings
from rankwise.contract.types import DType, ReduceOp
from rankwise.contract.work import Work

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store, TCPStore

COPIED = 1 << 20  # bytes of all ranks together up to which an all_gather is an Exchange
PADDED = 1 << 14  # bytes up to which blocks of different sizes are padded to one, whatever that adds
MOST_TAGS = (1 << 30) - 1  # torch's tags have 31 bits, of which one tells a message's frame from its data
REPORTS = 1.0  # seconds in which the ranks that live say where they are, after a failure

_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype = ctypes.py_object
_view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_WRITE = 0x200  # PyBUF_WRITE


def open(job: Job, timeout: float) -> GlooCommunicator:
    """Meet the other ranks at the job's store: torchrun's or MASTER_ADDR's, else one made for the ranks of this host.

    BackendUnavailable where there is no torch, or its gloo is missing; ValueError where several
    hosts have no MASTER_ADDR and MASTER_PORT.
    """
    try:
        from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo
    except ImportError as error:
        raise BackendUnavailable("gloo", f"torch with gloo ({error})", "pip install 'rankwise[gloo]'") from None
    if job.master is not None:
        store, host = _master_store(job, timeout), _own_address(job.master[0])
    elif job.one_host or job.local_world_size is None:
        store, host = _host_store(job, timeout), "127.0.0.1"
    else:
        raise ValueError(
            f"backend='gloo': {job.launcher} put ranks on several hosts and named no meeting point; "
            "set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port there"
        )
    named = os.environ.get("GLOO_SOCKET_IFNAME") and job.master is not None
    device = ProcessGroupGloo.create_default_device() if named else ProcessGroupGloo.create_device(hostname=host)
    check = Settings.read().check is not False
    prefixed = PrefixStore("rankwise", store)
    return GlooCommunicator(prefixed, device, job.rank, job.world_size, timeout, checks=check, serves=True)


class GlooCommunicator(ComposedCommunicator):
    """One rank's end of one gloo group."""

    backend = "gloo"
    small = 1 << 17
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
        """Meet `world_size` ranks in `store`. device: gloo's transport.

        serves: rank 0's process may be where the store is, so it leaves last.
        """
        from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

        self._store = PrefixStore("group", store)
        self._news = Reach(self._store, 2 * REPORTS)  # what is told at the end, when the store may be out of reach
        self._device = device
        self._serves = serves
        self._splits = 0
        self._cards: list[process_identity.Card] = []
        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stubs lack it
        options._devices = [device]
        options._threads = 2
        options._timeout = timedelta(seconds=timeout)
        try:
            self._pg: Any = ProcessGroupGloo(PrefixStore("gloo", store), rank, world_size, options)
            self._store.set(f"card/{rank}", process_identity.own_card().text())
            self._cards = [process_identity.Card.of(self._store.get(f"card/{r}").decode()) for r in range(world_size)]
        except RuntimeError as error:
            text = f"init: the {world_size} ranks did not all meet within {timeout:g} s: {_reason(error)}"
            raise CollectiveTimeout(text, limit=timeout, operation="init") from error
        super().__init__(rank, world_size, timeout, checks=checks)
        self._loopback = Loopback(lambda: self._timeout)
        self._mail = Mail(self)

    def _timeout_set(self, timeout: float) -> None:
        self._pg._set_default_timeout(timedelta(seconds=timeout))

    # ---- messages ----

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int = 0) -> Work[None]:
        self._check_message(count, dest, "dest", tag)
        box: Mail | Loopback = self._loopback if dest == self._rank else self._mail
        return box.send(ptr, count, dtype, dest, tag)

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int = 0) -> Work[None]:
        self._check_message(count, src, "src", tag)
        box: Mail | Loopback = self._loopback if src == self._rank else self._mail
        return box.recv(ptr, count, dtype, src, tag)

    def sync(self) -> None:
        if self._stream is not None:
            self._stream.drain()
        self._mail.sync()

    def _post(self, what: str, ptr: int, size: int, peer: int, tag: int) -> Any:
        """Begin a send or recv of bytes; torch's Work."""
        try:
            return getattr(self._pg, what)([self._tensor(ptr, size)], peer, tag)
        except RuntimeError as error:
            raise self._message_failed(what, error) from error

    def _message_failed(self, operation: str, error: Exception) -> RankwiseError:
        """The group fails by an error in a message; what every call raises from now on."""
        if self._refusal is None:
            self._fail(error if isinstance(error, RankwiseError) else self._explain(error, operation))
        return self._refused()

    def _check_message(self, count: int, peer: int, name: str, tag: int) -> None:
        check_count(count)
        check_rank(peer, self._world_size, name)
        if not 0 <= tag < MOST_TAGS:
            raise UnsupportedError(f"tag={tag}", "gloo", f"its tags are below {MOST_TAGS}")
        if self._refusal is not None:
            raise self._refused()

    # ---- moves ----

    def _barrier(self) -> None:
        self._pg.barrier().wait()

    def _broadcast(self, ptr: int, size: int, root: int) -> None:
        if size:
            self._pg.broadcast(self._tensor(ptr, size), root).wait()

    def _gather(self, send: int, recv: int, size: int, root: int) -> None:
        if size:
            each = [self._tensor(recv + r * size, size) for r in range(self._world_size)] if recv else []
            self._pg.gather(each if self._rank == root else [], self._tensor(send, size), root).wait()

    def _scatter(self, send: int, recv: int, size: int, root: int) -> None:
        if size:
            each = [self._tensor(send + r * size, size) for r in range(self._world_size)] if send else []
            self._pg.scatter(self._tensor(recv, size), each if self._rank == root else [], root).wait()

    def _all_gather(self, send: int, recv: int, size: int) -> None:
        whole = size * self._world_size
        if whole > COPIED:
            self._pg._allgather_base(self._tensor(recv, whole), self._tensor(send, size)).wait()
        elif size:
            self._mover(send, recv, size)()

    def _mover(self, mine: int, everybody: int, size: int) -> Exchange:
        return Exchange(self, mine, everybody, size)

    def _all_to_all(self, send: int, recv: int, size: int) -> None:
        if size:
            whole = size * self._world_size
            self._pg.alltoall_base(self._tensor(recv, whole), self._tensor(send, whole), [], []).wait()

    def _gather_v(self, send: int, recv: int, sizes: Sequence[int], root: int) -> None:
        mine = [sizes[self._rank] if rank == root else 0 for rank in range(self._world_size)]
        self._all_to_all_v(send, recv, mine, sizes if self._rank == root else [0] * self._world_size)

    def _scatter_v(self, send: int, recv: int, sizes: Sequence[int], root: int) -> None:
        mine = [sizes[self._rank] if rank == root else 0 for rank in range(self._world_size)]
        self._all_to_all_v(send, recv, sizes if self._rank == root else [0] * self._world_size, mine)

    def _all_gather_v(self, send: int, recv: int, sizes: Sequence[int]) -> None:
        """Padded to one size where that adds little; else a broadcast from each rank, as gloo has nothing better."""
        n, most = self._world_size, max(sizes)
        if min(sizes) == most:
            return self._all_gather(send, recv, most)
        starts = [sum(sizes[:rank]) for rank in range(n)]
        if n * most <= 2 * sum(sizes) or most <= PADDED:
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

    def _all_to_all_v(self, send: int, recv: int, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> None:
        given, taken = self._tensor(send, sum(send_sizes)), self._tensor(recv, sum(recv_sizes))
        self._pg.alltoall_base(taken, given, list(recv_sizes), list(send_sizes)).wait()

    def _all_reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        size = count * ITEMSIZE[dtype]
        found = _reductions().get((dtype, op))
        if found is None or size * self._world_size <= self.small:
            super()._all_reduce(ptr, count, dtype, op)
            return
        kind, how = found
        self._pg.allreduce(self._tensor(ptr, size).view(kind), how).wait()
        if op is ReduceOp.MEAN:
            reduce_local(ptr, [ptr], count, dtype, op, self._world_size)

    def _tensor(self, ptr: int, size: int) -> torch.Tensor:
        """Bytes of the caller's memory as a tensor, without a copy."""
        import torch

        if not size:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(_view(ptr, size, _WRITE), dtype=torch.uint8)

    # ---- groups ----

    def _part(self, color: int, members: Sequence[int]) -> GlooCommunicator:
        from torch._C._distributed_c10d import PrefixStore

        self._splits += 1
        store = PrefixStore(f"split {self._splits} {color}", self._store)
        rank = members.index(self._rank)
        return GlooCommunicator(store, self._device, rank, len(members), self._timeout, checks=self._checks)

    def _no_part(self) -> None:
        self._splits += 1

    def _release(self, timeout: float, healthy: bool) -> None:
        end = time.monotonic() + timeout
        try:
            if healthy:
                self._mail.flush(end)
            self._news.set(f"left/{self._rank}", "closed")
            if healthy and self._serves and self._rank == 0:
                everybody = [f"left/{rank}" for rank in range(self._world_size)]
                while not self._news.check(everybody) and time.monotonic() < end:
                    time.sleep(_POLL)
        finally:
            if not self._mail.empty:
                self._hang_up()  # wakes the threads that wait in gloo
            self._news.close()
            self._pg = self._frames = None

    # ---- failures ----

    def _explain(self, error: Exception, operation: str = "") -> RankwiseError:
        """Ask the others where they are, unless one of them has already said why the group failed."""
        text = _reason(error)
        where = operation or calls.describe(self._turn.call)
        mine = {"call": where, "sequence": self._turn.sequence, "timed_out": "imed out" in str(error)}
        try:
            self._news.set(f"state/{self._rank}", json.dumps(mine))
            states, lost = self._reports()
            if (told := self._told()) is not None:
                return told
        except RuntimeError:  # the store's process is gone, which is rank 0's unless torchrun has it
            how = "its process ended" if self._cards[:1] and self._cards[0].gone else "it cannot be reached"
            return PeerLostError(
                f"rank 0, which keeps the job's store, was lost in {where} #{self._turn.sequence}: {how} ({text})",
                rank=0,
                how=how,
                operation=where.partition("(")[0],
                sequence=self._turn.sequence,
            )
        return self._verdict(states, lost, text, where)

    def _verdict(self, states: dict[int, Any], lost: dict[int, str], text: str, where: str) -> RankwiseError:
        limit, sequence, operation = self._timeout, self._turn.sequence, where.partition("(")[0]
        missing = tuple(rank for rank in range(self._world_size) if rank not in states)
        if any(state["timed_out"] for state in states.values()) and not lost:
            said = {rank: f"in {state['call']} #{state['sequence']}" for rank, state in states.items()}
            said |= dict.fromkeys(missing, "in no call of this group")
            ranks = f" from rank {', '.join(map(str, missing))}" if missing else ""
            lines = [f"no answer within {limit:g} s{ranks}, awaited by rank {self._rank} in {where} #{sequence}"]
            lines += [f"  rank {rank}: {said[rank]}" for rank in sorted(said)]
            return CollectiveTimeout(
                "\n".join(lines), limit=limit, missing=missing, states=said, operation=operation, sequence=sequence
            )
        if missing:
            rank, how = next(iter(lost.items()), (missing[0], f"its connection failed ({text})"))
            message = f"rank {rank} was lost in {where} #{sequence}: {how}"
            return PeerLostError(message, rank=rank, how=how, operation=operation, sequence=sequence)
        if len({state["call"] for state in states.values()}) > 1:
            return calls.mismatch({rank: state["call"] for rank, state in states.items()}, sequence)
        return RankwiseError(f"gloo failed in {where} #{sequence}: {text}")

    def _reports(self) -> tuple[dict[int, Any], dict[int, str]]:
        """What the ranks say they are in, and how others were lost.

        Complete; or as it is when a rank is known to be lost, the reason is known, or after REPORTS.
        """
        end = time.monotonic() + REPORTS
        while True:
            states, lost = {}, {}
            for rank in range(self._world_size):
                if self._news.check([f"state/{rank}"]):
                    states[rank] = json.loads(self._news.get(f"state/{rank}"))
                elif self._news.check([f"left/{rank}"]):
                    lost[rank] = "it closed the group"
                elif self._cards[rank].gone:
                    lost[rank] = "its process ended"
            known = lost or len(states) == self._world_size or self._news.check(["failure"])
            if known or time.monotonic() > end:
                return states, lost
            time.sleep(_POLL)

    def _failed(self, error: RankwiseError) -> None:
        facts = {name: value for name, value in vars(error).items() if name != "__notes__"}
        card = json.dumps({"kind": type(error).__name__, "message": str(error), "facts": facts})
        try:
            self._news.compare_set("failure", "", card)
        except RuntimeError:
            log.debug("the store is gone, so that the others are told by the end of the connections alone")
        self._hang_up()

    def _told(self) -> RankwiseError | None:
        """Why the group failed, as the first rank to know has written it down."""
        if not self._news.check(["failure"]):
            return None
        card = json.loads(self._news.get("failure"))
        facts = card["facts"]
        for name in ("calls", "states"):
            if name in facts:
                facts[name] = {int(rank): text for rank, text in facts[name].items()}
        kind = getattr(errors, card["kind"])
        return kind(card["message"], **facts)  # type: ignore[no-any-return]

    def _hang_up(self) -> None:
        """End the connections, so that nobody waits for this rank, nor a thread of this one.

        gloo does so when a wait times out, and in no other way that torch shows.
        """
        if self._world_size == 1 or self._pg is None:
            return
        nothing = np.empty(1, np.uint8)
        try:
            message = self._pg.recv([self._tensor(address(nothing), 1)], (self._rank + 1) % self._world_size, _NEVER)
            message.wait(timedelta(milliseconds=1))
        except RuntimeError:
            return  # as expected


@cache
def _reductions() -> dict[tuple[DType, ReduceOp], tuple[Any, Any]]:
    """What gloo reduces as the contract says: torch's dtype and op. A complex sum is one of twice as many floats."""
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
    table = {(dtype, op): (kind, how) for dtype, kind in kinds.items() for op, how in (ops | orders).items()}
    return {
        (dtype, op): found
        for (dtype, op), found in table.items()
        if op.refused_for(dtype) is None
        and not (dtype.is_complex and op is ReduceOp.PROD)
        and (dtype.is_integral or op not in orders)
    }


_POLL = 0.005  # seconds between two looks at the store
_NEVER = 2**31 - 1  # a tag that no message has; gloo_exchange has another


_stores: dict[tuple[str, int], TCPStore] = {}
_openings: Counter[tuple[str, int]] = Counter()
_lock = threading.Lock()


def _master_store(job: Job, timeout: float) -> Store:
    """The store at the job's MASTER_ADDR: the launcher's, or one that rank 0 serves. It is kept for later groups."""
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    assert job.master is not None
    with _lock:
        if job.master not in _stores:
            host, port = job.master
            serves = job.rank == 0 and not job.master_serves
            limit = timedelta(seconds=timeout)
            try:
                _stores[job.master] = TCPStore(
                    host, port, None, serves, limit, wait_for_workers=False, multi_tenant=True
                )
            except RuntimeError as error:
                raise _no_store(job, error, timeout) from error
        _openings[job.master] += 1
        return PrefixStore(f"{job.id} {_openings[job.master]}", _stores[job.master])


def _no_store(job: Job, error: Exception, timeout: float) -> RankwiseError:
    assert job.master is not None
    where = f"{job.master[0]}:{job.master[1]}"
    reason = str(error).partition("\n")[0]
    text = f"init: rank 0's store at {where} (MASTER_ADDR and MASTER_PORT) was not to be had within {timeout:g} s"
    return CollectiveTimeout(f"{text}: {reason}", limit=timeout, missing=(0,), operation="init")


def _host_store(job: Job, timeout: float) -> Store:
    """A store of rank 0 on the loopback interface; the ranks of this host tell each other its port through shm."""
    from torch._C._distributed_c10d import HashStore, TCPStore

    if job.world_size == 1:
        return HashStore()
    limit = timedelta(seconds=timeout)
    # Not in the segment that a launcher may have made: that is for the backend shm.
    segment = "" if job.segment_fd is None else f" {os.fstat(job.segment_fd).st_ino}"
    with shm.open(replace(job, segment_fd=None, id=f"{job.id or job.launcher} gloo{segment}"), timeout) as host:
        port = np.zeros(1, np.int64)
        if job.rank == 0:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                port[0] = listener.getsockname()[1]
                served = TCPStore(
                    "127.0.0.1",
                    int(port[0]),
                    None,
                    True,
                    limit,
                    wait_for_workers=False,
                    master_listen_fd=listener.detach(),
                )
        host.broadcast(address(port), 1, DType.I64, 0)
        store = served if job.rank == 0 else TCPStore("127.0.0.1", int(port[0]), None, False, limit)
        host.barrier()
    return store


def _reason(error: Exception) -> str:
    """The sentence of torch's message that says what happened."""
    return str(error).partition("\n")[0].partition(". ")[0].rpartition(".cc:")[2].partition("] ")[2] or str(error)


def _own_address(master: str) -> str:
    """The address of the interface by which this host reaches the master."""
    family, _, _, _, where = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)
        found: str = probe.getsockname()[0]
    return found
