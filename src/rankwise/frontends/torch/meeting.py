"""How the ranks of a torch process group meet: through torch's store they agree on a backend and a name.

Rank 0 announces a numbered call, every other rank answers with its locality, and rank 0 publishes the Plan, which the
others follow. No tensor ever passes through the store.

A store may contain the entries of an earlier, possibly aborted meeting, for example in a file that is used again, or if
a process creates its groups again. So a rank ignores a call whose plan, or failure, was there before its own answer,
and waits for the next call.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from torch.distributed import Store

from rankwise.contract.communicator import Communicator
from rankwise.contract.job import Job
from rankwise.initialize import connect
from rankwise.meeting.gathering import ANSWER, GRACE, lead, opened, ranks_late
from rankwise.meeting.store import Missing
from rankwise.meeting.torch_store import TorchStore
from rankwise.system import locality
from rankwise.system.own_address import own_address
from rankwise.system.settings import Settings

SEVERAL_HOSTS = "hierarchical"


@dataclass(frozen=True)
class Plan:
    """Rank 0's decisions: the backend, the job's name, and a secret of its ranks.

    host, port: the address at which rank 0 serves a store for the backend, if the ranks are on several hosts.
    inherited: whether these are the ranks of `rankwise run`, which use the launcher's segment and so learn how a
    rank ended. subgroup: the group's number in the default group's memory, if all its ranks share that memory.
    """

    backend: str
    id: str
    secret: str
    host: str = ""
    port: int = 0
    inherited: bool = False
    subgroup: int | None = None


def meet(
    store: Store,
    rank: int,
    size: int,
    timeout: float,
    parent: Communicator | None = None,
    ranks: Sequence[int] = (),
) -> Communicator:
    """The communicator of the `size` processes that call this with the same store.

    parent, ranks: a communicator to which all of them belong, and their ranks in it. Raises
    CollectiveTimeout, which names the ranks that did not come, and BackendUnavailable if the ranks'
    hosts cannot reach each other. If rank 0 fails, so do all others.
    """
    if size == 1:
        return connect(Job(launcher="torch.distributed"), "solo", timeout)
    settings = Settings.read()
    end, late = time.monotonic() + timeout, ranks_late(timeout)
    own = TorchStore(lambda: store)
    listener: socket.socket | None = None

    def decide(localities: list[bytes]) -> bytes:
        """The plan. Raises MemoryError or BackendUnavailable if there can be no group."""
        nonlocal listener
        plan = Plan("shm", secrets.token_hex(16), secrets.token_hex(16))
        fits = _fits(settings, rank, size)
        try:
            subgroup = parent.make_subgroup(ranks) if parent is not None else None
        except MemoryError as error:
            raise MemoryError(f"rank 0 could not make the group: {error}") from error
        if subgroup is not None:
            plan = replace(plan, subgroup=subgroup)
        elif len(set(localities)) == 1:
            plan = replace(plan, inherited=fits and settings.local_world_size in (None, size))
        else:
            host, listener = _address(), _listener()
            plan = replace(plan, backend=SEVERAL_HOSTS, host=host, port=listener.getsockname()[1], inherited=fits)
        return json.dumps(asdict(plan)).encode()

    own_locality = json.dumps(locality.locality()).encode()
    try:
        if rank == 0:
            answer = lead(own.under(str(own.add("call", 1))), {0: own_locality}, size, end, late, decide)
        else:
            answer = opened(_answered(own, rank, own_locality, end + GRACE))
    except (Missing, ConnectionError) as error:
        raise late([0], str(error)) from error
    plan = Plan(**json.loads(answer))
    if plan.subgroup is not None and parent is not None:
        comm = parent.join_subgroup(plan.subgroup)
        comm.timeout = timeout
        return comm
    job = Job(
        rank,
        size,
        settings.local_rank if plan.inherited else None,
        size if plan.backend == "shm" else settings.local_world_size if plan.inherited else 1,  # 1: not known
        "torch.distributed",
        f"torch.distributed {plan.id}",
        plan.secret.encode(),
        segment_fd=settings.segment_fd if plan.inherited else None,
        master=(plan.host, plan.port) if plan.host else None,
        listener=listener,
    )
    if plan.inherited:
        _taken.append(True)
    try:
        comm = connect(job, plan.backend, max(1.0, end - time.monotonic()))
    finally:
        if listener is not None:  # the store may have taken it
            listener.close()
    comm.timeout = timeout
    return comm


def _fits(settings: Settings, rank: int, size: int) -> bool:
    """Whether a group consists of all ranks of one `rankwise run`, and is the first such group."""
    if _taken or settings.segment_fd is None:
        return False
    return (settings.rank, settings.world_size) == (rank, size)


_taken: list[bool] = []  # one entry once a group has taken the launcher's segment


def _address() -> str:
    return own_address(os.environ.get("MASTER_ADDR") or socket.gethostname(), SEVERAL_HOSTS)


def _listener() -> socket.socket:
    """It keeps its port until a store listens there: any other program could take one that is merely free."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 is switched off
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _answered(store: TorchStore, rank: int, value: bytes, end: float) -> bytes:
    """Off rank 0: answer its call, and each later one, until one of them has been answered in turn."""
    answered, pause = b"", _SHORTEST_PAUSE
    while True:
        call = store.get("call", end)
        part = store.under(call.decode())
        if call != answered and not (stale := part.check([ANSWER])):
            part.set(str(rank), value)
        answered = call
        if not stale and (answer := part.find(ANSWER)) is not None:
            return answer
        if time.monotonic() > end:
            raise Missing([ANSWER])
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


_SHORTEST_PAUSE, _LONGEST_PAUSE = 50e-6, 20e-3  # seconds
