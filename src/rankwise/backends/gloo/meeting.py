"""How the ranks of a gloo job meet: within each host in shared memory, and between hosts in a store.

On each host, one rank, the leader, reads and writes the store for all ranks of the host, with a constant number of
requests. The store is the one at MASTER_ADDR or, if all ranks are on this host, one that rank 0 makes for them on the
loopback interface.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from rankwise import _native
from rankwise.backends.composed.memory import all_gather_bytes, broadcast_bytes, packed, unpacked
from rankwise.backends.composed.part_errors import of_the_group
from rankwise.backends.native import rendezvous
from rankwise.backends.native.communicator import EngineCommunicator
from rankwise.contract.errors import CollectiveTimeout, RankwiseError, error_of
from rankwise.contract.job import Job
from rankwise.meeting.gathering import failed, follow, lead, met, opened, other_version, ranks_late
from rankwise.meeting.store import Missing
from rankwise.meeting.torch_store import OnFirstUse, TorchStore
from rankwise.system.own_address import own_address
from rankwise.system.settings import Settings

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

HOST_GRACE = 10.0  # seconds for which the ranks of a host wait longer than their leader, who says what is wrong
LONGEST_VERSION = 24  # bytes
ATTEMPT = 0.1  # seconds of the first attempt to connect to the store; each further one takes twice as long


class Meeting:
    """One rank's part in the meeting of its job. A context manager: its exit ends the meeting.

    store: the job's, which lasts as long as its processes; ranks that are not leaders connect when they first use it.
    address: where this process listens for the other ranks.
    """

    def __init__(self, job: Job, timeout: float) -> None:
        """ValueError for several hosts without MASTER_ADDR and MASTER_PORT; BackendUnavailable if MASTER_ADDR cannot be
        resolved; CollectiveTimeout after `timeout` s.
        """
        self._job, self._timeout, self._end = job, timeout, time.monotonic() + timeout
        number, size = _local_numbers(job)
        self._leads = number == 0
        self._host = _host(job, number, size, timeout) if size > 1 else None
        try:
            # Containers that meet in RANKWISE_SOCKET_DIR may each have their own loopback interface.
            if job.master is None or (size == job.world_size and Settings.read().socket_dir is None):
                self.store, self.address = _host_store(self._host, timeout), "127.0.0.1"
            else:
                self.store = _master_store(job, job.master, timeout, leads=self._leads)
                self.address = own_address(job.master[0], "gloo")
        except BaseException as error:
            self._leave(error)
            raise

    def all_gather(self, own_value: bytes) -> list[bytes]:
        """Every rank's value, by rank. All ranks of the job call this once.

        If some ranks did not come, the others raise CollectiveTimeout with their numbers. PeerLostError: a rank of this
        host has ended.
        """
        if self._host is None:
            return self._from_all_hosts({self._job.rank: own_value})
        values: dict[int, bytes] = {}
        try:
            for pair in all_gather_bytes(self._host, packed([b"%d" % self._job.rank, own_value])):
                rank, value = unpacked(pair)
                values[int(rank)] = value
            answer = broadcast_bytes(self._host, self._answer(values) if self._leads else b"")
            self._host.barrier()
        except RankwiseError as error:
            _fail(error, self._job, list(values))
        return unpacked(opened(answer))

    def _answer(self, values: dict[int, bytes]) -> bytes:
        """What the leader sends to its host: all values, or why there are none."""
        try:
            return met(packed(self._from_all_hosts(values)))
        except CollectiveTimeout as error:
            return failed(error)

    def _from_all_hosts(self, values: dict[int, bytes]) -> list[bytes]:
        one_host = len(values) == self._job.world_size
        if not one_host or (self._job.rank == 0 and not self._job.master_serves):
            self.store.connection()  # rank 0 serves the store from now on
        if one_host:
            return [values[rank] for rank in range(len(values))]
        return gather(self.store.under("meeting"), values, self._job.world_size, self._timeout, self._end)

    def __enter__(self) -> Meeting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(value)

    def _leave(self, error: BaseException | None) -> None:
        if self._host is not None:
            if error is not None:  # the other ranks of this host must not wait for this one
                self._host.abort(f"it could not open the group: {error}")
            self._host.close()


def gather(
    store: TorchStore, own_values: Mapping[int, bytes], world_size: int, timeout: float, end: float
) -> list[bytes]:
    """Every rank's value, by rank. Each process passes the values of some ranks, and calls this once for this store.

    Each process makes a constant number of requests. end: the time (time.monotonic) at which `timeout` seconds have
    passed. Then CollectiveTimeout is raised, which names the ranks whose values are missing.
    """
    late = ranks_late(timeout)
    release = _native.version.encode() + b"\0"
    own_values = {rank: release + value for rank, value in own_values.items()}

    def decide(values: list[bytes]) -> bytes:
        for rank, value in enumerate(values):
            if not value.startswith(release):
                stamp = value[:LONGEST_VERSION].partition(b"\0")
                raise other_version(rank, stamp[0].decode("ascii", "ignore") if stamp[1] else "", _native.version)
        return zlib.compress(packed([value.removeprefix(release) for value in values]), 1)

    try:
        leads = 0 in own_values
        answer = (
            lead(store, own_values, world_size, end, late, decide) if leads else opened(follow(store, own_values, end))
        )
    except (Missing, ConnectionError) as error:
        raise late([0], str(error)) from error
    return unpacked(zlib.decompress(answer))


def _local_numbers(job: Job) -> tuple[int, int]:
    """This rank's number among the ranks that meet within its host, and how many these are; (0, 1) if unknown."""
    if job.one_host:
        return job.rank, job.world_size
    if job.master is None:
        raise ValueError(
            f"backend='gloo': {job.launcher} started ranks on several hosts without an address to meet at; "
            "set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port there"
        )
    if job.local_rank is None or job.local_world_size is None or (job.node is None and job.segment_fd is None):
        # Two containers of a host may both number their ranks from 0, and only a node's number tells them apart.
        return 0, 1
    return job.local_rank, job.local_world_size


def _host(job: Job, number: int, size: int, timeout: float) -> EngineCommunicator:
    """A communicator of this host's ranks. They wait longer than the leader, whose answer says who is missing."""
    # Not in the launcher's segment, if there is one: the backend shm uses it.
    segment = "" if job.segment_fd is None else os.fstat(job.segment_fd).st_ino
    name = f"{job.id or job.launcher} gloo {segment} {'' if job.node is None else job.node}"
    meeting = replace(job, rank=number, world_size=size, segment_fd=None, id=name)
    try:
        comm = rendezvous.meet(meeting, timeout).join(number, timeout + HOST_GRACE, process=True)
    except RankwiseError as error:
        _fail(error, job, range(size) if size == job.world_size else ())
    return EngineCommunicator(comm, "shm")


def _fail(error: RankwiseError, job: Job, ranks: Sequence[int]) -> NoReturn:
    """Raise an error of the ranks of this host. ranks: their numbers in the job, or () if they are not known yet."""
    if list(ranks) == list(range(job.world_size)):
        raise error
    if ranks:
        raise of_the_group(error, ranks, "init") from None
    why = f"init: the {job.local_world_size} ranks of rank {job.rank}'s host, numbered from 0, could not meet: {error}"
    raise error_of(replace(error.failure, message=why, operation="init", ranks={}, to_blame=())) from error


# ---- stores ----

_stores: dict[tuple[str, int], OnFirstUse] = {}
_openings: Counter[tuple[str, int]] = Counter()
_lock = threading.Lock()


def _master_store(job: Job, master: tuple[str, int], timeout: float, *, leads: bool) -> TorchStore:
    """The store at the job's MASTER_ADDR, served by the launcher or by rank 0. It is kept for later groups."""
    serves = job.rank == 0 and not job.master_serves
    with _lock:
        if master not in _stores:
            now = partial(_reached, master, timeout, serves, job.listener)
            _stores[master] = OnFirstUse(now if serves or leads else partial(_connect_to, master, timeout))
        _openings[master] += 1
        connection, number = _stores[master], _openings[master]
    store = TorchStore(connection).under(f"{job.id} {number}")
    if serves and not leads:
        store.connection()
    return store


def _reached(master: tuple[str, int], timeout: float, serves: bool, listener: socket.socket | None = None) -> TCPStore:
    """A connection to the store, which may not have started yet. listener: as in Job; it becomes the store's."""
    from torch._C._distributed_c10d import TCPStore

    try:
        if serves:
            limit = timedelta(seconds=timeout)
            fd = None if listener is None else listener.detach()
            return TCPStore(*master, None, True, limit, wait_for_workers=False, multi_tenant=True, master_listen_fd=fd)
        return _connect_to(master, timeout, started=False)
    except (ConnectionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        where = f"{master[0]}:{master[1]}, which MASTER_ADDR and MASTER_PORT name"
        raise ranks_late(timeout)([0], f"its store at {where}, could not be reached: {reason}") from error


def _connect_to(address: tuple[str, int], timeout: float, *, started: bool = True) -> TCPStore:
    """A connection to the store. If it has started: ConnectionError once its process has ended.

    Where no process listens, a plain connection fails at once, while torch's client would try until its timeout, and
    then for as long again. So there is a plain connection before each attempt of that client, and the first attempts
    are short.
    """
    from torch._C._distributed_c10d import TCPStore

    end, attempt = time.monotonic() + timeout, ATTEMPT
    while True:
        try:
            socket.create_connection(address, timeout).close()
            limit = timedelta(seconds=min(attempt, max(ATTEMPT, end - time.monotonic())))
            store = TCPStore(*address, None, False, limit, wait_for_workers=False, multi_tenant=True)
        except (OSError, RuntimeError) as error:
            if (started and isinstance(error, OSError)) or time.monotonic() > end:
                raise ConnectionError(f"the store at {address[0]}:{address[1]} cannot be reached: {error}") from error
            attempt *= 2
            time.sleep(ATTEMPT)
        else:
            store.set_timeout(timedelta(seconds=timeout))
            return store


def _host_store(host: EngineCommunicator | None, timeout: float) -> TorchStore:
    """Rank 0's store on the loopback interface; it announces the port to the other ranks of this host."""
    from torch._C._distributed_c10d import HashStore, TCPStore

    if host is None:
        return TorchStore(OnFirstUse(HashStore))
    limit = timedelta(seconds=timeout)
    if host.rank:
        port = int(broadcast_bytes(host, b""))
        return TorchStore(OnFirstUse(partial(_connect_to, ("127.0.0.1", port), timeout)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        served = TCPStore(
            "127.0.0.1", port, None, True, limit, wait_for_workers=False, master_listen_fd=listener.detach()
        )
    broadcast_bytes(host, b"%d" % port)
    return TorchStore(OnFirstUse(lambda: served))
