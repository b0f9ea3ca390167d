"""Containers of one host, each with its own network namespace: their ranks share memory if they share a directory."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from multihost.network import CannotMake, Network, Ranks

LIMIT = 100.0  # seconds for a job
PROGRAM = """
import json
import numpy as np
import rankwise as rw
with rw.init() as group:
    x = np.full(100_000, group.rank + 1.0)
    total = group.all_reduce(x.copy())[-1]
    print(json.dumps([type(group.comm).__name__, total, group.all_gather(x)[:, 0].tolist()]))
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    try:
        with Network(2) as made:
            yield made
    except CannotMake as error:
        pytest.skip(f"no containers for this test: {error}")


def communicators(network: Network, placement: tuple[int, ...], folder: Path, **variables: str) -> tuple[set[str], str]:
    """The kinds of the ranks' communicators, and what the ranks logged."""
    script = folder / "program.py"
    script.write_text(PROGRAM)
    with Ranks(network, placement, [str(script)], folder, {"RANKWISE_TIMEOUT": "60", **variables}) as ranks:
        assert ranks.wait(LIMIT) == [0] * len(placement), ranks.report()
        found = [json.loads(ranks.out(rank)) for rank in range(len(placement))]
        logged = "".join(ranks.err(rank) for rank in range(len(placement)))
    n = len(placement)
    assert [values[1:] for values in found] == [[n * (n + 1) / 2, list(range(1, n + 1))]] * n
    return {values[0] for values in found}, logged


@pytest.mark.parametrize("placement", [(0, 1), pytest.param((0, 0, 1, 1), marks=pytest.mark.slow)])
def test_they_share_memory_through_a_shared_directory(
    network: Network, placement: tuple[int, ...], tmp_path: Path
) -> None:
    with tempfile.TemporaryDirectory(prefix="rankwise-", dir="/tmp") as shared:
        kinds, logged = communicators(network, placement, tmp_path, RANKWISE_SOCKET_DIR=shared)
        assert not list(Path(shared).iterdir())
    assert kinds == {"EngineCommunicator"}
    assert "cannot share memory" not in logged


@pytest.mark.slow
def test_without_one_the_log_says_why_not(network: Network, tmp_path: Path) -> None:
    kinds, logged = communicators(network, (0, 0, 1, 1), tmp_path)
    assert kinds == {"HierarchicalCommunicator"}
    assert logged.count("cannot share memory") == 1  # not once by each rank
    assert "rank 2 runs on the host of rank 0 but cannot share memory with it, because the network namespace" in logged
    assert "--network host" in logged
    assert "RANKWISE_SOCKET_DIR" in logged
