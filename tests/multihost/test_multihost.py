"""Programs over several hosts, which are network namespaces. `make test-multihost` runs all of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leftovers import open_descriptors
from multihost.network import CannotMake, Namespace, Network, Ranks

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(__file__).with_name("program.py"))
WHOLE = os.environ.get("RANKWISE_MULTIHOST") == "full"  # make test-multihost
LIMIT = 100.0  # seconds for a job
ALLOWED = 4.0  # seconds that ranks take to fail: the timeout of their operations
LATE = 25.0  # seconds beyond it, on a busy machine

Make = Callable[..., Network]


@pytest.fixture
def network() -> Iterator[Make]:
    """Makes a Network, or skips the test with the reason why this system does not let it."""
    made: list[Network] = []

    def make(hosts: int, **shape: float) -> Network:
        for wanted in (shape, {}):  # as fast as it goes where this kernel cannot hold back packets
            try:
                made.append(Network(hosts, **wanted))
                return made[-1]
            except CannotMake as error:
                why = str(error)
        pytest.skip(f"no hosts for this test: {why}")

    yield make
    for each in made:
        each.close()


def job(
    network: Network, placement: tuple[int, ...], program: list[str], folder: Path, backend: str, timeout: float = 60.0
) -> Ranks:
    variables = {"RANKWISE_TIMEOUT": str(timeout)}
    if backend:
        variables["RANKWISE_BACKEND"] = backend
    return Ranks(network, placement, program, folder, variables)


def results(ranks: Ranks) -> list[Any]:
    """What each rank's program found."""
    try:
        codes = ranks.wait(LIMIT)
    except Exception as error:
        raise AssertionError(ranks.report()) from error
    assert codes == [0] * len(codes), ranks.report()
    return [json.loads(ranks.out(rank).splitlines()[-1]) for rank in range(len(codes))]


DIGITS = [("", (0, 0, 1, 1))]
if WHOLE:
    DIGITS += [("gloo", (0, 0, 1, 1)), ("hierarchical", (0, 1, 0, 1)), ("", (0, 0, 1, 1, 2, 2, 3, 3))]
    DIGITS += [("gloo", (0, 0, 1, 1, 2, 2, 3, 3)), ("", (0, 1, 1))]


@pytest.mark.parametrize(("backend", "placement"), DIGITS)
def test_digits(network: Make, tmp_path: Path, backend: str, placement: tuple[int, ...]) -> None:
    """The example's own check: the losses are those of one rank."""
    hosts = network(max(placement) + 1, rate=1000)
    program = [str(ROOT / "examples" / "digits.py"), "--epochs", "3", "--out", str(tmp_path)]
    with job(hosts, placement, program, tmp_path, backend) as ranks:
        codes = ranks.wait(LIMIT)
        assert codes == [0] * len(placement), ranks.report()
        assert "matches the one-rank run" in ranks.out(0), ranks.report()


def test_no_more_than_necessary_crosses_between_hosts(network: Make, tmp_path: Path) -> None:
    size = 1 << 20
    # Of what host 0 has, every byte that host 1 needs must leave it once.
    least = {
        "all_reduce": size,
        "broadcast": size,
        "all_gather": 2 * size,
        "reduce_scatter": size // 2,
        "all_to_all": size,
        "gather": 2 * size,
        "scatter": size // 2,
    }
    with job(network(2), (0, 0, 1, 1), [PROGRAM, "crossing", str(size)], tmp_path, "hierarchical") as ranks:
        found = results(ranks)[0]
    for name, nbytes in least.items():
        # Beside the data there are the packets' headers, acknowledgements, and the barriers.
        assert nbytes <= found[name] <= 1.06 * nbytes + 40_000, (name, found)


def failures(ranks: Ranks, out: list[int]) -> dict[int, Any]:
    """What the ranks but those in `out` say of the failure, which they all must see."""
    end = time.monotonic() + ALLOWED + LATE
    found = {}
    for rank, process in enumerate(ranks.processes):
        if rank not in out:
            process.wait(max(0.1, end - time.monotonic()))
            found[rank] = json.loads(ranks.out(rank).splitlines()[-1])
    return found


def ready(ranks: Ranks) -> None:
    """Return when every rank is in its loop of operations."""
    end = time.monotonic() + LIMIT
    while not all("ready" in ranks.out(rank) for rank in range(len(ranks.processes))):
        ended = [rank for rank, process in enumerate(ranks.processes) if process.poll() is not None]
        assert not ended, ranks.report()
        assert time.monotonic() < end, ranks.report()
        time.sleep(0.05)


BACKENDS = ["hierarchical", "gloo"] if WHOLE else ["hierarchical"]


@pytest.mark.parametrize("size", [8, 4 << 20] if WHOLE else [4 << 20])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_rank_fails_all_hosts(network: Make, tmp_path: Path, backend: str, size: int) -> None:
    program = [PROGRAM, "until_failure", str(size)]
    chosen = "" if backend == "hierarchical" else backend  # by rw.init itself, several ranks being on a host
    with job(network(2), (0, 0, 1, 1), program, tmp_path, chosen, ALLOWED) as ranks:
        ready(ranks)
        assert f"ready {backend}" in ranks.out(0)
        ranks.kill(3)
        found = failures(ranks, [3])
    assert {rank: end["error"] for rank, end in found.items()} == dict.fromkeys(range(3), "PeerLostError"), found


@pytest.mark.skipif(not WHOLE, reason="it waits for timeouts; make test-multihost runs it")
@pytest.mark.parametrize("backend", ["hierarchical", "gloo"])
def test_a_host_cut_off_fails_both_sides(network: Make, tmp_path: Path, backend: str) -> None:
    hosts = network(2)
    program = [PROGRAM, "until_failure", str(1 << 20)]
    with job(hosts, (0, 0, 1, 1), program, tmp_path, backend, ALLOWED) as ranks:
        ready(ranks)
        hosts.cut_off(1)
        found = failures(ranks, [])
    assert set(found) == {0, 1, 2, 3}, found
    for end in found.values():
        assert end["error"] in ("PeerLostError", "CollectiveTimeout"), found
        assert end["after"] < ALLOWED + LATE, found


def test_networks_are_removed_completely(network: Make) -> None:
    hosts = network(2)
    pids = [namespace.pid for namespace in hosts.hosts]
    hosts.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_failure_to_create_namespaces_is_explained_and_closes_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unshare = tmp_path / "unshare"
    unshare.write_text("#!/bin/sh\necho 'cannot change root filesystem propagation' >&2\nexit 1\n")
    unshare.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    before = open_descriptors()
    with pytest.raises(CannotMake, match="cannot change root filesystem propagation"):
        Namespace()
    assert open_descriptors() == before
