"""Where the ranks of a gloo job meet: the store at MASTER_ADDR, or one that is made for the ranks of this host."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np

from rankwise.backends.native import rendezvous
from rankwise.backends.native.communicator import EngineCommunicator
from rankwise.contract.errors import CollectiveTimeout, RankwiseError
from rankwise.contract.job import Job
from rankwise.contract.types import DType

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, TCPStore


def meet(job: Job, timeout: float) -> tuple[Store, str]:
    """The job's store, and the address at which this process listens for the other ranks.

    ValueError if several hosts have no MASTER_ADDR and MASTER_PORT; CollectiveTimeout after `timeout` seconds.
    """
    if job.master is not None:
        return _master_store(job, timeout), _own_address(job.master[0])
    if job.one_host or job.local_world_size is None:
        return _host_store(job, timeout), "127.0.0.1"
    raise ValueError(
        f"backend='gloo': {job.launcher} started ranks on several hosts without an address to meet at; "
        "set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port there"
    )


_stores: dict[tuple[str, int], TCPStore] = {}
_openings: Counter[tuple[str, int]] = Counter()
_lock = threading.Lock()


def _master_store(job: Job, timeout: float) -> Store:
    """The store at the job's MASTER_ADDR, served by the launcher or by rank 0. It is kept for later groups."""
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
    text = f"init: rank 0's store at {where} (MASTER_ADDR and MASTER_PORT) could not be reached within {timeout:g} s"
    return CollectiveTimeout(f"{text}: {reason}", limit=timeout, missing=(0,), operation="init")


def _host_store(job: Job, timeout: float) -> Store:
    """Rank 0's store on the loopback interface; rank 0 announces its port to the other ranks of this host by shm."""
    from torch._C._distributed_c10d import HashStore, TCPStore

    if job.world_size == 1:
        return HashStore()
    limit = timedelta(seconds=timeout)
    # Not in a segment that the launcher may have made, which the backend shm uses.
    segment = "" if job.segment_fd is None else f" {os.fstat(job.segment_fd).st_ino}"
    meeting = replace(job, segment_fd=None, id=f"{job.id or job.launcher} gloo{segment}")
    with EngineCommunicator(rendezvous.meet(meeting, timeout).join(job.rank, timeout, True), "shm") as host:
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
        host.broadcast(int(port.ctypes.data), 1, DType.I64, 0)
        store = served if job.rank == 0 else TCPStore("127.0.0.1", int(port[0]), None, False, limit)
        host.barrier()
    return store


def _own_address(master: str) -> str:
    """The address of the interface through which this host reaches the master."""
    family, _, _, _, where = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)
        found: str = probe.getsockname()[0]
    return found
