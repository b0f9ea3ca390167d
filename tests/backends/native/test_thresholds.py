"""Tuning files as groups use them: which thresholds hold, and what happens if a file is wrong or ranks differ."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rankwise as rw
from rankwise import _native
from rankwise.system.tuning_file import NEVER, cpu_name, path_of
from rankwise.testing import RanksFailed, run_ranks

PROGRAM = """
import json, os, sys, rankwise as rw
rank = int(os.environ["RANKWISE_RANK"])
try:
    group = rw.init(**json.loads(sys.argv[1 + rank % (len(sys.argv) - 1)]))
    cores, thresholds = group.comm.shortcuts.thresholds
    facts = [cores, thresholds["flat_reduce"], thresholds["registered_block"], group.all_reduce(1)]
    facts.append(group.split(0).comm.shortcuts.thresholds == (cores, thresholds))
except (ValueError, rw.RankwiseError) as error:
    facts = [type(error).__name__, str(error)]
os.write(1, (json.dumps(facts) + "\\n").encode())
"""


def written(path: Path, flat_reduce: int = 5000) -> Path:
    one = {"ranks": 2, "date": "2026-11-22", "thresholds": {"flat_reduce": flat_reduce, "registered_block": "never"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cpu": "A", "own_cores": one}))
    return path


def ranks(*arguments: dict[str, str], n: int = 2, **variables: str) -> list[list[object]]:
    """What each of n ranks found. arguments: of rw.init, for each rank, or the same for all."""
    words = [json.dumps(one) for one in arguments or [{}]]
    command = [sys.executable, "-m", "rankwise", "run", "-n", str(n), "python", "-c", PROGRAM, *words]
    environment = {**os.environ, "RANKWISE_OVERSUBSCRIBED": "0", **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


TUNED = ["own_cores", 5000, NEVER, 2, True]
DEFAULTS = ["own_cores", 16384, 24 << 10, 2, True]


def test_the_file_that_the_variable_or_the_program_names(tmp_path: Path) -> None:
    path = str(written(tmp_path / "t.json"))
    assert ranks(RANKWISE_TUNING=path) == [TUNED] * 2
    assert ranks({"tuning": path}, RANKWISE_TUNING="/nowhere") == [TUNED] * 2
    assert ranks({"tuning": "none"}, RANKWISE_TUNING=path) == [DEFAULTS] * 2
    shared = ranks(RANKWISE_TUNING=path, RANKWISE_OVERSUBSCRIBED="1")  # for which the file has nothing
    assert [one[1] for one in shared] == [16384] * 2
    assert {one[0] for one in shared} <= {"shared_cores", "yielded_cores"}


def test_this_users_file_for_this_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert ranks(RANKWISE_TUNING="") == [DEFAULTS] * 2
    path = written(Path(path_of(cpu_name())))
    assert ranks(RANKWISE_TUNING="") == [TUNED] * 2
    assert ranks(RANKWISE_TUNING="none") == [DEFAULTS] * 2
    path.write_text("{}")
    assert ranks(RANKWISE_TUNING="") == [["ValueError", f"tuning file {path}: top level: 'cpu' is missing"]] * 2


def test_ranks_with_different_thresholds_do_not_begin(tmp_path: Path) -> None:
    one, other = written(tmp_path / "1.json"), written(tmp_path / "2.json", 5001)
    found = ranks({"tuning": str(one)}, {"tuning": str(other)}, {"tuning": str(one)}, n=3)
    assert [name for name, _ in found] == ["ValueError"] * 3
    for _, text in found:
        assert "the thresholds of the tuning files (RANKWISE_TUNING) differ between rank " in str(text)
    same = written(tmp_path / "3.json")  # what counts is the content
    assert ranks({"tuning": str(one)}, {"tuning": str(same)}) == [TUNED] * 2


@pytest.mark.slow  # two processes import torch
def test_the_ranks_of_a_host_in_a_hierarchical_group(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json")
    found = ranks({"backend": "hierarchical", "tuning": str(path)})
    assert found == [TUNED] * 2


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_group_that_is_open_keeps_its_thresholds() -> None:
    code = """
import rankwise as rw
rw.init(tuning="none")
try:
    rw.init(tuning="none")
except ValueError as error:
    print(error)
"""
    assert python(code) == "tuning='none': the default group is already open; pass tuning to the first init"


@pytest.mark.parametrize("tuning", [3, b"t.json", ""])
def test_a_tuning_that_is_no_path(tuning: object) -> None:
    with pytest.raises(TypeError) as caught:
        rw.init(tuning=tuning)  # type: ignore[arg-type]
    assert str(caught.value) == f"tuning: {tuning!r} given, expected the path of a tuning file, or 'none'"


def test_a_file_that_cannot_be_used_is_refused_on_one_rank_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it cannot be read: No such file or directory"):
        rw.init(tuning=tmp_path / "t.json")


def test_the_error_for_a_file_that_the_variable_names_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = str(tmp_path / "t.json")
    monkeypatch.setenv("RANKWISE_TUNING", missing)
    text = f"environment variable RANKWISE_TUNING: tuning file {missing}: it cannot be read: No such file or directory"
    with pytest.raises(RanksFailed, match=re.escape(f"ValueError: {text}")):
        run_ranks(lambda group: None, 2)


def test_names_that_do_not_exist() -> None:
    with pytest.raises(
        ValueError, match="tuning: the threshold 'flat' given, expected one of flat_all_reduce, flat_re"
    ):
        _native.Segment.create(1).join(0, 5.0, False, tuning=[("own_cores", "flat", 1)])
