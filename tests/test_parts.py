"""tests/parts.py runs the parts, and ends with their times, the failures, and what was not tested."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import parts
from parts import Part

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts for which nothing is made: the model lacks a program, the faults fail before their last command."""
    monkeypatch.setattr(parts, "prepare", lambda needed, env: True)
    monkeypatch.setattr(
        parts,
        "PARTS",
        {
            "native": Part("the core", ("echo one in {bin}", "echo two"), ()),
            "model": Part("the models", ("echo 'not tested: the model: there is no spin'",), ()),
            "faults": Part("faults", ("exit 2", "echo not reached"), ()),
            "python": Part("the Python tests", ("printf '<%s>' {args}",), (), args="by default"),
        },
    )
    monkeypatch.setattr(parts, "TEST", ("native", "model"))
    monkeypatch.setattr(parts, "BESIDE", ("native",))
    monkeypatch.setattr(parts, "ALL", ("native", "faults", "model"))


def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, list[str]]:
    """Exit status, what the parts printed, and the last lines."""
    monkeypatch.setattr(sys, "argv", ["parts.py", "--env", sys.prefix, *words])
    status = parts.main()
    printed, _, end = capfd.readouterr().out.rpartition(" minutes\n")
    return status, printed, end.splitlines()


@pytest.mark.usefixtures("few")
def test_the_summary_lists_times_and_skipped_tests(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, printed, end = run(monkeypatch, capfd, "test")
    assert status == 0
    assert f"== native: the core\none in {sys.prefix}/bin\ntwo\n" in printed
    assert [line.split()[0] for line in end[:-1]] == ["model", "native"]  # in the order in which they are shown
    assert all(line.endswith(" s  passed") for line in end[:-1])
    assert end[-1] == "not tested: the model: there is no spin"


@pytest.mark.usefixtures("few")
def test_a_failing_part_does_not_stop_the_others_and_is_named_last(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, printed, end = run(monkeypatch, capfd, "all")
    assert status == 1
    assert "not reached" not in printed
    assert "== model: the models" in printed
    assert end[-1] == "failed: faults; `make test-all PART=faults` runs one of them alone"


@pytest.mark.usefixtures("few")
def test_arguments_are_for_one_part(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert "<by><default>" in run(monkeypatch, capfd, "python")[1]
    assert "<-k><one or {two}>" in run(monkeypatch, capfd, "python", "-k", "one or {two}")[1]
    with pytest.raises(SystemExit):
        run(monkeypatch, capfd, "all", "-k", "one")


def test_what_several_parts_need_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = list[str]()
    monkeypatch.setattr(parts, "run", lambda command: commands.append(command) is None)
    assert parts.prepare([parts.PARTS[name] for name in ("python", "faults", "races")], "build/env")
    assert commands[1] == "make --no-print-directory build/env/.native"
    made = "make --no-print-directory --jobs 3 build/env/.test build/mpi/mpich/.made build/env/.native"
    assert commands.count(made) == 1
    built = [command.split(" -B ")[1].split()[0] for command in commands if " -B " in command]
    assert built == ["build/tsan"]


def test_every_command_can_be_formatted_and_is_right_for_the_shell() -> None:
    for part in parts.PARTS.values():
        for command in part.commands:
            text = command.format(bin="bin", args="-k name")
            assert subprocess.run(["sh", "-nc", text], capture_output=True, text=True).stderr == ""
    assert set(parts.ALL) < set(parts.PARTS)
    assert set(parts.TEST) < set(parts.ALL)


def test_in_ci_the_models_fail_without_spin(tmp_path: Path) -> None:
    command = ["/bin/sh", "-c", parts.model("the models", "")]
    for ci, status in (({}, 0), ({"CI": "true"}, 1)):
        done = subprocess.run(command, env={"PATH": str(tmp_path), **ci}, capture_output=True, text=True)
        assert done.stdout == "not tested: the models: there is no spin; apt install spin\n"
        assert done.returncode == status


def test_make_has_few_targets_and_its_help_lists_the_parts() -> None:
    targets = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(" ".join(targets).split()) <= 15
    listed = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    shown = re.findall(r"^  (?:make|PART=) ?(\S+)  ", listed.stdout, re.MULTILINE)
    assert shown == [*" ".join(targets).split(), *parts.PARTS]


def test_every_target_and_part_that_a_text_names_exists() -> None:
    search = ["git", "grep", "--no-index", "--exclude-standard", "-lE", r"make [a-z]|PART="]
    # In the source distribution too, even where it was unpacked in a folder that a repository around it ignores.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(ROOT.parent)}
    files = subprocess.run(search, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert len(files.stdout.split()) > 20
    for file in files.stdout.split():
        text = (ROOT / file).read_text(encoding="utf-8")
        assert set(re.findall(r"\bmake (test-[a-z-]+)", text)) <= {"test-all"}, file
        if file != "tests/test_parts.py":
            assert set(re.findall(r"PART=([a-z]+[a-z0-9-]*)", text)) <= set(parts.PARTS), file
