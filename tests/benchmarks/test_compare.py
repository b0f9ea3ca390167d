"""benchmarks/compare.py, on the installed rankwise in place of two revisions, so that nothing is built."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import leftovers

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "compare.py"
Start = Callable[..., "subprocess.Popen[str]"]
QUICK = ("--quick", "--operations", "barrier,all_reduce")


pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git; apt install git")


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the names of its annotations
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_cell_is_measured_on_both_sides_and_nothing_is_left(start: Start, folder: Path, tmp_path: Path) -> None:
    document = tmp_path / "cells.json"
    words = (sys.executable, sys.executable, *QUICK, "--times", "2", "--json", str(document))
    process = start("compare.py", *words)
    out, error = process.communicate(timeout=100)
    assert process.returncode in (0, 1), error  # which of the two is noise
    assert "geometric mean of new / old over 5 cells" in out
    rows = json.loads(document.read_text())
    cells = {(row["operation"], row["size"], row["fresh"]) for row in rows}
    reused = {("barrier", 0, False), ("all_reduce", 8, False), ("all_reduce", 64 << 10, False)}
    assert cells == reused | {("all_reduce", 8, True), ("all_reduce", 64 << 10, True)}
    assert len(rows) == 2 * len(cells)
    assert all(row["old_us"] > 0 and row["new_us"] > 0 for row in rows)
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_leaves_nothing_behind(start: Start, folder: Path, signum: int, status: int) -> None:
    process = start("compare.py", sys.executable, sys.executable, "--operations", "all_reduce", "--time", "60")
    before = set(leftovers.started_processes()) - {process.pid}
    deadline = time.monotonic() + 60
    while len(set(leftovers.started_processes()) - before) < 7:  # itself, two launchers, two ranks of each
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signum)
    try:
        _, error = process.communicate(timeout=100)
    finally:
        if process.poll() is None:  # it ends its ranks
            process.terminate()
    assert process.returncode == status, error
    assert "Traceback" not in error
    assert list(folder.iterdir()) == []
    assert set(leftovers.started_processes()) <= before


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("no-such-revision",), "no-such-revision"),
        (("HEAD", "--sizes", "big"), "expected a size like 8"),
        (("HEAD", "--ranks", "1"), "at least 2"),
        (("HEAD", "--operations", "all_reduce,sort"), "got sort"),
    ],
)
def test_a_bad_argument_is_named(start: Start, folder: Path, words: tuple[str, ...], fault: str) -> None:
    process = start("compare.py", *words)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2
    assert fault in error
    assert "Traceback" not in error
    assert list(folder.iterdir()) == []


def test_a_revision_is_taken_out_of_git(compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "repository"
    monkeypatch.setattr(compare, "ROOT", repository)
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    (repository / ".gitignore").write_text("build/\n")
    (repository / "kept.txt").write_text("old")
    (repository / "gone.txt").write_text("old")
    who = ["-c", "user.name=tester", "-c", "user.email=tester@localhost"]
    for words in (["add", "."], [*who, "commit", "--quiet", "-m", "first"], ["tag", "first"]):
        subprocess.run(["git", "-C", str(repository), *words], check=True)
    (repository / "kept.txt").write_text("new")
    (repository / "gone.txt").unlink()
    (repository / "added").mkdir()
    (repository / "added" / "file.txt").write_text("new")
    (repository / "build").mkdir()
    (repository / "build" / "output").write_text("ignored")

    def files(folder: Path) -> dict[str, str]:
        return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.txt")}

    assert compare.extract("first", tmp_path / "old").startswith("first (")
    assert files(tmp_path / "old") == {"kept.txt": "old", "gone.txt": "old"}
    assert compare.extract(compare.WORKING_TREE, tmp_path / "new") == compare.WORKING_TREE
    assert files(tmp_path / "new") == {"kept.txt": "new", "added/file.txt": "new"}
    assert not (tmp_path / "new" / "build").exists()


def test_the_report_names_slower_cells(compare: ModuleType) -> None:
    same, slower, once = (compare.Cell(2, "all_reduce", size, False) for size in (8, 1024, 1 << 20))

    def run(*new: float) -> dict[object, dict[str, float]]:
        return {cell: {"old": 1e-6, "new": value * 1e-6} for cell, value in zip((same, slower, once), new, strict=True)}

    text, failed = compare.report([run(1.0, 1.2, 1.2), run(1.0, 1.3, 0.5)])
    assert failed
    assert "over 3 cells: 0.989 (by run 1.129, 0.866)" in text
    assert "cells above 1.10: 2" in text
    [first, second] = text.splitlines()[-2:]
    assert "1K" in first
    assert first.endswith("1.20  1.30  in every run")
    assert "1M" in second
    assert second.endswith("1.20  0.50")
    assert not compare.report([run(1.0, 1.2, 0.8), run(1.0, 1.0, 1.0)])[1]
