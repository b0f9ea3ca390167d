"""How the ranks of a torch process group meet: by torch's store they agree on a backend and on a name to meet by.

Every rank writes where it is; rank 0 reads them all and writes the Plan, which the others follow.
No tensor ever passes through the store.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import asdict, dataclass
from datetime import timedelta

from torch.distributed import Store

from rankwise.api.init import connect, place
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import CollectiveTimeout
from rankwise.contract.job import Job

SEVERAL_HOSTS = "hierarchical"


@dataclass(frozen=True)
class Plan:
    """What rank 0 decides: the backend, the job's name, and a secret of its ranks."""

    backend: str
    id: str
    secret: str


def meet(store: Store, rank: int, size: int, timeout: float) -> Communicator:
    """The communicator of the `size` processes that call this with one store.

    CollectiveTimeout names the ranks that did not come; BackendUnavailable, a host that the ranks
    cannot reach each other from.
    """
    if size == 1:
        return connect(Job(launcher="torch.distributed"), "solo", timeout)
    end = time.monotonic() + timeout
    store.set(f"place {rank}", place())
    if rank == 0:
        places = _read(store, [f"place {other}" for other in range(size)], timeout, end)
        backend = "shm" if len(set(places)) == 1 else SEVERAL_HOSTS
        plan = Plan(backend, secrets.token_hex(16), secrets.token_hex(16))
        store.set("plan", json.dumps(asdict(plan)))
    else:
        plan = Plan(**json.loads(_read(store, ["plan"], timeout, end)[0]))
    local = size if plan.backend == "shm" else None
    job = Job(rank, size, None, local, "torch.distributed", f"torch.distributed {plan.id}", plan.secret.encode())
    return connect(job, plan.backend, max(1.0, end - time.monotonic()))


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
