"""How the ranks of a torch process group meet: through torch's store they agree on a backend and a name.

Rank 0 announces a meeting under a unique name, every other rank answers with its locality, and rank 0
publishes the Plan, which the others follow. No tensor ever passes through the store.

A store may contain the entries of an earlier, possibly aborted meeting, for example in a file that is
used again, or if a process creates its groups again. So every answer carries a mark, a nonce that its
rank generated for this meeting, and a plan lists the marks that rank 0 has read. A rank that does not find
its own mark ignores that plan and answers the next announcement.
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
from rankwise.contract.errors import BackendUnavailable, CollectiveTimeout
from rankwise.contract.job import Job
from rankwise.contract.own_address import REMEDY, own_address
from rankwise.contract.settings import Settings
from rankwise.initialize import connect, locality

SEVERAL_HOSTS = "hierarchical"


@dataclass(frozen=True)
class Plan:
    """Rank 0's decisions: the backend, the job's name, and a secret of its ranks.

    marks: the marks of all ranks but rank 0 in this meeting, in the order of the ranks. host, port: the
    address at which rank 0 serves a store for the backend, if the ranks are on several hosts. inherited:
    whether these are the ranks of `rankwise run`, which use the launcher's segment and so learn how a
    rank ended. part: the group's number in the default group's memory, if all its ranks share that
    memory. out_of_memory, no_address: why there is no group, if rank 0 could not create it in that memory, or
    has no address for the other hosts.
    """

    backend: str
    id: str
    secret: str
    marks: list[str]
    host: str = ""
    port: int = 0
    inherited: bool = False
    part: int | None = None
    out_of_memory: str = ""
    no_address: str = ""


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
    end = time.monotonic() + timeout
    if rank == 0:
        call = secrets.token_hex(8)
        store.set("call", call)
        answers = _read(store, {other: _answer_key(call, other) for other in range(1, size)}, timeout, end)
        marks, places = zip(*map(json.loads, answers), strict=True)
        plan = Plan("shm", secrets.token_hex(16), secrets.token_hex(16), list(marks))
        try:
            part = parent.make_part(ranks) if parent is not None else None
            if part is not None:
                plan = replace(plan, part=part)
            elif set(places) == {locality()}:
                here = settings.local_world_size in (None, size)
                plan = replace(plan, inherited=here and _fits(settings, rank, size))
            else:
                fits = _fits(settings, rank, size)
                plan = replace(plan, backend=SEVERAL_HOSTS, host=_address(), port=_free_port(), inherited=fits)
        except (MemoryError, BackendUnavailable) as error:  # the others must not wait for a plan
            if isinstance(error, MemoryError):
                plan = replace(plan, out_of_memory=f"rank 0 could not make the group: {error}")
            else:
                plan = replace(plan, no_address=error.missing)
            store.set(_plan_key(call), json.dumps(asdict(plan)))
            raise
        store.set(_plan_key(call), json.dumps(asdict(plan)))
    else:
        plan = _answer(store, rank, timeout, end)
        if plan.out_of_memory:
            raise MemoryError(plan.out_of_memory)
        if plan.no_address:
            raise BackendUnavailable(SEVERAL_HOSTS, plan.no_address, REMEDY)
    if plan.part is not None and parent is not None:
        comm = parent.take_part(plan.part)
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
    )
    if plan.inherited:
        _taken.append(True)
    comm = connect(job, plan.backend, max(1.0, end - time.monotonic()))
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


def _free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def _answer_key(call: str, rank: int) -> str:
    return f"{call} rank {rank}"


def _plan_key(call: str) -> str:
    return f"{call} plan"


def _answer(store: Store, rank: int, timeout: float, end: float) -> Plan:
    """Off rank 0: answer its call, and each later one, until there is a plan that was made of the answer."""
    mark = secrets.token_hex(8)
    call = _read(store, {0: "call"}, timeout, end)[0]
    answered = ""
    pause = _SHORTEST_PAUSE
    while True:
        if call != answered:
            store.set(_answer_key(call, rank), json.dumps([mark, locality()]))
            answered = call
        if store.check([_plan_key(call)]):
            plan = Plan(**json.loads(store.get(_plan_key(call))))
            if plan.marks[rank - 1] == mark:
                return plan
        if time.monotonic() > end:
            raise _missing([0], timeout)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        call = store.get("call").decode()


_SHORTEST_PAUSE, _LONGEST_PAUSE = 50e-6, 20e-3  # seconds


def _read(store: Store, keys: dict[int, str], timeout: float, end: float) -> list[str]:
    """The values of `keys`, each of which the rank that it is given for writes, once they are all there."""
    try:
        store.wait(list(keys.values()), timedelta(seconds=max(0.001, end - time.monotonic())))
    except RuntimeError as error:
        raise _missing([rank for rank, key in keys.items() if not store.check([key])], timeout) from error
    return [store.get(key).decode() for key in keys.values()]


def _missing(ranks: list[int], timeout: float) -> CollectiveTimeout:
    return CollectiveTimeout(
        f"init: ranks {ranks} did not join within {timeout:g} s",
        limit=timeout,
        missing=tuple(ranks),
        operation="init",
    )
