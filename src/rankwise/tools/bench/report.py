"""The benchmark's output: the machine, the tables, the progress line and the JSON."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from rankwise._native import usable_cores
from rankwise.system import proc
from rankwise.system.tuning_file import cpu_name
from rankwise.tools.bench.cases import OPERATIONS, size_name
from rankwise.tools.bench.timing import Measurement
from rankwise.tools.layout import fill, width

OURS = "rankwise"
MPI_NAMES = ("mpi", "openmpi", "mpich")


@dataclass(frozen=True)
class Machine:
    """Facts about this machine. cores: how many this process may use. memory: bytes available.

    load: the average of the last minute before the start.
    """

    cpu: str
    cores: int
    all_cores: int
    load: float
    memory: int
    kernel: str
    python: str

    @classmethod
    def read(cls) -> Machine:
        return cls(
            cpu=cpu_name(),
            cores=usable_cores(),
            all_cores=os.cpu_count() or 1,
            load=round(os.getloadavg()[0], 2),
            memory=int(proc.fields("/proc/meminfo").get("MemAvailable", "0 kB").split()[0]) * 1024,
            kernel=platform.release(),
            python=platform.python_version(),
        )

    def show(self, if_busy: str) -> None:
        """Print a line about the machine. if_busy: what to add to the warning if other programs keep it busy."""
        print(fill(f"machine: {self}", width()), end="")
        if self.load > self.cores / 2:
            print(f"the machine is busy with other things{if_busy}")

    def __str__(self) -> str:
        return (
            f"{self.cpu}, {self.cores} of {self.all_cores} cores, {self.memory / 2**30:.1f} GiB available, "
            f"load {self.load:.2f} before the start, Linux {self.kernel}, Python {self.python}"
        )


class Progress:
    """Shows the present step as a line on stderr, if that is a terminal, and prints results in its place."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None and stream.isatty() else None
        self._start = time.monotonic()
        self.done, self.points = 0, 0
        self.left_out: dict[str, str] = {}
        """Why contenders were left out, by name."""

    def show(self, what: str) -> None:
        if self._stream is not None:
            seconds = int(time.monotonic() - self._start)
            share = f"{self.done}/{self.points} points, " if self.points else ""
            self._stream.write(f"\r\x1b[K{share}{seconds // 60}:{seconds % 60:02d}  {what}")
            self._stream.flush()

    def clear(self) -> None:
        """Remove the line, before another one is printed."""
        if self._stream is not None:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def print(self, text: str) -> None:
        """Print a result in place of the line."""
        self.clear()
        print(text, flush=True)

    def leave_out(self, name: str, why: str) -> None:
        """Say that a contender is left out from now on."""
        self.left_out[name] = why
        self.clear()
        note(f"{name} is left out: {why}")


def number(value: float) -> str:
    """Three or more significant digits in at most 7 characters: 0.064, 1.23, 45.6, 789, 26,900."""
    for limit, digits in ((0.1, 4), (1, 3), (10, 2), (100, 1)):
        if abs(value) < limit:
            return f"{value:.{digits}f}"
    return f"{value:,.0f}"


def ratios(results: Sequence[Measurement]) -> dict[str, float]:
    """rankwise's median time divided by each other contender's and by the best MPI's, at one point."""
    medians = {result.contender: result.times.median for result in results}
    ours = medians.pop(OURS, None)
    if ours is None:
        return {}
    found = {name: ours / median for name, median in medians.items()}
    mpis = [median for name, median in medians.items() if name in MPI_NAMES]
    if mpis:
        found["best MPI"] = ours / min(mpis)
    return found


class Table:
    """The table of one operation, printed row by row.

    others: names of the contenders besides rankwise, each with a column for its time and one for the ratio.
    """

    label_width = 5
    usual_columns: tuple[str, ...] = ("median", "min", "p99", "alg GB/s", "bus GB/s")

    def __init__(self, others: Sequence[str], check: bool) -> None:
        self.others = list(others)
        self.best = sum(name in MPI_NAMES for name in others) > 1
        self.check = check
        self.columns = list(self.usual_columns)
        for name in ("alg GB/s", "p99", "min", "bus GB/s"):  # columns that do not fit are only in the JSON
            if self._width() > width() and name in self.columns:
                self.columns.remove(name)
        self.best = self.best and self._width() <= width()

    def _width(self) -> int:
        return self.label_width + 9 * len(self.columns) + 6 * self.check + 15 * len(self.others) + 9 * self.best

    def label(self, ours: Measurement | None) -> str:
        """The beginning of a row; of the head if there is no measurement."""
        if ours is None:
            return f"{'size':>5}"
        return f"{size_name(ours.size) if ours.size else '-':>5}"

    def head(self) -> str:
        """Two lines: the contenders, and the columns."""
        own = 9 * len(self.columns) + 6 * self.check
        first = f"{'in us':<{self.label_width}}{'rankwise':>{own}}" + "".join(f" |{name:>13}" for name in self.others)
        second = self.label(None) + "".join(f"{name:>9}" for name in self.columns)
        second += f"{'wrong':>6}" * self.check + f" |{'median':>7}{'ratio':>6}" * len(self.others)
        if self.best:
            first, second = first + " |   best", second + " |    MPI"
        return f"{first}\n{second}"

    def row(self, results: Sequence[Measurement]) -> str:
        ours = next(result for result in results if result.contender == OURS)
        times = ours.times
        cells = {"median": times.median * 1e6, "min": times.minimum * 1e6, "p99": times.p99 * 1e6}
        if ours.size:
            operation = OPERATIONS[ours.operation]
            cells["alg GB/s"] = operation.algorithm_bandwidth(ours.size, ours.ranks, times.median)
            cells["bus GB/s"] = operation.bus_bandwidth(ours.size, ours.ranks, times.median)
        line = self.label(ours) + "".join(
            f"{number(cells[name]) if name in cells else '-':>9}" for name in self.columns
        )
        if self.check:
            line += f"{ours.wrong:>6}"
        found = ratios(results)
        by_name = {result.contender: result for result in results}
        for name in self.others:
            if name in by_name:
                line += f" |{number(by_name[name].times.median * 1e6):>7}{_ratio(found[name]):>6}"
            else:
                line += f" |{'-':>7}{'-':>6}"
        if self.best:
            best = found.get("best MPI")
            line += " |" + ("-" if best is None else _ratio(best)).rjust(7)
        return line


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 99.995 else f"{value:.0f}"


def result_as_json(result: Measurement, dtype: str, op: str) -> dict[str, Any]:
    """One result. Times in microseconds, bandwidths in GB/s (10^9 bytes); see cases.CONVENTIONS."""
    times = result.times
    bandwidths = {}
    if result.size:
        operation = OPERATIONS[result.operation]
        bandwidths = {
            "alg_gb_per_s": operation.algorithm_bandwidth(result.size, result.ranks, times.median),
            "bus_gb_per_s": operation.bus_bandwidth(result.size, result.ranks, times.median),
        }
    return {
        "contender": result.contender,
        "operation": result.operation,
        "ranks": result.ranks,
        "size": result.size,
        "count": result.count,
        "dtype": dtype,
        "op": op,
        "iterations": result.iterations,
        "batches": times.batches,
        "median_us": times.median * 1e6,
        "min_us": times.minimum * 1e6,
        "p99_us": times.p99 * 1e6,
        **bandwidths,
        "wrong_bytes": result.wrong,
        "chosen": result.chosen,
    }


def head_as_json(machine: Machine, words: Sequence[str]) -> dict[str, Any]:
    """The first entries of every JSON report."""
    import rankwise

    return {
        "rankwise": rankwise.__version__,
        "command": ["rankwise", "bench", *words],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": asdict(machine),
    }


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
