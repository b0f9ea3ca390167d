"""benchmarks/compare.py: what it takes out of git, and what it reports."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "compare.py"


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
def test_every_cell_is_measured(compare: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """On the installed rankwise in place of both revisions, so that nothing is built."""
    words = [sys.executable, sys.executable, "-n", "2", "--operations", "barrier,all_reduce", "--sizes", "8,64K"]
    assert compare.main([*words, "--time", "0.01", "--runs", "2"]) in (0, 1)  # which of the two is noise
    assert "geometric mean of new / old over 5 cells" in capsys.readouterr().out


def test_a_revision_is_taken_out_of_git(compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "repository"
    monkeypatch.setattr(compare, "ROOT", repository)
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    (repository / ".gitignore").write_text("build/\n")
    (repository / "kept.txt").write_text("old")
    who = ["-c", "user.name=tester", "-c", "user.email=tester@localhost"]
    for words in (["add", "."], [*who, "commit", "--quiet", "-m", "first"], ["tag", "first"]):
        subprocess.run(["git", "-C", str(repository), *words], check=True)
    (repository / "kept.txt").write_text("new")
    (repository / "added.txt").write_text("new")
    (repository / "build").mkdir()
    (repository / "build" / "output.txt").write_text("ignored")

    def files(folder: Path) -> dict[str, str]:
        return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.txt")}

    assert compare.extract("first", tmp_path / "old").startswith("first (")
    assert files(tmp_path / "old") == {"kept.txt": "old"}
    assert compare.extract(compare.WORKING_TREE, tmp_path / "new") == compare.WORKING_TREE
    assert files(tmp_path / "new") == {"kept.txt": "new", "added.txt": "new"}


def test_the_report_has_the_mean_the_worst_cell_and_the_slower_ones(compare: ModuleType) -> None:
    same, slower, once = (compare.Cell("all_reduce", at, 2, False) for at in ("8", "1K", "1M"))

    def run(*new: float) -> dict[object, dict[str, float]]:
        return {cell: {"old": 1.0, "new": value} for cell, value in zip((same, slower, once), new, strict=True)}

    text, failed = compare.report([run(1.0, 1.2, 1.2), run(1.0, 1.3, 0.5)])
    assert failed
    assert "over 3 cells: 0.989 (by run 1.129, 0.866)" in text
    [worst, head, cell] = text.splitlines()[-3:]
    assert worst.startswith("worst cell: all_reduce         1K")
    assert head == "cells above 1.10 in every run: 1"
    assert cell.split()[:2] == ["all_reduce", "1K"]
    assert cell.endswith("1.20  1.30")
    assert not compare.report([run(1.0, 1.2, 0.8), run(1.0, 1.0, 1.0)])[1]


@pytest.mark.parametrize("words", [["--sizes", "big"], ["--operations", "sort"], ["-n", "0"]])
def test_a_bad_argument_is_refused(compare: ModuleType, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        compare.main(["HEAD", *words])
    assert f"argument {words[0]}" in capsys.readouterr().err.replace("-n/--ranks", "-n")


def test_an_unknown_revision_is_named(compare: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["no-such-revision"]) == 2
    assert "no-such-revision" in capsys.readouterr().err
