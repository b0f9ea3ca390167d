"""Binding ranks to cores and NUMA nodes: on pretended machines, and on this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from in_process import rankwise
from rankwise._native import usable_cores
from rankwise.launch.binding import places, remark
from rankwise.system.topology import parse_cpus


def machine(folder: Path, nodes: list[str], siblings: list[str]) -> str:
    """The kernel's description of a machine: the CPUs of each node, and those of each core."""
    for number, cpus in enumerate(nodes):
        (folder / "node" / f"node{number}").mkdir(parents=True)
        (folder / "node" / f"node{number}" / "cpulist").write_text(f"{cpus}\n")
    for cpus in siblings:
        for cpu in parse_cpus(cpus):
            (folder / "cpu" / f"cpu{cpu}" / "topology").mkdir(parents=True)
            (folder / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{cpus}\n")
    return str(folder)


def test_two_nodes_with_two_threads_per_core(tmp_path: Path) -> None:
    system = machine(tmp_path, ["0-1,4-5", "2-3,6-7"], ["0,4", "1,5", "2,6", "3,7"])
    found = [sorted(cpus) for cpus in places("core", 4, system, range(8))]
    assert found == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [sorted(cpus) for cpus in places("core", 2, system, range(8))] == [[0, 4], [2, 6]]  # one for each node
    assert [min(cpus) for cpus in places("core", 6, system, range(8))] == [0, 0, 1, 2, 2, 3]
    assert [sorted(cpus) for cpus in places("numa", 2, system, range(8))] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [min(cpus) for cpus in places("numa", 3, system, range(8))] == [0, 0, 2]
    assert [sorted(cpus) for cpus in places("core", 2, system, [1, 6])] == [[1], [6]]  # what the launcher may use
    assert [sorted(cpus) for cpus in places("numa", 2, system, [1, 0, 4])] == [[0, 1, 4]] * 2


def test_last_level_caches_on_one_node_and_on_two(tmp_path: Path) -> None:
    one, two = (
        machine(tmp_path / name, nodes, [str(cpu) for cpu in range(8)])
        for name, nodes in (("one", ["0-7"]), ("two", ["0-1,4-5", "2-3,6-7"]))
    )
    assert places("cache", 2, one, range(8)) == [set(range(8))] * 2  # the kernel does not name the caches
    assert [min(cpus) for cpus in places("cache", 2, two, range(8))] == [0, 2]
    for system in one, two:
        for cpu in range(8):
            index = Path(system, "cpu", f"cpu{cpu}", "cache", "index3")
            index.mkdir(parents=True)
            (index / "level").write_text("3\n")
            (index / "shared_cpu_list").write_text("0-3\n" if cpu < 4 else "4-7\n")
    assert [sorted(cpus) for cpus in places("cache", 2, one, range(8))] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [sorted(cpus) for cpus in places("cache", 4, two, range(8))] == [[0, 1], [4, 5], [2, 3], [6, 7]]
    assert [sorted(cpus) for cpus in places("cache", 2, two, [0, 5])] == [[0], [5]]  # what the launcher may use


def test_cores_are_taken_in_the_order_of_the_nodes(tmp_path: Path) -> None:
    system = machine(tmp_path, ["0,2", "1,3"], ["0", "1", "2", "3"])
    assert [sorted(cpus) for cpus in places("core", 4, system, range(4))] == [[0], [2], [1], [3]]


def test_a_kernel_that_says_nothing(tmp_path: Path) -> None:
    assert places("core", 2, str(tmp_path), [3, 5]) == [{3}, {5}]
    assert places("numa", 2, str(tmp_path), [3, 5]) == [{3, 5}] * 2


def test_remarks() -> None:
    one, other = frozenset([0]), frozenset([1])
    assert remark("core", [one, other]) == ""
    assert remark("core", [one, one, other]) == "--bind core: 3 ranks share 2 cores"
    assert remark("core", [one, one]) == "--bind core: 2 ranks share 1 core"
    assert remark("numa", [one, one]) == "--bind numa: there is one NUMA node, so every rank may use all CPUs"
    none = "--bind cache: the kernel names one last-level cache at most, so every rank may use all CPUs"
    assert remark("cache", [one, one]) == none
    assert remark("numa", [one, one, other]) == remark("numa", [one]) == ""


PROGRAM = """
import json, os, rankwise as rw
group = rw.init()
facts = [group.rank, sorted(os.sched_getaffinity(0)), group.comm.shortcuts.thresholds[0]]
os.write(1, (json.dumps(facts) + "\\n").encode())
"""


def run(*words: str) -> tuple[list[tuple[list[int], str]], str]:
    """The CPUs and the conditions of each rank, and what the launcher printed about them."""
    command = [sys.executable, "-m", "rankwise", "run", *words, "python", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    ranks = sorted(json.loads(line) for line in done.stdout.splitlines())
    return [(cpus, cores) for _, cpus, cores in ranks], done.stderr


@pytest.mark.skipif(usable_cores() < 2, reason="two ranks with cores of their own need two cores")
def test_bound_ranks_have_cores_of_their_own() -> None:
    for words in ("--bind", "core"), ("--bind_to=core",):
        ((first, how), (second, also)), errors = run("-n", "2", *words)
        assert errors == ""
        assert (how, also) == ("own_cores", "own_cores")
        if len(set(places("core", 2))) == 2:
            assert not set(first) & set(second)
        assert [set(first), set(second)] == places("core", 2)
    assert set(first) | set(second) <= os.sched_getaffinity(0)


def test_more_ranks_than_cores() -> None:
    cores = len(set(places("core", 1000)))
    ranks, errors = run("-n", str(cores + 1), "--bind", "core")
    assert [set(cpus) for cpus, _ in ranks] == places("core", cores + 1)
    assert errors.startswith(f"rankwise: --bind core: {cores + 1} ranks share {cores} core")


def test_torchruns_word_and_none() -> None:
    ranks, _ = run("-n", "1", "--numa-binding", "node")
    assert [set(cpus) for cpus, _ in ranks] == places("numa", 1)
    ranks, errors = run("-n", "1", "--bind", "none")
    assert (ranks[0][0], errors) == (sorted(os.sched_getaffinity(0)), "")


def test_an_unknown_place(capfd: pytest.CaptureFixture[str]) -> None:
    done = rankwise(capfd, "run", "-n", "1", "--bind", "socket", "true")
    assert done.returncode == 2
    assert "expected core, cache, numa or none, got 'socket'" in done.stderr


def test_openmp_threads_are_the_cpus_of_a_rank() -> None:
    program = 'import os; print(len(os.sched_getaffinity(0)) == int(os.environ["OMP_NUM_THREADS"]))'
    command = [sys.executable, "-m", "rankwise", "run", "-n", "1", "--bind", "core", "python", "-c", program]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.stdout == "True\n", done.stderr
