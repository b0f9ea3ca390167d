"""DirectEnvelopes: on a double of gloo's transport, and the collectives that use them on gloo itself."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwise.backends import tuning
from rankwise.backends.composed.envelopes import DIGEST, Different
from rankwise.backends.composed.memory import address
from rankwise.backends.gloo.direct_envelopes import DirectEnvelopes
from rankwise.contract.errors import MismatchError
from rankwise.group.group import Group
from rankwise.testing import RanksFailed, run_ranks

sys.path.insert(0, str(Path(__file__).parent))
from forced_algorithms import check_one
from gloo_in_threads import Queues, QueueTransport

CAPACITY = 64
OPERATIONS = ("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")


class Sizes(QueueTransport):
    """Records how long the messages to each rank are."""

    def __init__(self, queues: Queues, rank: int, world_size: int) -> None:
        super().__init__(queues, rank, world_size)
        self.sizes: dict[int, int] = {}

    def send(self, ptr: int, size: int, peer: int, tag: int) -> Any:
        self.sizes[peer] = size
        return super().send(ptr, size, peer, tag)


def on_threads(n: int, body: Callable[[Sizes, DirectEnvelopes], Any]) -> list[Any]:
    queues = Queues()

    def rank(number: int) -> Any:
        transport: Any = Sizes(queues, number, n)
        return body(transport, DirectEnvelopes(transport, CAPACITY))

    with ThreadPoolExecutor(n) as pool:
        return [each.result(60) for each in [pool.submit(rank, number) for number in range(n)]]


@pytest.mark.parametrize("n", [2, 3, 16])
def test_a_payload_goes_only_to_the_ranks_that_need_it(n: int) -> None:
    size, root = 16, n - 1

    def body(transport: Sizes, envelopes: DirectEnvelopes) -> None:
        me = transport.rank
        peers = [peer for peer in range(n) if peer != me]
        given, taken = np.full((n, size), me, np.uint8), np.zeros((n, size), np.uint8)
        given[:] += np.arange(n, dtype=np.uint8)[:, None] * 16
        at, to = address(given), address(taken)
        for turn in range(3):  # in both memories
            envelopes.digest = turn
            envelopes.all_gather(at, to, size)
            assert taken[:, 0].tolist() == list(range(n))
            assert transport.sizes == dict.fromkeys(peers, DIGEST + size)
            taken[:] = 0
            envelopes.gather(at, to, size, root)
            assert taken[:, 0].tolist() == (list(range(n)) if me == root else [0] * n)
            assert transport.sizes == {peer: DIGEST + (size if peer == root else 0) for peer in peers}
            envelopes.all_to_all(at, to, size)
            assert taken[:, -1].tolist() == [16 * me % 256 + rank for rank in range(n)]
            assert transport.sizes == dict.fromkeys(peers, DIGEST + size)
            envelopes.scatter(at if me == root else 0, to, size, root)
            assert taken[0].tolist() == [(16 * me + root) % 256] * size
            assert transport.sizes == dict.fromkeys(peers, DIGEST + (size if me == root else 0))
            envelopes.barrier()
            assert transport.sizes == dict.fromkeys(peers, DIGEST)

    on_threads(n, body)


@pytest.mark.parametrize("odd", [0, 2])
def test_payloads_of_different_calls_are_ignored(odd: int) -> None:
    """Whatever their lengths, and in whichever memory; nothing is written."""

    def body(transport: Sizes, envelopes: DirectEnvelopes) -> None:
        given, taken = np.full(3 * CAPACITY, 7, np.uint8), np.zeros(3 * CAPACITY, np.uint8)
        for turn in range(2):
            envelopes.digest = 100 + turn + (transport.rank == odd)
            call, size = (envelopes.all_to_all, CAPACITY) if transport.rank == odd else (envelopes.all_gather, 8)
            with pytest.raises(Different):
                call(address(given), address(taken), size)
        assert not taken.any()
        envelopes.digest = 5
        envelopes.all_gather(address(given), address(taken), CAPACITY)
        assert (taken == 7).all()

    on_threads(3, body)


# ---- on gloo ----


def limit(operation: str, n: int) -> int:
    """The most elements of 8 bytes in a rank's array that fit into its envelopes."""
    return tuning.inline("gloo", n)[operation] // 8


def inline_only(group: Group, operation: str) -> None:
    """Let the operation use the envelopes or else refuse the call, if the backend can force that."""
    if operation in tuning.ALGORITHMS["gloo"]:
        group.comm.force({operation: "inline"})  # type: ignore[attr-defined]


@pytest.mark.parametrize("n", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_both_sides_of_each_limit(n: int) -> None:
    def body(group: Group) -> None:
        for operation in OPERATIONS:
            most = limit(operation, n) // n * n  # else a scatter is one with counts
            inline_only(group, operation)
            for count in (0, n, most - n, most):
                check_one(group, operation, count, np.int64)
            if operation in ("all_reduce", "broadcast", "reduce"):  # from there on in two exchanges
                for count in (tuning.whole(n) // 8 + more for more in (0, 1, 2, 3)):
                    check_one(group, operation, count, np.float64)
                check_one(group, operation, tuning.whole(n) + 1, np.int8)
                check_one(group, operation, tuning.whole(n) // 2 + 5, np.float16)
            group.comm.force({})  # type: ignore[attr-defined]
            for count in (most + n, n, 2 * most):
                check_one(group, operation, count, np.float64)

    run_ranks(body, n, backend="gloo")


@pytest.mark.parametrize("more", [0, 3], ids=["in the envelope", "after it"])
@pytest.mark.parametrize(("operation", "odd"), [("all_to_all", 0), pytest.param("gather", 2, marks=pytest.mark.slow)])
def test_a_mismatch_with_data_on_either_side_of_a_limit(operation: str, odd: int, more: int) -> None:
    """Every rank raises, and no output is touched."""
    n = 3

    def body(group: Group) -> str:
        x = np.full(limit(operation, n) // n * n + more, float(group.rank))
        out = np.zeros_like(x)
        calls = {
            "gather": lambda: group.gather(x, 1),
            "all_to_all": lambda: group.all_to_all(x, out=out),
            "broadcast": lambda: group.broadcast(x, odd),
        }
        with pytest.raises(MismatchError) as caught:
            calls["broadcast" if group.rank == odd else operation]()
        assert (x == group.rank).all()
        assert not out.any()
        return str(caught.value)

    for text in run_ranks(body, n, backend="gloo"):
        assert text.count(f"{operation}(") == 2
        assert text.count("broadcast(") == 1


@pytest.mark.slow
def test_a_rank_killed_between_calls_whose_data_is_in_envelopes() -> None:
    n = 3

    def body(group: Group) -> None:
        for turn in range(100):
            if group.rank == 1 and turn == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            check_one(group, "all_to_all", limit("all_to_all", n) // n * n, np.float64)

    with pytest.raises(RanksFailed) as caught:
        run_ranks(body, n, backend="gloo", timeout=30)
    assert "PeerLostError" in str(caught.value)
