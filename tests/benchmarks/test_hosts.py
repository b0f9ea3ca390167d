"""benchmarks/hosts.py: every cell is measured, nothing is left behind, and bad arguments are named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import leftovers
from multihost.network import CannotMake, Network

LIMIT = 100.0  # seconds for a run
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def _hosts() -> None:
    if find_spec("torch") is None:
        pytest.skip("the hosts' ranks connect by gloo, which is in torch; pip install torch")
    try:
        Network(2).close()
    except CannotMake as why:
        pytest.skip(f"no hosts can be made here: {why}")


@pytest.mark.usefixtures("_hosts")
@pytest.mark.slow  # eight processes import torch
def test_every_library_is_measured_at_every_point(start: Start, folder: Path, tmp_path: Path) -> None:
    document = tmp_path / "cells.json"
    network = ("--hosts", "2", "--delay", "10", "--rate", "100")
    points = ("--operations", "barrier,all_reduce", "--sizes", "8,64K", "--libraries", "rankwise,gloo,mpich")
    little = ("--rounds", "1", "--time", "0.05", "--peer-env", str(tmp_path), "--json", str(document))
    process = start("hosts.py", *network, *points, *little)
    out, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error
    assert "mpich is left out: not in" in error
    assert "2 hosts, 1 rank each, 10 ms, 100 Mbit/s; plain TCP" in out
    assert "| operation | bytes | rankwise | gloo | ratio | least |" in out
    rows = [line.split(" | ")[:2] for line in out.splitlines() if line.startswith(("| barrier", "| all_reduce"))]
    assert rows == [["| barrier", "-"], ["| all_reduce", "8"], ["| all_reduce", "64K"]]
    cells = json.loads(document.read_text())["cells"]
    assert {(cell["library"], cell["operation"], cell["size"]) for cell in cells} == {
        (library, *point)
        for library in ("rankwise", "gloo")
        for point in (("barrier", 0), ("all_reduce", 8), ("all_reduce", 64 << 10))
    }
    assert all(second >= 0.01 for cell in cells for second in cell["seconds"])  # the delay
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("_hosts")
def test_interrupted_it_leaves_nothing_behind(start: Start, folder: Path) -> None:
    before = set(leftovers.started_processes())
    process = start("hosts.py", "--hosts", "2", "--libraries", "rankwise", "--rounds", "1000")
    assert process.stdout is not None
    try:
        while not process.stdout.readline().startswith("| operation"):
            assert process.poll() is None, process.communicate()
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert list(folder.iterdir()) == []
    end = time.monotonic() + 10
    while set(leftovers.started_processes()) > before and time.monotonic() < end:
        time.sleep(0.05)
    assert set(leftovers.started_processes()) <= before


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--hosts", "1"), "argument --hosts: expected numbers of at least 2, got '1'"),
        (("--delay=-1,5",), "argument --delay: expected numbers of milliseconds"),
        (("--rate", "0"), "argument --rate: expected a number above 0"),
        (("--libraries", "rankwise,nccl"), "argument --libraries: expected libraries as listed below"),
        (("--operations", "sort"), "argument --operations: expected some of barrier, all_reduce"),
        (("--sizes", "big"), "argument --sizes: 'big': expected a size like 8"),
        (("--json", "/nowhere/a.json"), "argument --json: there is no folder /nowhere"),
    ],
)
def test_a_bad_argument_is_named(start: Start, folder: Path, words: tuple[str, ...], fault: str) -> None:
    process = start("hosts.py", *words)
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 2
    assert fault in error
    assert "Traceback" not in error
