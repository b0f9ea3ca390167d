"""Programs over several hosts, which are network namespaces. `make test-all PART=multihost` runs all of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leftovers import open_descriptors
from multihost.network import PORT, CannotMake, Namespace, Network, Ranks
from rankwise.observe.trace_file import Trace

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(__file__).with_name("program.py"))
WHOLE = os.environ.get("RANKWISE_MULTIHOST") == "full"  # make test-all PART=multihost
LIMIT = 100.0  # seconds for a job
ALLOWED = 4.0  # seconds that ranks take to fail: the timeout of their operations
LATE = 25.0  # seconds beyond it, on a busy machine

Make = Callable[..., Network]


@pytest.fixture
def network() -> Iterator[Make]:
    """Makes a Network, or skips the test with the reason why this system does not let it."""
    made: list[Network] = []

    def make(hosts: int, **shape: float) -> Network:
        try:
            made.append(Network(hosts, **shape))
        except CannotMake as error:
            pytest.skip(f"no hosts for this test: {error}")
        return made[-1]

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


DIGITS = [("", (0, 0, 1, 1)), ("gloo", (0, 0, 1, 1)), ("hierarchical", (0, 1, 0, 1)), ("", (0, 0, 1, 1, 2, 2, 3, 3))]
DIGITS += [("gloo", (0, 0, 1, 1, 2, 2, 3, 3)), ("", (0, 1, 1))]


@pytest.mark.skipif(not WHOLE, reason="a training on four ranks or more; make test-all PART=multihost runs it")
@pytest.mark.parametrize(("backend", "placement"), DIGITS)
def test_digits(network: Make, tmp_path: Path, backend: str, placement: tuple[int, ...]) -> None:
    """The example's own check: the losses are those of one rank."""
    hosts = network(max(placement) + 1, rate=1000)
    program = [str(ROOT / "examples" / "digits.py"), "--epochs", "3", "--out", str(tmp_path)]
    with job(hosts, placement, program, tmp_path, backend) as ranks:
        codes = ranks.wait(LIMIT)
        assert codes == [0] * len(placement), ranks.report()
        assert "matches the one-rank run" in ranks.out(0), ranks.report()


@pytest.mark.skipif(
    not WHOLE, reason="tests/backends counts bytes on simulated hosts; make test-all PART=multihost runs it"
)
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
@pytest.mark.slow
def test_a_killed_rank_fails_all_hosts(network: Make, tmp_path: Path, backend: str, size: int) -> None:
    program = [PROGRAM, "until_failure", str(size)]
    chosen = "" if backend == "hierarchical" else backend  # by rw.init itself, several ranks being on a host
    with job(network(2), (0, 0, 1, 1), program, tmp_path, chosen, ALLOWED) as ranks:
        ready(ranks)
        assert f"ready {backend}" in ranks.out(0)
        ranks.kill(3)
        found = failures(ranks, [3])
    assert {rank: end["error"] for rank, end in found.items()} == dict.fromkeys(range(3), "PeerLostError"), found


@pytest.mark.skipif(not WHOLE, reason="it waits for timeouts; make test-all PART=multihost runs it")
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


@pytest.mark.skipif(not WHOLE, reason="it waits for timeouts; make test-all PART=multihost runs it")
@pytest.mark.parametrize("backend", ["hierarchical", "gloo"])
def test_a_host_cut_off_ends_a_map_whose_tasks_have_no_limit(network: Make, tmp_path: Path, backend: str) -> None:
    hosts = network(2)
    with job(
        hosts, (0, 0, 1, 1), [PROGRAM, "until_map_fails", str(int(4 * ALLOWED))], tmp_path, backend, ALLOWED
    ) as ranks:
        while "ready" not in "".join(map(ranks.out, range(4))):
            time.sleep(0.05)
        hosts.cut_off(1)
        found = failures(ranks, [])
    for rank, end in found.items():
        assert end["error"] in ("PeerLostError", "CollectiveTimeout"), found
        assert {blamed < 2 for blamed in end["blamed"]} == {rank >= 2}, found


def launch(network: Network, counts: tuple[int, ...], *words: str) -> list[subprocess.CompletedProcess[str]]:
    """`rankwise run` with so many ranks on each host; how each launcher ended."""
    launchers = []
    for node, count in enumerate(counts):
        where = ("--nnodes", str(len(counts)), "--node-rank", str(node), "--rendezvous", f"10.0.0.1:{PORT}")
        launchers.append(
            subprocess.Popen(
                network.hosts[node].command(sys.executable, "-m", "rankwise", "run", *where, "-n", str(count), *words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    found = []
    try:
        for launcher in launchers:
            out, err = launcher.communicate(timeout=LIMIT)
            found.append(subprocess.CompletedProcess(launcher.args, launcher.returncode, out, err))
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.communicate()
    return found


@pytest.mark.parametrize("counts", [(1, 1), pytest.param((2, 1), marks=pytest.mark.slow)])
def test_a_launcher_on_each_host(network: Make, counts: tuple[int, ...]) -> None:
    code = "import numpy as np, rankwise as rw; g = rw.init(); print(g.rank, g.backend, g.all_reduce(np.ones(3))[1])"
    ends = launch(network(2), counts, "python", "-c", code)
    assert [end.returncode for end in ends] == [0, 0], ends
    n = sum(counts)
    lines = [f"{rank} hierarchical {n:.1f}" for rank in range(n)]
    assert [sorted(end.stdout.splitlines()) for end in ends] == [lines[: counts[0]], lines[counts[0] :]]


KILLED = """
import os, signal
import numpy as np, rankwise as rw
group = rw.init()
for turn in range(5):
    group.all_reduce(np.ones(3))
    if (turn, group.rank) == (2, 2):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_rank_ends_the_launchers_of_all_hosts(network: Make) -> None:
    ends = launch(network(2), (2, 2), "python", "-c", KILLED)
    assert [end.returncode for end in ends] == [137, 137], ends
    (line,) = {end.stderr.splitlines()[-1] for end in ends}
    assert re.match(r"rankwise: rank 2 \(pid \d+ on .*\) was killed by SIGKILL after all_reduce #3; ", line)


TORCH = """
import torch, torch.distributed as dist
dist.init_process_group("rankwise")
x = torch.ones(3)
dist.all_reduce(x)
print(x.tolist())
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_one_trace_has_torchs_group_on_all_hosts(network: Make, tmp_path: Path) -> None:
    ends = launch(network(2), (2, 1), "--trace", str(tmp_path / "t.json"), "python", "-c", TORCH)
    assert [end.stdout for end in ends] == ["[3.0, 3.0, 3.0]\n" * 2, "[3.0, 3.0, 3.0]\n"], ends
    assert ends[1].stderr.endswith("rankwise: node 0 writes the trace of all nodes\n")
    trace = Trace.read(tmp_path / "t.json")
    assert [rank.rank for rank in trace.ranks] == [0, 1, 2]
    assert [clock.node for clock in trace.clocks] == [1]
    for rank in trace.ranks:
        assert "all_reduce" in [op.name for op in rank.operations if not op.part], rank


LOST = """
import os, signal
import numpy as np, rankwise as rw
group = rw.init()
for turn in range(5):
    try:
        total = group.all_reduce(np.ones(3))
    except rw.PeerLostError:
        group = group.shrink()
        total = group.all_reduce(np.ones(3))
    if (turn, group.rank) == (2, 3):
        os.kill(os.getpid(), signal.SIGKILL)
print(group.world_size, total[0])
"""


@pytest.mark.slow
def test_the_ranks_of_all_hosts_go_on_after_a_loss(network: Make) -> None:
    ends = launch(network(2), (2, 2), "--keep-going", "python", "-c", LOST)
    assert [end.returncode for end in ends] == [0, 0], ends
    assert [end.stdout for end in ends] == ["3 3.0\n" * 2, "3 3.0\n"], ends
    (line,) = {end.stderr.splitlines()[-1] for end in ends}
    assert re.match(r"rankwise: finished without rank 3 \(pid \d+ on .*\), which was killed by SIGKILL", line), line


@pytest.mark.skipif(not WHOLE, reason="it waits for timeouts; make test-all PART=multihost runs it")
def test_launchers_of_hosts_that_are_cut_off_end(network: Make) -> None:
    hosts = network(2)
    cut = threading.Timer(15.0, hosts.cut_off, [1])
    cut.start()
    try:
        ends = launch(hosts, (1, 1), "--timeout", str(ALLOWED), PROGRAM, "until_failure", "8")
    finally:
        cut.cancel()
        cut.join()
    assert all("ready" in end.stdout and end.returncode for end in ends), ends


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
    assert not open_descriptors() - before  # an earlier test's group may be freed meanwhile
