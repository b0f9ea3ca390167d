"""Measurements besides the operations: how fast a job starts, how much memory a rank takes, how much CPU time
waiting costs, and how fast the machine itself is."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rankwise.tools.bench.cases import OPERATIONS
from rankwise.tools.bench.workers import Launch, Workers, WorkersError
from rankwise.tools.layout import columns

PROBES = {
    "startup": "seconds from the launcher's start to its end, for programs that do almost nothing",
    "memory": "memory of a rank after some all_reduces, and what the library added to it",
    "idle": "CPU time that a rank burns while it waits a second for another in a barrier",
    "machine": "plain loads and stores on two cores at once: the limits of every library",
}
RANKS = {"startup": [2], "memory": [2, 4, 8, 16, 32, 64], "idle": [2], "machine": [2]}
"""The default world sizes."""
STARTS = 5  # starts of each launcher and program; the median counts
LATE = 1.0  # seconds that rank 0 is late
START_TIMEOUT = 120.0  # seconds for such a job
MIB = 1 << 20

# How a rank meets the others, by the library's name in rank.py.
MEETS = {
    "rankwise": "import rankwise; rankwise.init()",
    "mpi": "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()",
    "gloo": "import torch.distributed as dist; dist.init_process_group('gloo'); dist.destroy_process_group()",
}

PROGRAMS = ("true", "empty Python", "ranks meet")

MACHINE = {
    "copy": "copies its own memory",
    "read": "reads what the other wrote last",
    "write": "writes what the other read last",
}
MACHINE_SIZES = (64 << 10, 1 << 20, 4 << 20, 64 << 20)

Row = dict[str, Any]
Progress = Callable[[str], None]  # called with a description of the present step
Failed = Callable[[str, str], None]  # called with the contender that is left out, and the reason


def startup(launches: Mapping[str, Launch], n: int, folder: Path, failed: Failed, progress: Progress) -> list[Row]:
    """Start jobs that do nothing, with every launcher (for gloo: torchrun). A row: program, launcher, milliseconds."""
    empty = folder / "empty.py"
    empty.write_text("")
    commands: dict[tuple[str, str], list[str]] = {}
    for name, launch in launches.items():
        meets = folder / f"meets_{launch.name}.py"
        meets.write_text(MEETS[launch.name] + "\n")
        if launch.name == "gloo":
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
            commands["true", name] = [*torchrun, "--no-python", "true"]
            commands["empty Python", name] = [*torchrun, str(empty)]
            commands["ranks meet", name] = [*torchrun, str(meets)]
        else:
            commands["true", name] = launch.bare(n, ["true"])
            commands["empty Python", name] = launch.command(n, [str(empty)])
            commands["ranks meet", name] = launch.command(n, [str(meets)])
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in commands}
    quiet: Any = {"capture_output": True, "text": True, "timeout": START_TIMEOUT, "check": True}
    for start_number in range(STARTS):
        for key, command in list(commands.items()):
            progress(f"start {start_number + 1} of {STARTS}: {key[1]}, {key[0]}")
            start = time.perf_counter()
            try:
                subprocess.run(command, **quiet, env=launches[key[1]].full_environment())
            except subprocess.TimeoutExpired:
                failed(key[1], f"{' '.join(command)} did not end in {START_TIMEOUT:g} s")
                del commands[key]
            except subprocess.CalledProcessError as error:
                failed(key[1], f"{' '.join(command)} ended with status {error.returncode}: {error.stderr[-200:]}")
                del commands[key]
            seconds[key].append(time.perf_counter() - start)
    return [
        {"measure": "startup", "ranks": n, "program": program, "contender": name, "ms": 1e3 * median(seconds[key])}
        for key in sorted(commands, key=lambda key: PROGRAMS.index(key[0]))
        for program, name in [key]
    ]


def with_ranks(probe: str, workers: Mapping[str, Workers], n: int, failed: Failed) -> list[Row]:
    """Measure one of WITH_RANKS on the ranks of each contender."""
    rows: list[Row] = []
    for name, ranks in workers.items():
        try:
            rows += WITH_RANKS[probe](name, ranks, n)
        except WorkersError as error:
            failed(name, str(error))
    return rows


def memory(name: str, ranks: Workers, n: int) -> list[Row]:
    """Memory of a rank, the mean over ranks, in MiB.

    rss: resident. pss: resident, with each shared page divided by the number of processes that map it.
    shared: the part of pss that the ranks share. added: the growth of pss since before the library was
    loaded.
    """
    for count in (2, 1 << 10, 1 << 20):  # sizes that use different algorithms
        request = {"operation": OPERATIONS["all_reduce"].asked, "count": count, "dtype": "float32", "op": "sum"}
        ranks.ask(**request, do="time", level="array", iterations=3, batches=1, warm=1, fresh=False)
    ranks.ask(do="drop")
    now = ranks.ask(do="memory")
    sums = {key: sum(rank[key] for rank in now) for key in ("rss", "pss", "pss_shmem")}
    added = sums["pss"] - sum(rank["pss"] for rank in ranks.memory_before)
    totals = {"rss": sums["rss"], "pss": sums["pss"], "shared": sums["pss_shmem"], "added": added}
    means = {key: value / n / MIB for key, value in totals.items()}
    return [{"measure": "memory", "ranks": n, "contender": name, **means}]


def idle(name: str, ranks: Workers, n: int) -> list[Row]:
    """The most CPU milliseconds that a rank burns while it waits for rank 0, which enters a barrier LATE s late."""
    waiting = ranks.ask(do="late", level="array", seconds=LATE)[1:]
    worst = max((rank["cpu"] for rank in waiting), default=0.0)
    return [{"measure": "idle", "ranks": n, "contender": name, "ms": 1e3 * worst}]


def machine(name: str, ranks: Workers, n: int) -> list[Row]:
    """The rates between two cores, and of each core's own memory, while both do the same. Only rankwise has them."""
    rows: list[Row] = []
    points = [("line", 64), *((what, size) for what in MACHINE for size in MACHINE_SIZES)]
    for what, size in points if name == "rankwise" else ():
        seconds = ranks.ask(do="machine", what=what, bytes=size)[0]["seconds"]
        work = MACHINE.get(what, "a new cache line reaches the other core, both ways at once")
        time, rate = 1e6 * seconds, size / seconds / 1e9
        rows.append({"measure": "machine", "each core": work, "bytes": size, "time": time, "rate": rate})
    return rows


WITH_RANKS = {"memory": memory, "idle": idle, "machine": machine}
"""The probes that need running ranks."""

UNITS = {"time": "us", "rate": "GB/s", "ms": "ms", "rss": "MiB", "pss": "MiB", "added": "MiB", "shared": "MiB"}


def table(rows: Sequence[Row]) -> str:
    """The rows of one probe as text."""
    names = [name for name in rows[0] if name != "measure"]
    lines = [[f"{name}, {UNITS[name]}" if name in UNITS else name for name in names]]
    lines += [
        [
            f"{row[name]:,.2f}" if name in ("time", "rate") else f"{row[name]:.1f}" if name in UNITS else str(row[name])
            for name in names
        ]
        for row in rows
    ]
    return "\n".join(columns(lines, "".join(">" if name in UNITS else "<" for name in names)))
