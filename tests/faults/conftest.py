"""Trials of faults: what each is given, what is looked at after it, and the table of all at the end."""

from __future__ import annotations

import gc
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from faults.trials import FULL, SEED, Row, Trial, rows, table


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(number, what): a fault of the design that this test tries")


def _row(item: Any) -> Row:
    number, what = item.get_closest_marker("fault").args
    variant = [
        str(value) for name, value in item.callspec.params.items() if name in item.fixturenames and name != "trial"
    ]
    return rows.setdefault((number, ", ".join([what, *variant])), Row())


@pytest.fixture
def trial(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Trial]:
    """One try of a fault. After it nothing is left: no process, segment, descriptor, thread or file."""
    name, row = request.node.name, _row(request.node)
    print(f"seed: RANKWISE_FAULTS_SEED={SEED}{' RANKWISE_FAULTS=full' if FULL else ''}, {name}")
    row.tried += 1
    gc.freeze()  # so that the search for what is left need not go through all that was there before
    trial = Trial(name, row, tmp_path)
    monkeypatch.setenv("TMPDIR", str(trial.work))
    monkeypatch.chdir(trial.work)
    yield trial
    left = trial.before.left()
    gc.unfreeze()
    row.left.update({kind: len(found) for kind, found in left.items()})
    if any(left.values()):
        pytest.fail(f"left behind: {left}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if report.failed and item.get_closest_marker("fault"):
        _row(item).failed.add(item.nodeid)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if rows:
        terminalreporter.section("faults")
        terminalreporter.write(table())
