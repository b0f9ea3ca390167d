"""A fault is tried again and again, each time at another moment; a table says how often it ended well.

A *trial* is one try of one fault: a test of its own, with moments and choices drawn from its seed.
`make test` tries each fault once to three times, `make test-all PART=faults` (RANKWISE_FAULTS=full) many times. The
run's seed is in the table's title and in the output of a failed trial; RANKWISE_FAULTS_SEED repeats it.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from leftovers import open_descriptors, segments, shared_memory_files, started_processes
from rankwise import Group
from rankwise.testing import run_ranks

T = TypeVar("T")

FULL = os.environ.get("RANKWISE_FAULTS", "") == "full"
SEED = os.environ.get("RANKWISE_FAULTS_SEED") or str(int(time.time()))
GRACE = 3.0  # seconds for what is ending to be gone
LEFTOVERS = ("processes", "segments", "descriptors", "threads", "files")


def fault(number: int, what: str, *, few: int, full: int) -> Callable[[Any], Any]:
    """A test of the fault `number` of the design, tried `few` or `full` times; it takes a `trial`."""

    def decorate(test: Any) -> Any:
        tries = pytest.mark.parametrize("trial", range(full if FULL else few), indirect=True)
        return pytest.mark.fault(number, what)(tries(test))

    return decorate


@dataclass
class Row:
    """What became of one fault's trials. times: seconds from the fault to the last error it caused."""

    tried: int = 0
    failed: set[str] = field(default_factory=set)
    times: list[float] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)


rows: dict[tuple[int, str], Row] = {}


class Trial:
    """One try: where its randomness comes from, a folder of its own, and what it measures."""

    def __init__(self, name: str, row: Row, folder: Path) -> None:
        self.seed = f"{SEED}/{name}"
        self.rng = random.Random(self.seed)
        self.folder = folder
        self.work = folder / "work"  # the ranks' current folder, and their folder for temporary files
        self.work.mkdir()
        self._row = row
        self.before = Holdings(self)

    def run(self, n: int, body: Callable[[Group], T], *, backend: str = "threads", timeout: float = 20.0) -> list[T]:
        """`run_ranks`, where processes are shared with other trials as long as they work, and so are not left over."""
        if backend == "shm":
            run_ranks(_nothing, n, backend=backend)
            self.before = Holdings(self)
        return run_ranks(body, n, backend=backend, timeout=timeout)

    def moment(self, longest: float) -> None:
        """Let a random time pass: the moment of a fault is none that the program chose."""
        time.sleep(self.rng.uniform(0, longest))

    def took(self, seconds: float) -> None:
        """From the fault to the last error it caused."""
        self._row.times.append(seconds)


def _nothing(group: Group) -> None:
    group.barrier()


class Holdings:
    """What there is before a trial; what is new after it is left over."""

    def __init__(self, trial: Trial) -> None:
        self._folder = trial.work
        self._before = self._now()

    def _now(self) -> dict[str, Counter[str]]:
        return {
            "processes": Counter({f"{pid} {command}": 1 for pid, command in started_processes().items()}),
            "segments": segments(),
            "descriptors": open_descriptors(),
            "threads": Counter(str(thread) for thread in threading.enumerate()),
            # In /dev/shm only what is named after us: other programs come and go there.
            "files": Counter(file for file in shared_memory_files() if "rankwise" in file)
            + Counter(map(str, self._folder.rglob("*"))),
        }

    def left(self) -> dict[str, list[str]]:
        """What is there that was not; what is about to go is given a moment for it."""
        end = time.monotonic() + GRACE
        while True:
            gc.collect()  # an error that was looked at holds on to what its traceback saw
            new = {kind: list((now - self._before[kind]).elements()) for kind, now in self._now().items()}
            if not any(new.values()) or time.monotonic() > end:
                return new
            time.sleep(0.05)


def table() -> str:
    """The rows of all faults tried, and what the kills took."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=f"Faults, each at random moments (RANKWISE_FAULTS_SEED={SEED})", title_justify="left")
    shown.add_column("fault")
    for name in ("tried", "survived", "median", "worst", *LEFTOVERS):
        shown.add_column(name, justify="right")
    for (number, what), row in sorted(rows.items()):
        survived = row.tried - len(row.failed)
        style = "bold red" if row.failed else None
        shown.add_row(
            f"{number:2}. {what}",
            str(row.tried),
            str(survived),
            *((_ms(statistics.median(row.times)), _ms(max(row.times))) if row.times else ("", "")),
            *(str(row.left[kind]) for kind in LEFTOVERS),
            style=style,
        )
    console = Console(width=150, force_terminal=False)
    with console.capture() as captured:
        console.print(shown)
    text = captured.get()
    kills = [seconds for (number, _), row in rows.items() if number == 1 for seconds in row.times]
    if kills:
        text += (
            f"From a kill to the last survivor's exception, {len(kills)} kills: median "
            f"{_ms(statistics.median(kills))} (target 50 ms), worst {_ms(max(kills))} (target 500 ms)\n"
        )
    return text


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.1f} ms"
