"""The mpi backend's recursive doubling on any number of ranks: order of operands, latencies.

The ranks are threads, and queues replace MPI. tests/backends/test_mpi.py runs it over MPI itself.
"""

from __future__ import annotations

import sys
from math import floor, log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwise.backends.composed.partial import Partial
from rankwise.backends.mpi.recursive_doubling import Pairs, all_reduce
from rankwise.contract.types import DType, ReduceOp
from rankwise.group.group import Group
from rankwise.testing import run_ranks

sys.path.insert(0, str(Path(__file__).parent))
from gloo_in_threads import Queues, QueueTransport


class QueuePeers:
    """What the algorithm needs of `mpi.transport.MpiPeers`."""

    def __init__(self, queues: Queues, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.transport = QueueTransport(queues, rank, world_size)

    def send(self, ptr: int, size: int, peer: int) -> Any:
        return self.transport.send(ptr, size, peer, 0) if size else None

    def recv(self, ptr: int, size: int, peer: int) -> Any:
        return self.transport.recv(ptr, size, peer, 0) if size else None

    def wait(self, pending: Any) -> None:
        self.transport.wait(pending)


def test_pairs_bracket_neighbours() -> None:
    def bracketed(n: int) -> str:
        """The operands as combined on n ranks."""
        texts = [str(rank) for rank in range(n)]
        pairs = [Pairs(rank, n) for rank in range(n)]
        for rank in range(n):
            if pairs[rank].acts_for_two:
                texts[rank] = f"({texts[rank]} {texts[rank + 1]})"
        for step in range(pairs[0].steps):
            merged = list(texts)
            for rank in range(n):
                if not pairs[rank].folded:
                    two = (rank, pairs[rank].partner(step))
                    low, high = two if pairs[rank].is_lower(step) else two[::-1]
                    merged[rank] = f"({texts[low]} {texts[high]})"
            texts = merged
        found = {texts[rank] for rank in range(n) if not pairs[rank].folded}
        assert len(found) == 1
        return found.pop()

    assert bracketed(2) == "(0 1)"
    assert bracketed(3) == "((0 1) 2)"
    assert bracketed(4) == "((0 1) (2 3))"
    assert bracketed(5) == "(((0 1) 2) (3 4))"
    assert bracketed(6) == "(((0 1) (2 3)) (4 5))"
    assert bracketed(7) == "(((0 1) (2 3)) ((4 5) 6))"
    for n in range(2, 70):
        assert bracketed(n).translate(str.maketrans("", "", "()")).split() == [str(rank) for rank in range(n)]


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.C64])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 9])
def test_every_rank_has_the_same_bits_in_few_latencies(n: int, dtype: DType) -> None:
    """Operands are combined in pairs of neighbours, and f16 is rounded only once."""
    count, kind = 1001, {DType.F32: np.float32, DType.F16: np.float16, DType.C64: np.complex64}[dtype]
    given = [(np.random.default_rng(rank).normal(size=count) * 100).astype(kind) for rank in range(n)]

    def combined(ranks: list[Any]) -> Any:
        return ranks[0] if len(ranks) == 1 else combined(ranks[: len(ranks) // 2]) + combined(ranks[len(ranks) // 2 :])

    wide = [x.astype(np.float32) if kind is np.float16 else x for x in given]
    extra = n - (1 << n.bit_length() - 1)
    want = combined([wide[2 * i] + wide[2 * i + 1] for i in range(extra)] + wide[2 * extra :]).astype(kind)
    queues = Queues()

    def body(group: Group) -> tuple[bytes, int]:
        peers, x = QueuePeers(queues, group.rank, n), given[group.rank].copy()
        all_reduce(peers, x.ctypes.data, count, Partial(dtype, ReduceOp.SUM, n))  # type: ignore[arg-type]
        return x.tobytes(), peers.transport.latencies

    results = run_ranks(body, n, backend="threads")
    assert {found for found, _ in results} == {want.tobytes()}
    assert max(latencies for _, latencies in results) <= floor(log2(n)) + (0 if n & (n - 1) == 0 else 2)
