"""gloo's algorithms on any number of ranks: results, latencies.

The ranks are threads, and queues replace gloo's transport (gloo_in_threads.py). tests/backends/test_gloo.py runs some
of the same over gloo itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines import conforms
from rankwise.backends import tuning
from rankwise.contract.errors import MismatchError
from rankwise.contract.types import DType, ReduceOp
from rankwise.group.group import Group
from rankwise.testing import run_ranks

sys.path.insert(0, str(Path(__file__).parent))
from forced_algorithms import check_one
from gloo_in_threads import GlooInThreads, opener

FORCED = [
    *(("all_reduce", name) for name in ("all_gather", "reduce_scatter")),
    *(("reduce", name) for name in ("gather", "reduce_scatter")),
    ("broadcast", "scatter_all_gather"),
    ("all_gather", "pairwise"),
]
ANY_SIZE = (2, 3, 4, 5, 6, 7, 8, 9)
SOME_SIZES = [n if n in (3, 8) else pytest.param(n, marks=pytest.mark.slow) for n in ANY_SIZE]


@pytest.mark.parametrize(("operation", "algorithm"), FORCED)
@pytest.mark.parametrize("n", SOME_SIZES)
def test_forced(n: int, operation: str, algorithm: str) -> None:
    """Every root and size of the conformance suite."""
    conforms(operation, "pointer", n, opener(forced={operation: algorithm}))


@pytest.mark.slow  # test_forced runs the same algorithms
@pytest.mark.parametrize("n", [9, 12])
@pytest.mark.parametrize(
    "operation",
    [
        *("all_reduce", "reduce", "reduce_scatter", "all_to_all", "gather"),
        *("all_gather_v", "gather_v", "scatter_v", "reduce_scatter_v"),
    ],
)
def test_the_usual_choice_on_many_ranks(n: int, operation: str) -> None:
    conforms(operation, "pointer", n, opener())


# ---- latencies ----


def latencies(n: int, operation: str, algorithm: str, size: int = 8, root: int = 0) -> int:
    """The longest chain of messages in one call that is not compared. size: bytes of a block."""

    def body(group: Group) -> int:
        comm = group.comm
        assert isinstance(comm, GlooInThreads)
        if algorithm:
            comm.force({operation: algorithm})
        transport: Any = comm._transport
        send, recv = (np.zeros(size * n, np.uint8) for _ in range(2))
        at, to, count = send.ctypes.data, recv.ctypes.data, size // 8
        calls = {
            "barrier": lambda: comm.barrier(),
            "all_reduce": lambda: comm.all_reduce(at, count, DType.F64, ReduceOp.SUM),
            "reduce": lambda: comm.reduce(at, count, DType.F64, ReduceOp.SUM, root),
            "reduce_scatter": lambda: comm.reduce_scatter(at, to, count, DType.F64, ReduceOp.SUM),
            "broadcast": lambda: comm.broadcast(at, size, DType.U8, root),
            "gather": lambda: comm.gather(at, to, size, DType.U8, root),
            "scatter": lambda: comm.scatter(at, to, size, DType.U8, root),
            "all_gather": lambda: comm.all_gather(at, to, size, DType.U8),
            "all_to_all": lambda: comm.all_to_all(at, to, size, DType.U8),
            "all_to_all_v": lambda: comm.all_to_all_v(at, to, [size] * n, [size] * n, DType.U8),
        }
        calls[operation]()
        return int(transport.latencies)

    return max(run_ranks(body, n, backend=opener(checks=not algorithm)))


@pytest.mark.parametrize("n", [2, 3, 8, 23])
@pytest.mark.parametrize(("operation", "algorithm"), FORCED)
def test_latencies(n: int, operation: str, algorithm: str) -> None:
    """Each move is one exchange with all ranks at once."""
    most = 2 if algorithm in ("reduce_scatter", "scatter_all_gather") and n > 1 else 1
    assert 0 < latencies(n, operation, algorithm, 4096) <= most


@pytest.mark.parametrize("n", [8, 9, 16, 23])
@pytest.mark.parametrize("operation", ["barrier", "all_reduce", "reduce", "gather", "scatter", "all_gather"])
def test_a_small_call_is_compared_in_the_messages_that_carry_its_data(n: int, operation: str) -> None:
    assert latencies(n, operation, "") == 1


@pytest.mark.parametrize("n", [2, 8, 16])
@pytest.mark.parametrize("operation", sorted(tuning.inline("gloo", 2)))
def test_data_that_fits_into_the_envelopes_takes_one_latency_or_two_if_it_is_divided(n: int, operation: str) -> None:
    most = tuning.inline("gloo", n)[operation]
    if operation in ("all_reduce", "broadcast", "reduce"):
        whole = tuning.whole(n) // 8 * 8
        assert [latencies(n, operation, "", size) for size in (whole, whole + 8, most // 8 * 8)] == [1, 2, 2]
        assert n == 2 or latencies(n, operation, "", most + 8) > 2
        return
    if operation == "all_to_all_v":  # its counts fit; the data follows
        assert latencies(n, operation, "") == 2
        return
    block = most // n if operation in ("scatter", "reduce_scatter", "all_to_all") else most
    if operation == "scatter_array":
        assert latency_of_an_unknown_array(n, most - 96 - 8) == 1  # the header has 96 bytes
        assert latency_of_an_unknown_array(n, most) > 1
    else:
        assert latencies(n, operation, "", block // 8 * 8) == 1
        assert operation == "barrier" or latencies(n, operation, "", block // 8 * 8 + 8) > 1


def latency_of_an_unknown_array(n: int, size: int) -> int:
    """As `latencies`, for a scatter whose array only rank 0 knows. size: of a part, rounded down to 8 bytes."""

    def body(group: Group) -> int:
        x = np.arange(size // 8 * n) if group.rank == 0 else None
        assert group.scatter(x)[0] == size // 8 * group.rank
        comm: Any = group.comm
        return int(comm._transport.latencies)

    return max(run_ranks(body, n, backend=opener()))


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("n", [3, 17])
def test_scatters_of_an_unknown_array(n: int, checks: bool) -> None:
    def body(group: Group) -> None:
        for count in (0, n, n + 1, 100 * n, 40_000 * n):
            check_one(group, "scatter", count, np.float32)
        group.comm.force({"scatter": "direct"})  # type: ignore[attr-defined]
        check_one(group, "scatter", 2 * n, np.int64)

    run_ranks(body, n, backend=opener(checks=checks))


@pytest.mark.parametrize("root", [0, 3])
def test_uneven_blocks_cost_a_rank_one_message(root: int) -> None:
    def body(group: Group) -> tuple[int, int]:
        comm, n = group.comm, group.world_size
        transport: Any = comm._transport  # type: ignore[attr-defined]
        counts, whole, mine = list(range(n)), np.zeros(n * n), np.zeros(n)
        comm.gather_v(mine.ctypes.data, whole.ctypes.data, counts, DType.F64, root)
        gathering = transport.sent
        comm.scatter_v(whole.ctypes.data, mine.ctypes.data, counts, DType.F64, root)
        return gathering, transport.sent - gathering

    sent = run_ranks(body, 5, backend=opener(checks=False))
    # Rank 0 has nothing to send or receive.
    assert [gathering for gathering, _ in sent] == [0 if rank in (0, root) else 1 for rank in range(5)]
    assert [scattering for _, scattering in sent] == [
        (4 if root == 0 else 3) if rank == root else 0 for rank in range(5)
    ]


# ---- the comparison on many ranks ----


@pytest.mark.parametrize("n", [8, 9])
@pytest.mark.parametrize("odd", [0, 1, 7])
def test_a_mismatch_reaches_every_rank(n: int, odd: int) -> None:
    def body(group: Group) -> tuple[int, str]:
        x = np.full(20_000, group.rank)
        with pytest.raises(MismatchError) as caught:
            group.all_reduce(x[1:] if group.rank == odd else x)
        assert (x == group.rank).all()
        return len(caught.value.calls), str(caught.value)

    told = run_ranks(body, n, backend=opener())
    assert told == [(n, told[0][1])] * n
    assert f"rank {odd}: all_reduce(count=19999" in told[0][1]
