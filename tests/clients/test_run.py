"""The runner of tests/clients: what fails a program, what is left of it, and what the table and the exit status say."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clients.run import BY_NAME, FAKE, GLOO, UNCHANGED, Outcome, Row, report, run
from clients.table import CLIENTS, ClientTest
from leftovers import started_processes

HERE = Path(sys.prefix)
SLEEPER = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])"
GROUP = "import rankwise as rw, time; rw.spawn(lambda: time.sleep(1), 2)"


def python(code: str, seconds: int = 60) -> ClientTest:
    return ClientTest("a test", f'python -c "{code}"', seconds)


def test_a_program_passes_and_its_result_is_found() -> None:
    outcome = run(python("print('rank 0 result: 1 2')"), GLOO, HERE)
    assert (outcome.why, outcome.result) == ("", "1 2")


def test_the_exit_status_and_the_output_of_a_failed_program_are_given() -> None:
    outcome = run(python("raise SystemExit('out of cheese')"), GLOO, HERE)
    assert outcome.why == "exit status 1"
    assert "out of cheese" in outcome.output


@pytest.mark.slow
def test_a_hang_is_a_failure_and_nothing_of_it_is_left() -> None:
    before = started_processes()
    outcome = run(python(f"{SLEEPER}; import time; time.sleep(100)", seconds=2), GLOO, HERE)
    assert outcome.why == "did not end within 2 s"
    assert started_processes().keys() <= before.keys()


def test_what_outlives_its_program_is_ended_and_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clients.run.GRACE", 0.5)
    before = started_processes()
    outcome = run(python(SLEEPER), GLOO, HERE)
    assert outcome.why.startswith("left behind: process ")
    assert started_processes().keys() <= before.keys()


@pytest.mark.parametrize(("code", "why"), [(GROUP, ""), ("pass", "opened no group of rankwise")])
def test_on_rankwise_a_program_must_open_a_group_of_it(code: str, why: str) -> None:
    assert run(python(code), UNCHANGED, HERE).why == why


def test_the_variable_is_set_for_unchanged_programs_only() -> None:
    show = "import os; print('result:', os.environ.get('RANKWISE_TORCH_AS'))"
    assert [run(python(show), way, HERE).result for way in (GLOO, UNCHANGED, BY_NAME)] == ["None", "gloo", "None"]


def test_by_name_the_program_says_rankwise_in_place_of_gloo() -> None:
    show = ClientTest("a test", "grep -h 'process_group_backend' {programs}/lightning_ddp.py")
    assert "rankwise" not in run(show, GLOO, HERE).output
    assert '"rankwise"' in run(show, BY_NAME, HERE).output


SLEEPING_CLIENT = """
import sys
from pathlib import Path
from clients import run, table
run.CLIENTS = (table.Client("sleeper", ("sleeper==1",), (table.ClientTest("sleep", "sleep 987"),)),)
run.environment = lambda client: Path(sys.prefix)
sys.argv[1:] = []
sys.exit(run.main())
"""


def test_a_runner_that_is_terminated_ends_its_program() -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", SLEEPING_CLIENT], env=environ) as runner:
        sleeping: list[int] = []
        while not sleeping and runner.poll() is None:
            sleeping = [pid for pid, command in started_processes().items() if command.startswith("sleep 987")]
            time.sleep(0.05)
        runner.terminate()
        assert runner.wait() == 143
    assert sleeping
    assert not Path(f"/proc/{sleeping[0]}").exists()


PASSED, FAILED = Outcome("", 1.0), Outcome("exit status 1", 1.0)


@pytest.mark.parametrize(
    ("gloo", "ours", "status", "says"),
    [
        (PASSED, PASSED, 0, "0 of 1 tests pass on gloo and fail on rankwise"),
        (PASSED, FAILED, 1, "ray a test, RANKWISE_TORCH_AS: exit status 1"),
        (FAILED, FAILED, 0, "ray a test fails on gloo as well: it asks for a GPU"),
        (FAILED, PASSED, 0, "ray a test, gloo: exit status 1"),
    ],
)
def test_the_report(gloo: Outcome, ours: Outcome, status: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    ray = next(client for client in CLIENTS if client.name == "ray")
    row = Row(ray, ClientTest("a test", "", note="it asks for a GPU"), {GLOO: gloo, UNCHANGED: ours})
    assert report([row], {}) == status
    assert says in capsys.readouterr().out.splitlines()


def test_what_could_not_be_installed_is_not_tested(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([], {"ray": "no such version"}) == 0
    assert "not tested: ray could not be installed: no such version" in capsys.readouterr().out.splitlines()


def test_what_a_framework_leaves_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clients.run.MEMORY", tmp_path)
    monkeypatch.setattr("clients.run.shared_memory_files", lambda: set(os.listdir(tmp_path)))
    monkeypatch.setattr("clients.run.GRACE", 0.5)
    code = f"open('{tmp_path}/known_1', 'w'); open('{tmp_path}/new_1', 'w')"
    test = replace(python(code), leaves="known_")
    assert run(test, GLOO, HERE).why == "left behind: /dev/shm/new_1"
    assert os.listdir(tmp_path) == ["new_1"]


def test_the_times_have_a_table_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    torch = next(client for client in CLIENTS if client.name == "torch")
    outcomes = {way: Outcome("", 1.0, time=f"{way} ms") for way in (GLOO, UNCHANGED, FAKE)}
    assert report([Row(torch, ClientTest("a test", ""), outcomes)], {}) == 0
    assert any(
        line.split() == ["torch", "a", "test", "gloo", "ms", "RANKWISE_TORCH_AS", "ms", "fake", "ms"]
        for line in capsys.readouterr().out.splitlines()
    )
