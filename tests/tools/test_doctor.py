"""rankwise doctor reports what the machine has, runs trials, and neither crashes nor hangs."""

from __future__ import annotations

import json
import re
import sys
import time

import pytest

from rankwise.tools.doctor import command
from rankwise.tools.doctor.facts import FACTS, facts
from rankwise.tools.doctor.trials import FOR, Trial, trials

TRIED = [
    Trial("shm", "the ranks of one host", True, 2),
    Trial("nccl", "GPUs", False, why="no GPU", remedy="buy one"),
]


def test_facts_name_the_usable_cores() -> None:
    found = {fact.name: fact for fact in facts()}
    assert list(found) == list(FACTS)
    assert re.fullmatch(r"[1-9]\d* usable", found["cores"].value)
    assert "by affinity" in found["cores"].note
    assert re.fullmatch(r"[\d.]+ \w+ free of [\d.]+ \w+", found["memory"].value)
    assert found["segment"].value == "memfd works"


def test_a_missing_fact_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> tuple[str, str]:
        raise OSError("no such thing")

    monkeypatch.setitem(FACTS, "cores", broken)
    found = {fact.name: fact for fact in facts()}
    assert (found["cores"].value, found["cores"].note) == ("unknown", "OSError: no such thing")
    assert found["memory"].value != "unknown"


def test_trials_are_real_and_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")  # of a launcher that the doctor runs under; no business of the trials
    monkeypatch.setenv("WORLD_SIZE", "9")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    found = {trial.backend: trial for trial in trials(["solo", "shm", "unheard-of"], 60.0)}
    assert (found["solo"].works, found["solo"].ranks) == (True, 1)
    assert (found["shm"].works, found["shm"].ranks) == (True, 2)
    assert not found["unheard-of"].works
    assert "unheard-of" in found["unheard-of"].why


def test_a_trial_that_hangs_is_terminated() -> None:
    start = time.monotonic()
    (trial,) = trials(["shm"], 0.01)
    assert (trial.works, trial.why) == (False, "no result within 0.01 s")
    assert time.monotonic() - start < 50


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(backends: list[str], timeout: float) -> list[Trial]:
        assert backends == list(FOR)
        return TRIED

    monkeypatch.setattr(command, "trials", tried)


@pytest.mark.usefixtures("quick")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["backends"]["shm"]["works"] is True
    assert report["backends"]["nccl"]["remedy"] == "buy one"
    assert report["facts"]["cores"]["value"]
    assert {"where", "backend", "why"} == set(report["choices"][0])


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("rich", [True, False])
def test_tables(rich: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if rich:
        pytest.importorskip("rich", reason="rich is not installed")
    else:
        monkeypatch.setitem(sys.modules, "rich", None)
    assert command.main([]) == 0
    text = capsys.readouterr().out
    for part in ("This machine", "usable", "works (2 ranks)", "no GPU", "buy one", "hierarchical"):
        assert part in text


@pytest.mark.usefixtures("quick")
def test_the_choices_for_this_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    command.main(["--json"])
    assert json.loads(capsys.readouterr().out)["choices"][0]["backend"] == "hierarchical"
    monkeypatch.setenv("RANK", "nine")
    command.main(["--json"])
    assert "nine" in json.loads(capsys.readouterr().out)["choices"][0]["why"]
