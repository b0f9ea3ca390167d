"""The ranks of a trial: processes under `rankwise run`, each in one of the places of rank.py."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from faults.trials import Trial

Report = dict[str, Any]

HANG = 40.0  # seconds after which what has not happened counts as a hang
PROGRAM = Path(__file__).with_name("rank.py")


def lives(pid: int) -> bool:
    """Whether a process runs: one that has ended does not, though nobody reaped it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Workers:
    """`n` ranks that run `place` of rank.py until something happens to them.

    `with Workers(...) as workers:` starts them; at its end none is left. A rank reports what it does, a line
    of JSON each, through a named pipe: `workers.pids` are known once `started` was reported by all.
    """

    def __init__(
        self, trial: Trial, n: int, place: str, *args: Any, timeout: float = 30.0, options: tuple[str, ...] = ()
    ):
        self.n = n
        self.reports: list[Report] = []
        self._fifo = trial.folder / "reports"
        os.mkfifo(self._fifo)
        self._stdout, self._stderr = trial.folder / "stdout", trial.folder / "stderr"
        rank = [str(PROGRAM), str(self._fifo), trial.seed, place, json.dumps(args)]
        self._command = [
            sys.executable,
            "-m",
            "rankwise",
            "run",
            "-n",
            str(n),
            "--timeout",
            str(timeout),
            *options,
            *rank,
        ]

    def __enter__(self) -> Workers:
        self._reader = os.open(self._fifo, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""
        with open(self._stdout, "wb") as out, open(self._stderr, "wb") as err:
            self.launcher = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.launcher.poll() is None:
            for pid in self.pids.values():  # what hangs says where
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                    os.kill(pid, signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                self.launcher.wait(3)
            self.launcher.kill()
            self.launcher.wait()
        os.close(self._reader)
        if kind is not None:
            print("reports:", *self.reports, "stderr:", self.stderr, sep="\n")

    @property
    def pids(self) -> dict[int, int]:
        return {report["rank"]: report["pid"] for report in self.reports if report["what"] == "started"}

    @property
    def stdout(self) -> str:
        return self._stdout.read_text()

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    def of(self, what: str) -> dict[int, Report]:
        """The reports of a kind that have come, by rank."""
        return {report["rank"]: report for report in self.reports if report["what"] == what}

    def all(self, what: str) -> dict[int, Report]:
        """Wait for this report of every rank."""
        end = time.monotonic() + HANG
        while len(self.of(what)) < self.n:
            left = end - time.monotonic()
            assert left > 0, f"only ranks {sorted(self.of(what))} reported {what!r} within {HANG:g} s"
            assert self.launcher.poll() is None or self._read(0), (
                f"the job ended before all ranks had reported {what!r}"
            )
            self._read(min(left, 0.2))
        return self.of(what)

    def one(self, what: str, rank: int) -> Report:
        """Wait for this report of one rank."""
        end = time.monotonic() + HANG
        while rank not in (found := self.of(what)):
            assert time.monotonic() < end, f"rank {rank} did not report {what!r} within {HANG:g} s"
            self._read(0.2)
        return found[rank]

    def drain(self) -> None:
        """Take what was reported until now."""
        while self._read(0):
            pass

    def forget(self, what: str) -> None:
        """Drop the reports of a kind that have come until now, to wait for new ones."""
        self.drain()
        self.reports = [report for report in self.reports if report["what"] != what]

    def signal(self, rank: int, signum: int) -> float:
        """Send a rank a signal; when that was."""
        at = time.monotonic()
        os.kill(self.pids[rank], signum)
        return at

    def end(self) -> int:
        """Wait until the job is over, and take its last reports; the launcher's exit code."""
        end = time.monotonic() + HANG
        while self.launcher.poll() is None:
            assert time.monotonic() < end, f"the job had not ended after {HANG:g} s"
            self._read(0.01)
        self.drain()
        return self.launcher.returncode

    def errors(self, but: int) -> dict[int, Report]:
        """The error of every rank but one, after the job's end."""
        errors = self.of("error")
        assert set(errors) == set(range(self.n)) - {but}, (
            f"ranks {sorted(errors)} reported an error, rank {but} is lost"
        )
        return errors

    def _read(self, seconds: float) -> bool:
        """Take the reports that are there, or come within this time; False where none did."""
        if not select.select([self._reader], [], [], seconds)[0]:
            return False
        lines = (self._rest + os.read(self._reader, 1 << 16)).split(b"\n")
        self._rest = lines.pop()
        self.reports += map(json.loads, lines)
        return True
