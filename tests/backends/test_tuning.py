"""The table of algorithms: its choices, its refusals, and the results of every algorithm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rankwise import _native
from rankwise.backends import tuning
from rankwise.contract.errors import MismatchError, UnsupportedError
from rankwise.group.group import Group
from rankwise.testing import run_ranks

sys.path.insert(0, str(Path(__file__).parent))
from forced_algorithms import check_all, expected
from hosts_in_threads import PLACEMENTS, opener


def test_the_choice_on_both_sides_of_each_threshold() -> None:
    for backend, edge in (("gloo", 1 << 17), ("mpi", 1 << 14), ("hierarchical", 1 << 14)):
        assert [tuning.all_reduce(backend, 4, edge // 4 + more) for more in (0, 1)] == ["all_gather", "reduce_scatter"]
        assert [tuning.reduce(backend, 8, edge // 8 + more) for more in (0, 1)] == ["gather", "reduce_scatter"]
        assert tuning.reduce(backend, 2, 1 << 30) == "gather"
    many = [tuning.all_reduce("mpi", 8, (1 << 18) + more) for more in (0, 1)]
    assert many == ["recursive_doubling", "reduce_scatter"]
    assert [tuning.all_reduce("mpi", n, 8) for n in (7, 8)] == ["all_gather", "recursive_doubling"]
    for rings, large in ((True, "ring"), (False, "reduce_scatter")):
        sizes = [(1 << 15) + more for more in (0, 1)] + [(1 << 20) + more for more in (0, 1)]
        chosen = [tuning.gloo_all_reduce(4, size, rings) for size in sizes]
        assert chosen == ["all_gather", "reduce_scatter", "reduce_scatter", large]
    assert [tuning.gloo_broadcast(4, (1 << 15) + more) for more in (0, 1)] == ["binomial", "scatter_all_gather"]
    assert [tuning.gloo_broadcast(17, (17 << 16) - more) for more in (1, 0)] == ["binomial", "scatter_all_gather"]
    assert tuning.gloo_broadcast(2, 1 << 30) == "binomial"
    assert [tuning.gloo_all_gather(4, (1 << 20) + more) for more in (0, 1)] == ["pairwise", "ring"]
    assert [tuning.lanes((16 << 10) + more) for more in (0, 1)] == ["one_lane", "all_lanes"]
    assert [tuning.all_to_all_of_hosts(8, 4, (1 << 10) + more) for more in (0, 1)] == ["one_lane", "direct"]
    assert [tuning.all_to_all_of_hosts(hosts, 4, 8) for hosts in (7, 8)] == ["direct", "one_lane"]
    assert [tuning.pipeline_step(lanes, 2) for lanes in (1, 8, 9)] == [1 << 20, 1 << 20, 9 << 17]
    assert [tuning.envelope(backend, 2) for backend in ("hierarchical", "mpi", "nccl")] == [1016, 248, -1]
    assert [tuning.envelope("hierarchical", n) for n in (17, 64, 65, 1024, 1 << 20)] == [1016, 1016, 1000, 56, 24]
    assert set(tuning.inline("hierarchical", 17).values()) == {1016}


@pytest.mark.parametrize("n", [*range(2, 17), 64, 1000])
def test_envelopes_of_gloo(n: int) -> None:
    """A rank receives a MiB, and a whole copy goes to every other rank only if that takes few more bytes."""
    most = tuning.envelope("gloo", n)
    assert (1 << 20) - 16 * n < n * most <= 1 << 20
    holds = tuning.inline("gloo", n)
    assert holds["all_gather"] == holds["gather"] == most
    assert holds["scatter"] == holds["reduce_scatter"] == holds["all_to_all"] == n * most
    assert holds["all_reduce"] == holds["broadcast"] == holds["reduce"] == n * most
    copies, divided = (n - 1) * tuning.whole(n), 2 * (n - 1) / n * tuning.whole(n)
    assert copies - divided <= 1 << 17
    assert tuning.whole(n) == most or (n - 1) - 2 * (n - 1) / n > (1 << 17) - (copies - divided)


@pytest.mark.parametrize(
    ("backend", "wanted", "words"),
    [
        ("gloo", {"allreduce": "ring"}, r"operation 'allreduce' given to gloo, expected one of all_reduce, reduce"),
        ("gloo", {"all_reduce": "mpi"}, r"'mpi' given for all_reduce of gloo, expected one of inline, .*, ring"),
        ("nccl", {"all_reduce": "ring"}, r"given to nccl, expected none"),
    ],
)
def test_unknown_names(backend: str, wanted: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=f"RANKWISE_ALGORITHM: .*{words}"):
        tuning.check(backend, wanted)


@pytest.mark.slow  # tests/backends/composed runs these algorithms too, without their sockets
@pytest.mark.timeout(300)
def test_every_algorithm_of_gloo() -> None:
    for ran in run_ranks(check_all, 3, backend="gloo", timeout=240):
        assert ran.keys() == expected("gloo")


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["2x2", "one has one"])
def test_every_algorithm_of_hierarchical(placement: str) -> None:
    hosts = PLACEMENTS[placement]
    for ran in run_ranks(check_all, len(hosts), backend=opener(hosts), timeout=100):
        assert ran.keys() == expected("hierarchical")


def test_a_forced_algorithm_that_cannot_run_names_its_needs() -> None:
    def body(group: Group) -> list[str]:
        said = []
        calls = {"ring": np.ones(10, np.float16), "inline": np.ones(200_000)}
        for algorithm, x in calls.items():
            group.comm.force({"all_reduce": algorithm})  # type: ignore[attr-defined]
            with pytest.raises(UnsupportedError) as caught:
                group.all_reduce(x)
            said.append(str(caught.value))
        assert group.all_reduce(np.ones(3)).tolist() == [2.0] * 3  # the group goes on
        return said

    words = [
        "RANKWISE_ALGORITHM=all_reduce=ring is not supported by the gloo backend: gloo does not reduce this dtype and "
        "op as the contract requires",
        "RANKWISE_ALGORITHM=all_reduce=inline is not supported by the gloo backend: it takes at most 1048576 bytes, "
        "and this call has 1600000",
    ]
    assert run_ranks(body, 2, backend="gloo") == [words, words]


def test_an_all_to_all_in_one_lane_needs_even_hosts() -> None:
    def body(group: Group) -> str:
        group.comm.force({"all_to_all": "one_lane"})  # type: ignore[attr-defined]
        with pytest.raises(UnsupportedError) as caught:
            group.all_to_all(np.ones(3))
        assert group.all_reduce(1) == 3  # the group goes on
        return str(caught.value)

    why = "it needs equally many ranks on every host"
    text = f"RANKWISE_ALGORITHM=all_to_all=one_lane is not supported by the hierarchical backend: {why}"
    assert run_ranks(body, 3, backend=opener(PLACEMENTS["one has one"])) == [text] * 3


@pytest.mark.parametrize("backend", ["gloo", "hierarchical"])
def test_ranks_that_force_different_algorithms_do_not_begin(backend: str) -> None:
    def body(group: Group) -> str:
        group.comm.force({"all_reduce": "inline"} if group.rank == 1 else {})  # type: ignore[attr-defined]
        with pytest.raises(MismatchError) as caught:
            group.all_reduce(np.ones(3, np.float32))
        return str(caught.value)

    hosts = PLACEMENTS["one has one"]
    plain = "all_reduce(count=3, dtype=float32, op=sum)"
    forced = "all_reduce(count=3, dtype=float32, op=sum, algorithm=inline)   <-- other algorithm"
    for text in run_ranks(body, 3, backend=backend if backend == "gloo" else opener(hosts)):
        assert text.splitlines()[1:] == [f"  rank 0: {plain}", f"  rank 1: {forced}", f"  rank 2: {plain}"]


def test_a_group_of_one_rank_forces_nothing() -> None:
    def body(group: Group) -> None:
        group.comm.force({"all_reduce": "inline"})  # type: ignore[attr-defined]
        assert group.all_reduce(np.ones(10_000)).tolist() == [1.0] * 10_000
        with pytest.raises(ValueError, match="'tree' given for all_reduce of gloo"):
            group.comm.force({"all_reduce": "tree"})  # type: ignore[attr-defined]

    run_ranks(body, 1, backend="gloo")


def test_groups_made_of_one_force_the_same_algorithms() -> None:
    def body(group: Group) -> None:
        group.comm.force({"all_reduce": "one_lane"})  # type: ignore[attr-defined]
        part = group.dup()
        assert part.comm._forced == {"all_reduce": "one_lane"}  # type: ignore[attr-defined]
        if group.rank != 3:
            smaller = part.shrink(exclude=[3])
            assert smaller.comm._forced == {"all_reduce": "one_lane"}  # type: ignore[attr-defined]

    run_ranks(body, 4, backend=opener(PLACEMENTS["2x2"]))


@pytest.mark.parametrize(
    ("backend", "algorithm", "line"),
    [
        ("gloo", "all_reduce=ring,all_gather=pairwise,", "2 {'all_reduce': 'ring', 'all_gather': 'pairwise'}"),
        pytest.param(
            "gloo",
            "all_reduce=tree",
            "ValueError: RANKWISE_ALGORITHM: the algorithm 'tree' given for all_reduce of gloo",
            marks=pytest.mark.slow,  # test_unknown_names has the check itself
        ),
        # Ranks of one host are a group of shm.
        pytest.param("hierarchical", "all_reduce=staged", "2 ['staged']", marks=pytest.mark.slow),
        pytest.param(
            "hierarchical",
            "all_reduce=one_lane",
            "ValueError: RANKWISE_ALGORITHM: the algorithm 'one_lane' given for all_reduce of shm",
            marks=pytest.mark.slow,  # two processes import torch
        ),
    ],
)
def test_the_variable(tmp_path: Path, backend: str, algorithm: str, line: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import os, sys, rankwise as rw
try:
    group = rw.init(sys.argv[1], timeout=60)
    comm = getattr(group.comm, "_inner", group.comm)  # gloo's is traced
    forced = comm._forced if comm.backend == "gloo" else comm.shortcuts.algorithms("all_reduce", 8)
    text = f"{group.all_reduce(1)} {forced}"
except ValueError as error:
    text = f"ValueError: {error}"
os.write(1, f"{text}\\n".encode())
"""
    )
    command = [sys.executable, "-m", "rankwise", "run", "-n", "2", str(program), backend]
    environment = {**os.environ, "RANKWISE_ALGORITHM": algorithm}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    lines = ran.stdout.splitlines()
    assert len(lines) == 2, ran.stderr
    assert all(one.startswith(line) for one in lines), lines


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "tuning.md"


def rows(text: str, columns: int) -> list[list[str]]:
    """The cells of each row of the tables with so many columns, heads left out."""
    cells = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in cells if len(row) == columns]


def test_the_page_lists_every_algorithm() -> None:
    listed: dict[str, dict[str, tuple[str, ...]]] = {}
    for backends, operations, algorithms in rows(PAGE.read_text(), 3):
        for backend in re.findall(r"`(\w+)`", backends):
            for operation in operations.split(", "):
                listed.setdefault(backend, {})[operation] = tuple(re.findall(r"`(\w+)`", algorithms))
    native = {operation: tuple(names) for operation, names in _native.algorithms().items()}
    composed = {backend: table for backend, table in tuning.ALGORITHMS.items() if table}
    assert listed == {"shm": native, "threads": native, **composed}


@pytest.mark.parametrize("title", ["shm and threads", "gloo and mpi", "hierarchical"])
def test_the_page_says_what_every_algorithm_does(title: str) -> None:
    backends = title.split(" and ")
    tables = [tuning.ALGORITHMS.get(backend) or _native.algorithms() for backend in backends]
    section = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    described = [re.findall(r"`(\w+)`", first) for first, _ in rows(section, 2)]
    assert {name for names in described for name in names} == {
        name for table in tables for names in table.values() for name in names
    }
