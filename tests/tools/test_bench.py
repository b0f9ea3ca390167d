"""`rankwise bench` as a command: runs of two ranks, and peers that are wrong, fail or are missing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench_command import QUICK, bench, report_of
from rankwise.tools.bench.cases import OPERATIONS
from rankwise.tools.bench.peers import Missing, find


def test_every_operation_is_measured_and_right(tmp_path: Path) -> None:
    levels = ("--native", "--pointer", "--registered", "--bound")
    done = bench("--sizes", "8,40K", "--check", *levels, *QUICK, "--json", str(tmp_path / "r.json"))
    assert (done.returncode, done.stderr) == (0, "")
    document = report_of(tmp_path / "r.json")
    assert document["left_out"] == {}
    assert document["machine"]["cores"] >= 1
    results = document["results"]
    points = {(one["contender"], one["operation"], one["size"]) for one in results}
    sizes = {name: [8, 40 << 10] if operation.has_bytes else [0] for name, operation in OPERATIONS.items()}
    contenders = ("rankwise", "registered", "pointer", "native")
    every = {(one, name, size) for one in contenders for name in OPERATIONS for size in sizes[name]}
    assert points == every | {("bound", name, size) for name in OPERATIONS for size in sizes[name] if size}
    for one in results:
        assert 0 < one["min_us"] <= one["median_us"] <= one["p99_us"]
        assert (one["wrong_bytes"], one["ranks"], one["dtype"]) == (0, 2, "float32")
        assert one["count"] * 4 == one["size"]
        assert ("bus_gb_per_s" in one) == OPERATIONS[one["operation"]].has_bytes
    assert {(one["operation"], one["size"]) for one in document["ratios"]} == {point[1:] for point in points}
    assert all(one["native"] > 0 for one in document["ratios"])
    assert "rankwise: no wrong byte at 19 points" in done.stdout


@pytest.mark.slow
def test_three_ranks_have_sizes_of_whole_parts(tmp_path: Path) -> None:
    done = bench(
        "reduce_scatter", "send_recv", "-n", "3", "--sizes", "8,12,1K", "--dtype", "int16", "--op", "max",
        "--check", *QUICK, "--json", str(tmp_path / "r.json"),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    results = report_of(tmp_path / "r.json")["results"]
    assert [(one["operation"], one["size"]) for one in results] == [
        ("reduce_scatter", 12),
        ("reduce_scatter", 1026),
        ("send_recv", 8),
        ("send_recv", 12),
        ("send_recv", 1024),
    ]
    assert [one["wrong_bytes"] for one in results] == [0] * 5


@pytest.mark.slow
def test_fresh_arrays(tmp_path: Path) -> None:
    done = bench("--fresh", "--sizes", "8,40K", "--check", "--registered", *QUICK, "--json", str(tmp_path / "r.json"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "all_reduce, 2 ranks, float32 sum, fresh arrays" in done.stdout
    results = report_of(tmp_path / "r.json")["results"]
    assert len(results) == 2 * (2 * len(OPERATIONS) - 1)
    assert {(one["iterations"], one["wrong_bytes"]) for one in results} == {(1, 0)}


@pytest.mark.slow
def test_each_algorithm_is_measured_and_the_chosen_one_marked(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = bench(
        *("--algorithms", "all_reduce", "scatter", "--sizes", "64,40K", "--check", *QUICK),
        *("--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "r.png")),
        RANKWISE_OVERSUBSCRIBED="0",
    )
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[tuple[str, int], dict[str, bool]] = {}
    for one in report_of(tmp_path / "r.json")["results"]:
        assert one["wrong_bytes"] == 0
        found.setdefault((one["operation"], one["size"]), {})[one["contender"]] = one["chosen"]
    everywhere = {"rankwise": False, "staged": False, "single_copy": False, "registered": False}
    assert found == {
        ("all_reduce", 64): {**everywhere, "inline": True, "flat": False},
        ("all_reduce", 40 << 10): {**everywhere, "flat": False, "staged": True},
        ("scatter", 64): {**everywhere, "inline": True},
        ("scatter", 40 << 10): {**everywhere, "staged": True},
    }
    assert done.stdout.count("*") >= 4
    assert (tmp_path / "r.png").stat().st_size > 0


@pytest.mark.slow
def test_gloo_runs_beside_it() -> None:
    pytest.importorskip("torch")
    done = bench("all_reduce", "scatter", "--sizes", "64", "--vs", "gloo", "--check", *QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gloo: no wrong byte at 2 points" in done.stdout


def test_the_ranks_may_be_threads() -> None:
    done = bench("barrier", "all_gather", "--sizes", "8,40K", "--backend", "threads", "--check", *QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    assert "backend threads" in done.stdout
    assert "rankwise: no wrong byte at 3 points" in done.stdout


# ---- peers ----

# An mpi4py that is rankwise underneath. What it does wrong is said by the environment.
FAKE_MPI4PY = """\
import os, types
import rankwise

FAULT = os.environ.get("FAULT")

class Comm:
    def __init__(self):
        self.group = rankwise.init()
    def Get_rank(self):
        return self.group.rank
    def Get_size(self):
        return self.group.world_size
    def Barrier(self):
        self.group.barrier()
    def Allreduce(self, given, x, op):
        self.group.all_reduce(x, op)
        if FAULT == "lies" and self.group.rank == 1:
            x.view("uint8")[3] ^= 1
        if FAULT == "dies" and self.group.rank == 1:
            os._exit(7)
        if FAULT == "raises":
            raise RuntimeError("no such luck")
    Bcast = Reduce = Allgather = Gather = Scatter = Reduce_scatter_block = Alltoall = Barrier  # not called

MPI = types.SimpleNamespace(
    COMM_WORLD=Comm(), IN_PLACE=None, SUM="sum", Get_library_version=lambda: "Fake MPI Version:  1.0, of nobody"
)
__version__ = "4"
"""


@pytest.fixture
def peer_env(tmp_path: Path) -> str:
    """A folder with an environment 'mpich' whose MPI is FAKE_MPI4PY."""
    home = tmp_path / "mpich"
    (home / "bin").mkdir(parents=True)
    (home / "mpi4py.py").write_text(FAKE_MPI4PY)
    scripts = {
        "python": f'PYTHONPATH="{home}" exec {sys.executable} "$@"',
        "mpiexec": f'[ "$1" = -n ] || exit 0; n=$2; shift 2; exec {sys.executable} -m rankwise run -n $n -- "$@"',
    }
    for name, line in scripts.items():
        (home / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (home / "bin" / name).chmod(0o755)
    return str(tmp_path)


def against_fake(peer_env: str, json_path: Path, fault: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    words = ("all_reduce", "barrier", "--sizes", "8,1K", "--check", "--vs", "mpich", "--peer-env", peer_env, *QUICK)
    done = bench(*words, "--json", str(json_path), FAULT=fault)
    return done, report_of(json_path)


def test_a_peer_is_measured_in_the_same_table(peer_env: str, tmp_path: Path) -> None:
    done, document = against_fake(peer_env, tmp_path / "r.json", "none")
    assert (done.returncode, done.stderr) == (0, "")
    assert "mpich: Fake MPI 1.0, mpi4py 4" in done.stdout
    assert "mpich: no wrong byte at 3 points" in done.stdout
    header, row = done.stdout.split("all_reduce, 2 ranks, float32 sum\n")[1].splitlines()[1:3]
    assert " ".join(header.split()) == "size median min p99 alg GB/s bus GB/s wrong | median ratio"
    assert len(row.split()) == len(header.replace(" GB/s", "").split())
    for ratios in document["ratios"]:
        assert ratios["mpich"] == ratios["best MPI"] > 0


def test_a_wrong_byte_is_found(peer_env: str, tmp_path: Path) -> None:
    done, document = against_fake(peer_env, tmp_path / "r.json", "lies")
    wrong = {(one["contender"], one["operation"], one["size"]): one["wrong_bytes"] for one in document["results"]}
    # One byte on one rank, before the timing and after it.
    assert {point: number for point, number in wrong.items() if number} == {
        ("mpich", "all_reduce", 8): 2,
        ("mpich", "all_reduce", 1024): 2,
    }
    assert "mpich: 4 wrong bytes at 3 points" in done.stdout
    assert "rankwise: no wrong byte at 3 points" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "why"),
    [("dies", "exited with status 7"), ("raises", "RuntimeError: no such luck")],
)
def test_a_failing_peer_is_skipped(peer_env: str, tmp_path: Path, fault: str, why: str) -> None:
    done, document = against_fake(peer_env, tmp_path / "r.json", fault)
    assert done.returncode == 0
    assert list(document["left_out"]) == ["mpich"]
    assert why in done.stderr
    assert done.stderr.count("mpich is left out: ") == 1
    assert {one["contender"] for one in document["results"]} == {"rankwise"}
    assert len(document["results"]) == 3


def test_a_missing_peer_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    done = bench("barrier", "--vs", "openmpi", "--peer-env", str(tmp_path), *QUICK)
    assert done.returncode == 0
    assert done.stderr == (
        f"openmpi is left out: not in {tmp_path}/openmpi: rankwise bench --vs openmpi --make-peers installs it there\n"
    )
    assert "barrier, 2 ranks" in done.stdout


def test_gloo_without_torch_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rankwise.tools.bench.peers.find_spec", lambda name: None)
    with pytest.raises(Missing, match="pip install torch"):
        find("gloo", tmp_path)


# ---- other measures ----


@pytest.mark.slow
def test_a_system_that_denies_pidfds() -> None:
    code = """
import errno, os, sys
def denied(pid):
    raise PermissionError(errno.EPERM, "Operation not permitted")
os.pidfd_open = denied
from rankwise.tools.cli import main
sys.exit(main(["bench", "all_reduce", "--sizes", "8", "--time", "0.01"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "all_reduce" in done.stdout


@pytest.mark.slow
def test_machine(tmp_path: Path) -> None:
    done = bench("machine", "--json", str(tmp_path / "r.json"))
    assert done.returncode == 0, done.stderr
    line, *rates = report_of(tmp_path / "r.json")["measures"]
    assert line["bytes"] == 64
    assert {row["bytes"] for row in rates} == {64 << 10, 1 << 20, 4 << 20, 64 << 20}
    assert all(row["rate"] == pytest.approx(row["bytes"] / row["time"] / 1e3) for row in rates)
    assert "reads what the other wrote last" in done.stdout


def test_memory_and_idle(tmp_path: Path) -> None:
    done = bench("memory", "idle", "-n", "2", "--json", str(tmp_path / "r.json"))
    assert (done.returncode, done.stderr) == (0, "")
    memory, idle = report_of(tmp_path / "r.json")["measures"]
    assert (memory["measure"], memory["contender"]) == ("memory", "rankwise")
    assert 0 < memory["added"] < memory["pss"] <= memory["rss"]
    assert (idle["measure"], idle["ranks"]) == ("idle", 2)
    assert 0 <= idle["ms"] < 500
    assert "idle: CPU time" in done.stdout


@pytest.mark.slow
def test_startup(tmp_path: Path) -> None:
    done = bench("startup", "--json", str(tmp_path / "r.json"))
    assert (done.returncode, done.stderr) == (0, "")
    rows = report_of(tmp_path / "r.json")["measures"]
    assert [row["program"] for row in rows] == ["true", "empty Python", "ranks meet"]
    assert all(row["ms"] > 1 for row in rows)


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = bench("all_reduce", "barrier", "--sizes", "8:1K", *QUICK, "--plot", str(tmp_path / "p.png"))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


# ---- ends ----


@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_ends_it_and_all_ranks(signum: int) -> None:
    command = [sys.executable, "-u", "-m", "rankwise", "bench", "all_reduce", "--time", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "all_reduce, 2 ranks" not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(0.3)
        start = time.monotonic()
        process.send_signal(signum)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + signum
        assert time.monotonic() - start < 40
        assert "Traceback" not in errors  # and tests/conftest.py sees that no rank is left


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["fly"], "'fly'"),
        (["all_reduce", "startup"], "startup"),
        (["-n", "0"], "'0'"),
        (["--sizes", "8:x"], "'x'"),
        (["--factor", "1"], "--factor"),
        (["--time", "0"], "--time"),
        (["--dtype", "float31"], "float31"),
        (["--op", "mode"], "mode"),
        (["--op", "bor"], "bor"),
        (["--op", "mean", "--dtype", "int8"], "mean"),
        (["--vs", "openmpi,nobody"], "'nobody'"),
        (["--json", "/nowhere/at/all.json"], "/nowhere/at"),
        (["startup", "--plot", "p.png"], "--plot"),
        (["idle", "--backend", "threads"], "--backend"),
        (["--fresh", "--native"], "--fresh"),
    ],
)
def test_bad_words_are_an_error_of_one_line(words: list[str], named: str) -> None:
    done = bench(*words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("rankwise bench: error: ")
    assert named in done.stderr


def test_an_unknown_backend_is_named() -> None:
    done = bench("barrier", "--backend", "pigeons")
    assert done.returncode == 1
    assert "pigeons" in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_has_the_formulas_and_examples() -> None:
    done = bench("--help")
    assert done.returncode == 0
    assert "2(n-1)/n" in done.stdout
    assert "rankwise bench -n 2" in done.stdout.split("examples:")[1]
    assert all(name in done.stdout for name in [*OPERATIONS, "startup", "memory", "idle", "machine"])
