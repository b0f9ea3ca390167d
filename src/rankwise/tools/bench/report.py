"""The benchmark's output: the machine, the progress line, the rows and the tables."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from rankwise._native import usable_cores
from rankwise.system import proc
from rankwise.system.tuning_file import cpu_name
from rankwise.tools.layout import columns, fill, width

OURS = "rankwise"


@dataclass(frozen=True)
class Machine:
    """Facts about this machine. cores: how many this process may use. memory: bytes available.

    load: the average of the last minute before the start.
    """

    cpu: str
    cores: int
    load: float
    memory: int

    @classmethod
    def read(cls) -> Machine:
        return cls(
            cpu=cpu_name(),
            cores=usable_cores(),
            load=round(os.getloadavg()[0], 2),
            memory=int(proc.fields("/proc/meminfo").get("MemAvailable", "0 kB").split()[0]) * 1024,
        )

    def show(self, if_busy: str) -> None:
        """Print a line about the machine. if_busy: what to add to the warning if other programs keep it busy."""
        print(fill(f"machine: {self}", width()), end="")
        if self.load > self.cores / 2:
            print(f"the machine is busy with other things{if_busy}")

    def __str__(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory / 2**30:.1f} GiB available, "
            f"load {self.load:.2f} before the start, Linux {platform.release()}, Python {platform.python_version()}"
        )


@dataclass(frozen=True)
class Row:
    """The times of one contender at one point, in microseconds per call.

    at: the size as text, or what else the case is measured with. size: bytes that each rank passes; 0 if it passes no
    array. bus_gb_per_s: as rank.Case computes it; None without a size. chosen: for a forced algorithm, whether rankwise
    would have chosen it.
    """

    library: str
    case: str
    ranks: int
    at: str
    size: int
    median_us: float
    min_us: float
    p99_us: float
    bus_gb_per_s: float | None
    chosen: bool = False

    @property
    def point(self) -> tuple[str, int, str]:
        return self.case, self.ranks, self.at


class Progress:
    """Shows the present step as a line on stderr, if that is a terminal, and prints results in its place."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None and stream.isatty() else None
        self.left_out: dict[str, str] = {}
        """Why contenders were left out, by name."""

    def show(self, what: str) -> None:
        if self._stream is not None:
            self._stream.write(f"\r\x1b[K{what}")
            self._stream.flush()

    def print(self, text: str) -> None:
        """Print a result in place of the line."""
        self.show("")
        print(text, flush=True)

    def leave_out(self, name: str, why: str) -> None:
        """Say that a contender is left out from now on."""
        self.left_out[name] = why
        self.show("")
        note(f"{name} is left out: {why}")


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def size_name(size: int) -> str:
    """65536 -> '64K'; 100, which is not a multiple of 1024, -> '100'."""
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def number(value: float) -> str:
    """Three or more significant digits in at most 7 characters: 0.064, 1.23, 45.6, 789, 26,900."""
    for limit, digits in ((0.1, 4), (1, 3), (10, 2), (100, 1)):
        if abs(value) < limit:
            return f"{value:.{digits}f}"
    return f"{value:,.0f}"


def table(points: Sequence[Sequence[Row]], others: Sequence[str]) -> str:
    """The table of a case: for each point rankwise's times in us, and each other's with the ratio of the two."""
    head = ["at", OURS, "min", "p99", "GB/s", *(word for name in others for word in (name, "ratio"))]
    lines = [head]
    for rows in points:
        by_name = {row.library: row for row in rows}
        ours = by_name.pop(OURS)
        cells = [number(us) for us in (ours.median_us, ours.min_us, ours.p99_us)]
        cells.append("-" if ours.bus_gb_per_s is None else number(ours.bus_gb_per_s))
        for name in others:
            other = by_name.get(name)
            cells += ["-", "-"] if other is None else map(number, (other.median_us, ours.median_us / other.median_us))
        lines.append([ours.at, *cells])
    return "\n".join(columns(lines, ">" * len(head)))


def algorithm_table(points: Sequence[Sequence[Row]], names: Sequence[str]) -> str:
    """The table of an operation: the median time in us of each algorithm, with a star at rankwise's choice."""
    lines = [["at", OURS, *names]]
    for rows in points:
        by_name = {row.library: f"{number(row.median_us)}{'*' if row.chosen else ' '}" for row in rows}
        lines.append([rows[0].at, *(by_name.get(name, "- ") for name in (OURS, *names))])
    return "\n".join(line.rstrip() for line in columns(lines, ">" * (2 + len(names))))
