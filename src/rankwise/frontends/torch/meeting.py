"""How the ranks of a torch process group meet: by torch's store they agree on a backend and on a name to meet by.

Every rank writes where it is; rank 0 reads them all and writes the Plan, which the others follow.
No tensor ever passes through the store.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

from torch.distributed import Store

from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import CollectiveTimeout
from rankwise.contract.job import Job
from rankwise.contract.settings import Settings
from rankwise.initialize import connect, place

SEVERAL_HOSTS = "hierarchical"


@dataclass(frozen=True)
class Plan:
    """What rank 0 decides: the backend, the job's name, a secret of its ranks.

    host, port: where rank 0 serves a store for the backend, where the ranks are on several hosts.
    inherited: whether these are the ranks of `rankwise run`, which take the segment that it made: it
    tells them how a rank ended. part: the group's number in the memory of the default group, where
    that is such that all these ranks share it.
    """

    backend: str
    id: str
    secret: str
    host: str = ""
    port: int = 0
    inherited: bool = False
    part: int | None = None


def meet(
    store: Store,
    rank: int,
    size: int,
    timeout: float,
    parent: Communicator | None = None,
    ranks: Sequence[int] = (),
) -> Communicator:
    """The communicator of the `size` processes that call this with one store.

    parent, ranks: a communicator that all of them are in, and their ranks there. CollectiveTimeout
    names the ranks that did not come; BackendUnavailable, a host that the ranks cannot reach each
    other from.
    """
    if size == 1:
        return connect(Job(launcher="torch.distributed"), "solo", timeout)
    settings = Settings.read()
    end = time.monotonic() + timeout
    store.set(f"place {rank}", place())
    part = parent.make_part(ranks) if rank == 0 and parent is not None else None
    if part is not None:
        plan = Plan("shm", "", "", part=part)
        store.set("plan", json.dumps(asdict(plan)))
    elif rank == 0:
        places = _read(store, [f"place {other}" for other in range(size)], timeout, end)
        plan = Plan("shm", secrets.token_hex(16), secrets.token_hex(16), inherited=_fits(settings, rank, size))
        if len(set(places)) > 1:
            plan = replace(plan, inherited=False, backend=SEVERAL_HOSTS, host=_own_address(), port=_free_port())
        store.set("plan", json.dumps(asdict(plan)))
    else:
        plan = Plan(**json.loads(_read(store, ["plan"], timeout, end)[0]))
    if plan.part is not None and parent is not None:
        comm = parent.take_part(plan.part)
        comm.timeout = timeout
        return comm
    job = Job(
        rank,
        size,
        None,
        size if plan.backend == "shm" else None,
        "torch.distributed",
        f"torch.distributed {plan.id}",
        plan.secret.encode(),
        segment_fd=settings.segment_fd if plan.inherited else None,
        master=(plan.host, plan.port) if plan.host else None,
    )
    if plan.inherited:
        _taken.append(True)
    comm = connect(job, plan.backend, max(1.0, end - time.monotonic()))
    comm.timeout = timeout
    return comm


def _fits(settings: Settings, rank: int, size: int) -> bool:
    """Whether a group is that of all ranks of `rankwise run`, and the first such."""
    return not _taken and (settings.rank, settings.world_size) == (rank, size) and settings.segment_fd is not None


_taken: list[bool] = []  # one entry once a group has taken the launcher's segment


def _own_address() -> str:
    """The address by which other hosts reach this one: that of the way to MASTER_ADDR, where there is one."""
    master = os.environ.get("MASTER_ADDR") or socket.gethostname()
    family, _, _, _, where = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)
        found: str = probe.getsockname()[0]
    return found


def _free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def _read(store: Store, keys: list[str], timeout: float, end: float) -> list[str]:
    """The values of `keys` once they are all there; `keys[r]` is missed from rank r."""
    try:
        store.wait(keys, timedelta(seconds=max(0.001, end - time.monotonic())))
    except RuntimeError as error:
        missing = tuple(rank for rank, key in enumerate(keys) if not store.check([key]))
        raise CollectiveTimeout(
            f"init: ranks {list(missing)} did not come within {timeout:g} s",
            limit=timeout,
            missing=missing,
            operation="init",
        ) from error
    return [store.get(key).decode() for key in keys]
