"""hierarchical over many simulated hosts, with gloo's algorithms between them: results, latencies between the hosts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines import conforms
from rankwise.backends.hierarchical.communicator import HierarchicalCommunicator
from rankwise.contract.errors import MismatchError
from rankwise.contract.types import DType
from rankwise.group.group import Group
from rankwise.testing import run_ranks
from rankwise.testing.cases import OPERATIONS

sys.path.insert(0, str(Path(__file__).parent))
import gloo_in_threads
import hosts_in_threads

EIGHT_BY_TWO = tuple(rank // 2 for rank in range(16))
NINE_UNEVEN = (0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 0)


def opener(hosts: tuple[int, ...]) -> Any:
    return hosts_in_threads.opener(hosts, engine=gloo_in_threads.opener())


SOME = ("all_reduce", "reduce", "all_gather_v", "scatter_v")


@pytest.mark.parametrize(
    ("hosts", "name"),
    [
        pytest.param(hosts, name, id=f"{where}-{name}", marks=() if where == "9" and name in SOME else pytest.mark.slow)
        for where, hosts in (("9", NINE_UNEVEN), ("8x2", EIGHT_BY_TWO))
        for name in OPERATIONS["pointer"]
        if name != "send_recv"
    ],
)
def test_operation(hosts: tuple[int, ...], name: str) -> None:
    conforms(name, "pointer", len(hosts), opener(hosts), timeout=100)


@pytest.mark.parametrize(
    ("operation", "count", "most"),
    [
        ("barrier", 0, 3),
        # Compared in the messages that carry the data.
        *((operation, 1, 3) for operation in ("all_reduce", "reduce", "broadcast", "all_gather", "gather")),
        # 3 latencies for the comparison, and as many for each of the engine's operations.
        *((operation, 200, 6) for operation in ("all_reduce", "reduce", "all_gather", "gather", "scatter")),
        ("all_to_all", 16 * 20, 6),
        ("all_reduce", 100_000, 5),  # an all_to_all and an all_gather
    ],
)
def test_latencies_between_8_hosts(operation: str, count: int, most: int) -> None:
    def body(group: Group) -> int:
        comm: Any = group.comm
        assert isinstance(comm, HierarchicalCommunicator)
        x = np.zeros(count)
        if operation == "barrier":
            group.barrier()
        elif operation == "scatter":
            whole = np.zeros(16 * count)
            comm.scatter(whole.ctypes.data, x.ctypes.data, count, DType.F64, 0)
        else:
            getattr(group, operation)(x)
        latencies: int = comm._lane._transport.latencies + comm._flat._transport.latencies
        return latencies

    assert 0 < max(run_ranks(body, 16, backend=opener(EIGHT_BY_TWO))) <= most


def test_a_mismatch_reaches_every_rank() -> None:
    def body(group: Group) -> str:
        with pytest.raises(MismatchError) as caught:
            group.all_reduce(np.ones(5_000), "max" if group.rank == 9 else "sum")
        return str(caught.value)

    told = run_ranks(body, 12, backend=opener(NINE_UNEVEN))
    assert told == [told[0]] * 12
    assert "rank 9: all_reduce(count=5000, dtype=float64, op=max)" in told[0]
