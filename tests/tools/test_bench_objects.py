"""`rankwise bench --objects`: its points on every kind of rank, its table and its options."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpi_launchers
from bench_command import QUICK, bench, report_of
from rankwise.testing import run_ranks
from rankwise.tools.bench import objects, objects_rank
from rankwise.tools.bench.cases import Times
from rankwise.tools.bench.timing import Measurement


def few(n: int) -> list[str]:
    """The points of n ranks, but with 20 messages instead of thousands."""
    names = [name.split() for name in objects.points(objects.OPERATIONS, n)]
    return list(dict.fromkeys(f"{one} {'20' if one in objects.MANY_MESSAGES else what}" for one, what in names))


# ---- on the ranks ----


def seconds_of_every_point() -> dict[str, list[float]]:
    """Check and time each point on this rank."""
    library = objects_rank.rank.Arrays()
    found = {}
    for name in few(library.world_size):
        point = objects_rank.point(name, library)
        point.verify()
        found[name] = point.seconds(library, iterations=2, batches=3, warm=1, fresh=False)
    return found


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("backend", ["shm", "threads"])
def test_each_point_is_right_and_timed(backend: str, n: int) -> None:
    for found in run_ranks(n, lambda group: seconds_of_every_point(), backend=backend):
        assert list(found) == few(n)
        for name, seconds in found.items():
            assert len(seconds) == 3, name
            assert min(seconds) > 0, name


MPI_RANK = """
import json, runpy, sys
program, points = sys.argv[1], json.loads(sys.argv[2])
module = runpy.run_path(program)
library = module["rank"].Mpi()
for name in points:
    point = module["point"](name, library)
    point.verify()
    assert min(point.seconds(library, 2, 3, 1, False)) > 0, name
everyone = library.comm.gather(library.rank)
if everyone:
    print(everyone)
"""


@pytest.mark.parametrize("launcher", mpi_launchers.LAUNCHERS)
def test_each_point_is_right_and_timed_with_mpi4py(launcher: str) -> None:
    words = ("-c", MPI_RANK, str(objects.RANK_FILE), json.dumps(few(2)))
    done = mpi_launchers.run(mpi_launchers.programs(launcher), 2, *words, timeout=100)
    assert (done.returncode, done.stdout) == (0, "[0, 1]\n"), done.stderr


def test_what_is_not_as_expected_is_an_error() -> None:
    def nothing() -> None:
        return None

    right = objects_rank.content("1M", 0)
    wrong = {**right, "weights": right["weights"] + 1}
    objects_rank.ObjectPoint(lambda: dict(right), right, nothing).verify()
    with pytest.raises(RuntimeError, match=r"received .*, expected "):
        objects_rank.ObjectPoint(lambda: wrong, right, nothing).verify()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"b": 1}),
        ([1, 2], (1, 2)),
        ([1, 2], [1]),
        (np.arange(3), np.arange(3.0)),
        (np.arange(3), np.arange(4)),
        ([{"x": np.zeros(2)}], [{"x": np.ones(2)}]),
        (None, 0),
    ],
)
def test_different_objects_are_not_the_same(one: Any, other: Any) -> None:
    assert objects_rank.same(one, one)
    assert objects_rank.same(other, other)
    assert not objects_rank.same(one, other)


def test_the_objects_have_the_sizes_that_the_help_states() -> None:
    sizes = [len(pickle.dumps(objects_rank.content(name, 1), protocol=5)) for name in objects.OBJECTS]
    assert sizes[0] < 100
    assert sizes[1] == pytest.approx(10 << 10, rel=0.1)
    assert sizes[2] == pytest.approx(1 << 20, rel=0.01)


# ---- the table ----


def result(contender: str, operation: str, median: float) -> Measurement:
    return Measurement(contender, operation, 2, 0, 0, 10, Times(5, median, median, median), None)


def test_many_messages_are_between_two_ranks() -> None:
    two, four = objects.points(objects.OPERATIONS, 2), objects.points(objects.OPERATIONS, 4)
    assert {name.split()[0] for name in two.keys() - four.keys()} == set(objects.MANY_MESSAGES)
    assert two["posted 30000"].per_call == 30000
    assert two["beside_pending 10000"].per_call == 2
    assert four["object_round_trip dict"].per_call == 1


def test_means_are_geometric_and_by_kind() -> None:
    def point(operation: str, *medians: float) -> list[Measurement]:
        names = ("rankwise", "openmpi", "mpich")
        return [result(name, operation, median) for name, median in zip(names, medians, strict=False)]

    points = [
        point("object_round_trip dict", 8.0, 1.0, 2.0),
        point("gather_object dict", 1.0, 2.0, 4.0),
        point("array_round_trip 1M", 3.0, 4.0, 1.0),
        point("unexpected 1000", 5.0, 1.0, 2.0),
        point("gather_object 1M", 1.0),
    ]
    assert objects.means(points) == pytest.approx({"dict": 2.0, "unknown length": 3.0, "many messages": 5.0})


@pytest.mark.parametrize("others", [[], ["openmpi", "mpich"]])
def test_the_table_fits_its_width(others: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    table = objects.ObjectTable(others, check=False)
    lines = table.head().splitlines()
    for operation, contents in objects.OPERATIONS.items():
        for what in contents:
            lines.append(table.row([result(name, f"{operation} {what}", 0.4321) for name in ["rankwise", *others]]))
    lines.append(table.row([result("rankwise", "posted 1000", 1e-6), *(result(name, "", 1e-9) for name in others)]))
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= 80


# ---- the command ----


def test_rankwise_alone(tmp_path: Path) -> None:
    done = bench("--objects", "broadcast_object", "beside_pending", "-n", "2,3", *QUICK, "--json", str(tmp_path / "r"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "objects, 2 ranks" in done.stdout
    assert "geometric mean" not in done.stdout
    results = report_of(tmp_path / "r")["results"]
    objects_only = [(3, f"broadcast_object {what}") for what in objects.OBJECTS]
    expected = [(2, name) for _, name in objects_only] + [(2, "beside_pending 10000"), *objects_only]
    assert [(one["ranks"], one["operation"]) for one in results] == expected
    assert all(0 < one["min_us"] <= one["median_us"] <= one["p99_us"] for one in results)


@pytest.mark.parametrize("launcher", [pytest.param("openmpi", marks=pytest.mark.slow), "mpich"])
def test_a_peer_is_measured_in_the_same_table(launcher: str, tmp_path: Path) -> None:
    folder = mpi_launchers.programs(launcher).parents[1]
    words = ("--objects", "scatter_object", "array_round_trip", "--vs", launcher, "--peer-env", str(folder))
    done = bench(*words, *QUICK, "--json", str(tmp_path / "r"))
    assert (done.returncode, done.stderr) == (0, "")
    document = report_of(tmp_path / "r")
    assert [one["contender"] for one in document["results"]] == ["rankwise", launcher] * 6
    assert all(one[launcher] == one["best MPI"] > 0 for one in document["ratios"])
    (means,) = document["means"]
    assert set(means) == {"ranks", "dict", "10K", "1M", "unknown length"}
    assert "geometric mean of the ratios to the best MPI: dict " in done.stdout


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["all_reduce"], "'all_reduce'"),
        (["broadcast_objects"], "broadcast_object"),
        (["--sizes", "8"], "--sizes"),
        (["--check"], "--check"),
        (["--native"], "--native"),
        (["--algorithms"], "--algorithms"),
        (["--vs", "gloo"], "'gloo'"),
    ],
)
def test_bad_words_are_an_error_of_one_line(words: list[str], named: str) -> None:
    done = bench("--objects", *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("rankwise bench: error: ")
    assert named in done.stderr
