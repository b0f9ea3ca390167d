"""`rankwise tune` as a command: the file that it writes, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from in_process import rankwise
from rankwise import _native
from rankwise.system.tuning_file import cpu_name, load, path_of
from rankwise.tools.tune.command import blocks, rules

QUICK = ("--time", "0.001")


def tune(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rankwise", "tune", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **environment})


def content(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_it_writes_this_users_file_and_keeps_its_other_thresholds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = Path(path_of(cpu_name()))
    path.parent.mkdir()
    other = {"ranks": 9, "date": "2026-01-01", "thresholds": {"flat_reduce": 77}}
    path.write_text(json.dumps({"cpu": cpu_name(), "shared_cores": other, "own_cores": other}))
    done = tune("scatter", "-n", "2", *QUICK, RANKWISE_OVERSUBSCRIBED="0")
    assert (done.returncode, done.stderr) == (0, "")
    found = content(path)
    assert found["shared_cores"] == other
    assert found["own_cores"]["ranks"] == 2
    assert found["own_cores"]["date"] == time.strftime("%Y-%m-%d")
    thresholds = found["own_cores"]["thresholds"]
    assert thresholds.keys() == {"flat_reduce", "single_copy_scatter"}
    assert thresholds["flat_reduce"] == 77
    (rule,) = rules(["scatter"], 2)
    default = _native.thresholds()["own_cores"]["single_copy_scatter"]
    assert thresholds["single_copy_scatter"] in (*blocks(rule), default, "never")
    assert load(str(path), _native.thresholds()).cpu == cpu_name()
    for words in ("scatter, 2 ranks; us\n", "scatter, 2 ranks, fresh arrays; us\n", "thresholds, own_cores:\n"):
        assert words in done.stdout
    assert f"written to {path}; rankwise.init uses it" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_threshold(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    command = [sys.executable, "-m", "rankwise", "tune", "-n", "3", "--output", str(path), *QUICK]
    # The missing tuning file is no error, since it is not used while measuring.
    environment = {**os.environ, "RANKWISE_OVERSUBSCRIBED": "1", "RANKWISE_TUNING": "/nowhere"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    ((cores, one),) = load(str(path), _native.thresholds()).measured.items()
    assert cores in ("shared_cores", "yielded_cores")
    names = {name for name in _native.thresholds()[cores] if not name.startswith("registered_")}
    assert names == set(one.thresholds)
    assert f"RANKWISE_TUNING={path} uses it" in done.stdout


@pytest.mark.slow
def test_ctrl_c_ends_it_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    command = [sys.executable, "-m", "rankwise", "tune", "-n", "2", "--output", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "machine:" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == (130, "rankwise tune: stopped; no file was written\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-n", "1"), "argument -n/--ranks: expected a number of ranks of at least 2, got '1'"),
        ((), "the following arguments are required: -n/--ranks"),
        (("barrier", "-n", "2"), "unknown operation 'barrier': expected some of all_reduce, broadcast"),
        (
            ("-n", "2", "--time", "0"),
            "argument --time: expected a number of seconds above 0 and at most 10**9, got '0'",
        ),
    ],
)
def test_bad_arguments(words: tuple[str, ...], expected: str, capfd: pytest.CaptureFixture[str]) -> None:
    done = rankwise(capfd, "tune", *words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"rankwise tune: error: {expected}")


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    done = rankwise(capfd, "tune", "-n", "2", "--output", str(file / "folder" / "t.json"))
    assert (done.returncode, done.stdout) == (1, "")
    words = f"{file}/folder/t.json cannot be written: expected {file} to be a folder that you can write to"
    assert done.stderr == f"rankwise tune: error: {words}\n"


def test_a_file_of_another_cpu_is_left_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"cpu": "A"}')
    done = rankwise(capfd, "tune", "-n", "2", "--output", str(path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"rankwise tune: error: {path} is for another CPU, A; name another file with --output\n"
    assert path.read_text() == '{"cpu": "A"}'
