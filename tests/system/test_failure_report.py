"""What a rank reports about its end. Each test's rank is a new process, with memory as a launcher gives it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rankwise.contract.failure import Failure
from rankwise.contract.failure_kinds import ERROR, LOST, MISMATCH
from rankwise.system import failure_report
from rankwise.system.failure_report import Report
from rankwise.system.settings import FAILURES_MEMFD

LAST = 1023  # the last rank that one host can have

BEGIN = "import os, sys\nfrom rankwise.system import failure_report\nfailure_report.report_at_exit()\n"
LOSS = "from rankwise.contract.errors import PeerLostError\nlost = PeerLostError('rank 1 was lost', rank=1)\n"


@pytest.fixture
def memory() -> Iterator[int]:
    fd = os.memfd_create(FAILURES_MEMFD)
    yield fd
    os.close(fd)


def end_of(code: str, fd: int, rank: int = LAST) -> Report:
    environment = os.environ | {"RANKWISE_FAILURES_FD": str(fd), "RANKWISE_RANK": str(rank)}
    subprocess.run([sys.executable, "-c", code], env=environment, pass_fds=[fd], stderr=subprocess.DEVNULL, timeout=100)
    return failure_report.read(fd, rank)


def test_an_uncaught_exception(memory: int) -> None:
    report = end_of(BEGIN + "{}['x']", memory)
    assert report.latest is None
    assert report.uncaught is not None
    assert (report.uncaught.kind, report.uncaught.message) == (ERROR, "KeyError: 'x'")
    assert report.uncaught.ranks[LAST].site == "<string>:4"
    assert failure_report.read(memory, 0) == Report(), "another rank's place was written to"


def test_only_the_first_line_of_a_text(memory: int) -> None:
    report = end_of(BEGIN + "raise ValueError('x' * 1000 + '\\nsecret')", memory)
    assert report.uncaught is not None
    assert report.uncaught.message == ("ValueError: " + "x" * 1000)[: failure_report.LONGEST]


def test_a_failure_behind_the_exception(memory: int) -> None:
    report = end_of(BEGIN + LOSS + "raise RuntimeError('bad') from lost", memory)
    assert report == Report(report.latest, report.latest)
    assert report.latest is not None
    assert report.latest.kind == LOST


@pytest.mark.parametrize("end", ["sys.exit(3)", "pass", "raise SystemExit"])
def test_the_last_failure_is_reported_without_an_exception(memory: int, end: str) -> None:
    report = end_of(BEGIN + LOSS + end, memory)
    assert report.uncaught is None
    assert report.latest == Failure(LOST, "rank 1 was lost", to_blame=(1,))


@pytest.mark.parametrize(
    "end", ["os._exit(3)", "os.kill(os.getpid(), 9)", "pid = os.fork(); pid or {}['x']; os._exit(0)"]
)
def test_other_ends_report_nothing(memory: int, end: str) -> None:
    assert end_of(BEGIN + LOSS + end, memory) == Report()


def test_a_message_that_is_late_is_no_failure_of_the_group(memory: int) -> None:
    code = "from rankwise.contract.errors import CollectiveTimeout\nCollectiveTimeout('late', operation='recv')"
    assert end_of(BEGIN + code, memory) == Report()


def test_a_report_that_is_too_long_is_shortened(memory: int) -> None:
    code = (
        "from rankwise.contract.errors import MismatchError\n"
        "raise MismatchError('é' * 2_000_000, calls={0: 'a()' * 100_000}, sequence=1)"
    )
    uncaught = end_of(BEGIN + code, memory).uncaught
    assert uncaught == Failure(MISMATCH, "é" * failure_report.LONGEST, sequence=1)


def test_a_report_is_forgotten(memory: int) -> None:
    end_of(BEGIN + "{}['x']", memory)
    failure_report.forget(memory, LAST)
    assert failure_report.read(memory, LAST) == Report()


def test_without_a_launcher_nothing_is_reported(tmp_path: object) -> None:
    with open(f"{tmp_path}/file", "w+b") as file:  # what a child process may find under the number
        end_of(BEGIN + "{}['x']", file.fileno(), 0)
        assert file.read() == b""
