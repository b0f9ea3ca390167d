"""Times the operations of rankwise, gloo, MPICH and Open MPI between hosts, and prints a table for each network.

    sudo python benchmarks/hosts.py                                  2, 4 and 8 hosts, 5 ms between any two
    sudo python benchmarks/hosts.py --hosts 8 --delay 1,20 --operations all_reduce,barrier --sizes 8,1M
    sudo python benchmarks/hosts.py --hosts 2 --per-host 2 --delay 0 --order by-host,round-robin \\
        --operations all_reduce --libraries rankwise/hierarchical,rankwise/gloo
    sudo python benchmarks/hosts.py --hosts 8 --operations all_reduce --libraries \\
        rankwise/gloo+all_reduce=reduce_scatter,rankwise/gloo+all_reduce=ring

The hosts are network namespaces of this machine, connected by a switch with the given delay and rate
(tests/multihost/switch.py). They exist only while this program runs, which needs root and iproute2. The switch is a
program too, which could not keep up with a high rate of many hosts: the default rate is lower on more hosts. Above each
table is the share of the rate that plain TCP connections reached, one from each host to the next, all at the same time.
If it is far below 90 %, the machine is too slow or too busy for this rate.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from types import FrameType
from typing import NoReturn, TypeVar

ROOT = Path(__file__).resolve().parents[1]
sys.path[1:1] = [str(ROOT / "tests")]
from hosts_launch import LIBRARIES, Launches, Library  # noqa: E402 - it needs the tests' network

from multihost.network import CannotMake, Network  # noqa: E402
from rankwise.tools.bench import peers  # noqa: E402
from rankwise.tools.bench.cases import OPERATIONS, MeasuredOperation, parse_sizes, size_name  # noqa: E402
from rankwise.tools.bench.report import Machine, Progress, note, number  # noqa: E402
from rankwise.tools.bench.workers import Workers, WorkersError  # noqa: E402

ITEMS = {"float32": 4, "float16": 2}  # bytes of an element, by dtype
RATES = ((2, 500.0), (4, 200.0), (8, 100.0), (math.inf, 50.0))  # (at most so many hosts, Mbit/s)
PAYLOAD, ON_THE_WIRE = 1448, 1538  # bytes of a full TCP segment, and of the Ethernet frame that it takes
STREAM = 1.0  # seconds for which the plain TCP connections should send
MOST_CALLS = 8  # timed calls of one library in a round
PAUSE = 0.004  # seconds between two calls, in addition to the time that they take
AHEAD = 0.01  # seconds within which a request reaches all ranks; AHEAD_EACH more for each rank
AHEAD_EACH = 0.001
NAMES = tuple(name for name in OPERATIONS if name != "send_recv")
EPILOG = f"""\
libraries:
{LIBRARIES}
operations: {", ".join(NAMES)}

"bytes" is the size of a rank's larger array: of the result for all_gather and gather, of the input for all other
operations. A call begins at the same moment on all ranks and ends when it has returned on the last one. In each round,
each library makes at least one untimed call before the timed ones; the table has the median over all rounds in
milliseconds. "ratio" is the time of the first library, divided by the best time of all other libraries that are not
rankwise, or of all others if there are none of these. "least" is a lower bound for every algorithm: the delay, plus the
time for which a host's interface transfers the fewest bytes that some host must send or receive.

`rankwise bench --make-peers` installs the MPIs. The ranks of a library sleep while another one is measured.
"""


@dataclass(frozen=True)
class Setting:
    """A network, and how the ranks are numbered on it. delay: ms. rate: Mbit/s. order: by-host or round-robin."""

    hosts: int
    per_host: int
    delay: float
    rate: float
    order: str

    @property
    def n(self) -> int:
        return self.hosts * self.per_host

    @property
    def placement(self) -> tuple[int, ...]:
        """The host of each rank."""
        return tuple(rank // self.per_host if self.order == "by-host" else rank % self.hosts for rank in range(self.n))

    @property
    def payload(self) -> float:
        """Bytes per second of data that an interface transfers at most."""
        return self.rate * 1e6 / 8 * PAYLOAD / ON_THE_WIRE

    def least(self, operation: str, size: int) -> float:
        """Seconds: see "least" in EPILOG."""
        if operation == "barrier":
            return self.delay / 1e3
        others = (self.hosts - 1) / self.hosts
        crossing = {"all_reduce": 2 * others, "broadcast": 1, "reduce": 1, "all_to_all": self.per_host * others}
        return self.delay / 1e3 + crossing.get(operation, others) * size / self.payload

    def __str__(self) -> str:
        each = f"{self.per_host} rank{'s' * (self.per_host > 1)} each"
        order = f" ({self.order})" if self.per_host > 1 else ""
        return f"{self.hosts} hosts, {each}{order}, {self.delay:g} ms, {self.rate:g} Mbit/s"


@dataclass
class Cell:
    """One library's times of one operation at one size, in seconds."""

    setting: Setting
    library: str
    operation: str
    size: int
    seconds: list[float] = field(default_factory=list)


class Hosts:
    """One setting, measured."""

    def __init__(self, setting: Setting, options: argparse.Namespace, progress: Progress) -> None:
        self.setting, self.options, self.progress = setting, options, progress
        self.workers: dict[str, Workers] = {}

    def measure(self) -> Iterator[list[Cell]]:
        """Yields the cells of each operation and size. Prints the table row by row."""
        setting = self.setting
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rankwise-hosts-")))
            network = stack.enter_context(Network(setting.hosts, rate=setting.rate, delay=setting.delay))
            self._start(Launches(network, setting.placement, self.options.peer_env, folder), folder, stack)
            reached = f"{100 * self._stream():.0f} %"
            self.progress.print(f"\n{setting}; plain TCP connections reached {reached} of the rate\n")
            self.progress.print("| operation | bytes | " + " | ".join(self.workers) + " | ratio | least |")
            self.progress.print("|---|---:|" + "---:|" * (len(self.workers) + 2))
            for name in self.options.operations:
                for size in self.options.sizes if OPERATIONS[name].has_bytes else [0]:
                    cells = self._point(OPERATIONS[name], size)
                    self.progress.done += 1
                    self.progress.print(self._row(name, size, cells))
                    yield cells

    def _start(self, launches: Launches, folder: Path, stack: ExitStack) -> None:
        for library in self.options.libraries:
            try:
                launch = launches.of(library)
            except peers.Missing as missing:
                self.progress.leave_out(library.name, str(missing))
                continue
            self.progress.show(f"{self.setting}: starting {library.name}")
            # One library after another, because they all need the cores while they start.
            workers = stack.enter_context(Workers(launch, self.setting.n, folder))
            try:
                workers.meet()
            except WorkersError as error:
                workers.close()
                self.progress.leave_out(library.name, str(error))
                continue
            self.workers[library.name] = workers
            note(f"{library.name}: {workers.about}")
        if not self.workers:
            raise WorkersError("there is no library to measure")

    def _stream(self) -> float:
        """The share of the rate that plain TCP connections reach, one from each host to the next, all at once."""
        setting = self.setting
        firsts = {setting.placement.index(host): host for host in range(setting.hosts)}
        to = [f"10.0.0.{(firsts[rank] + 1) % setting.hosts + 1}" if rank in firsts else "" for rank in range(setting.n)]
        size = round((STREAM + setting.delay / 50) * setting.payload)  # so long that the delay hardly counts
        workers = next(iter(self.workers.values()))
        answers = workers.ask(do="stream", to=to, bytes=size, start=self._soon() + 0.2)
        rate: float = min(answer["rate"] for answer in answers if answer)
        return rate / setting.payload

    def _point(self, operation: MeasuredOperation, size: int) -> list[Cell]:
        """All libraries at one operation and size, their rounds interleaved."""
        item = ITEMS[self.options.dtype]
        count = operation.count(size // self.setting.n if operation.gathers else size, item, self.setting.n)
        cells = {name: Cell(self.setting, name, operation.name, size) for name in self.workers}
        for _ in range(self.options.rounds):
            for name, cell in cells.items():
                workers = self.workers[name]
                if not workers.alive:
                    continue
                self.progress.show(f"{self.setting}: {operation.name} {size_name(size)} {name}")
                try:
                    cell.seconds += self._round(workers, operation, count, min(cell.seconds, default=0.0))
                except WorkersError as error:
                    workers.close()
                    self.progress.leave_out(name, str(error))
        for workers in self.workers.values():
            if workers.alive:
                workers.ask(do="drop")
        return [cell for cell in cells.values() if cell.seconds]

    def _round(self, workers: Workers, operation: MeasuredOperation, count: int, expected: float) -> list[float]:
        """The seconds of each timed call. expected: seconds of a call, or 0 if unknown."""
        request = {"do": "scheduled", "level": "array", "operation": operation.asked, "op": "sum"}

        def calls(times: int, period: float) -> list[float]:
            first = self._soon()
            starts = [first + period * turn for turn in range(times)]
            answers = workers.ask(**request, count=count, dtype=self.options.dtype, starts=starts)
            ends = [max(each) for each in zip(*(answer["ends"] for answer in answers), strict=True)]
            # A call that began late, because the one before it took longer than planned, is left out.
            late = [False, *(end > start for end, start in zip(ends, starts[1:], strict=False))]
            return [end - start for end, start, out in zip(ends, starts, late, strict=True) if not out]

        if not expected:
            calls(1, 0.0)  # opens connections
            expected = calls(1, 0.0)[0]
        period = 1.3 * expected + PAUSE
        times = max(1, min(MOST_CALLS, round(self.options.time / period)))
        return calls(times + 1, period)[1:] or calls(1, 0.0)

    def _soon(self) -> float:
        return time.monotonic() + AHEAD + AHEAD_EACH * self.setting.n

    def _row(self, operation: str, size: int, cells: Sequence[Cell]) -> str:
        chosen = min if self.options.fastest else median
        times = {cell.library: chosen(cell.seconds) for cell in cells}
        first, *others = self.options.libraries
        peer_times = [times[one.name] for one in others if one.peer and one.name in times]
        compared = peer_times or [times[one.name] for one in others if one.name in times]
        ratio = f"{times[first.name] / min(compared):.2f}" if first.name in times and compared else "-"
        texts = [number(1e3 * times[name]) if name in times else "-" for name in self.workers]
        least = number(1e3 * self.setting.least(operation, size))
        return f"| {operation} | {size_name(size) if size else '-'} | {' | '.join(texts)} | {ratio} | {least} |"


# ---- the command ----

Value = TypeVar("Value")


def listed(parse: Callable[[str], Value], expected: str) -> Callable[[str], list[Value]]:
    """Converts an argument like 2,4,8."""

    def convert(text: str) -> list[Value]:
        try:
            return [parse(part) for part in text.split(",")]
        except (ValueError, KeyError):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}") from None

    return convert


def at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if int(text) < least:
            raise ValueError(text)
        return int(text)

    return parse


def from_0(text: str) -> float:
    if not 0 <= float(text) < math.inf:
        raise ValueError(text)
    return float(text)


def one_of(*names: str) -> Callable[[str], str]:
    return {name: name for name in names}.__getitem__


def parser() -> argparse.ArgumentParser:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=EPILOG, formatter_class=kind)
    add = parser.add_argument
    whole = listed(at_least(1), "numbers of at least 1")
    hosts = listed(at_least(2), "numbers of at least 2")
    delays = listed(from_0, "numbers of milliseconds")
    libraries = listed(Library.parse, "libraries as listed below")
    orders = listed(one_of("by-host", "round-robin"), "by-host or round-robin")
    operations = listed(one_of(*NAMES), f"some of {', '.join(NAMES)}")
    sizes = "8,1K,64K,1M,16M"
    rates = ", ".join(f"{rate:g} " + (f"up to {most}" if most < math.inf else "above") for most, rate in RATES)
    add("--hosts", type=hosts, default=[2, 4, 8], metavar="N,...", help="how many hosts (2,4,8)")
    add("--per-host", type=whole, default=[1], metavar="N,...", help="how many ranks on each host (1)")
    add("--delay", type=delays, default=[5.0], metavar="MS,...", help="from each host to every other (5)")
    add("--rate", type=from_0, metavar="MBIT", help=f"Mbit/s of each host's interface (hosts: {rates})")
    add("--order", type=orders, default=["by-host"], metavar="NAME,...", help="by-host: 0 0 1 1, round-robin: 0 1 0 1")
    add("--operations", type=operations, default=list(NAMES), metavar="NAME,...", help="(all)")
    add("--sizes", default=sizes, metavar="BYTES,...", help=f"a list, or LOW:HIGH in steps of 8 ({sizes})")
    add("--dtype", choices=ITEMS, default="float32", help="of the arrays (%(default)s)")
    default = "rankwise,gloo,mpich,openmpi"
    add("--libraries", type=libraries, default=libraries(default), metavar="NAME,...", help=f"see below ({default})")
    add("--rounds", type=at_least(1), default=3, metavar="N", help="rounds, each with all libraries (3)")
    add("--time", type=from_0, default=0.3, metavar="S", help="seconds for each library in a round (0.3)")
    where = peers.cache_folder()
    add(
        "--peer-env", type=Path, default=where, metavar="DIR", help="the folder of the MPIs' environments (%(default)s)"
    )
    add("--fastest", action="store_true", help="print the fastest call, not the median: for a busy machine")
    add("--json", type=Path, metavar="FILE", help="write the seconds of every call there")
    return parser


def options_of(words: Sequence[str] | None) -> argparse.Namespace:
    reader = parser()
    options = reader.parse_args(words)
    try:
        options.sizes = parse_sizes(options.sizes, 8)
    except ValueError as error:
        reader.error(f"argument --sizes: {error}")
    if options.rate == 0:
        reader.error("argument --rate: expected a number above 0, got 0")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        reader.error(f"argument --json: there is no folder {options.json.parent}")
    return options


def settings(options: argparse.Namespace) -> list[Setting]:
    combined = product(options.hosts, options.per_host, options.delay, options.order)
    return [
        Setting(hosts, each, delay, options.rate or next(rate for most, rate in RATES if hosts <= most), order)
        for hosts, each, delay, order in combined
    ]


def terminated(signum: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


def main(words: Sequence[str] | None = None) -> int:
    options = options_of(words)
    signal.signal(signal.SIGTERM, terminated)
    chosen = settings(options)
    progress = Progress(sys.stderr)
    sizes = [len(options.sizes) if OPERATIONS[name].has_bytes else 1 for name in options.operations]
    progress.points = len(chosen) * sum(sizes)
    machine = Machine.read()
    print(f"machine: {machine}", flush=True)
    cells: list[Cell] = []
    try:
        for setting in chosen:
            for some in Hosts(setting, options, progress).measure():
                cells += some
    except (CannotMake, WorkersError, OSError) as error:
        progress.clear()
        note(f"hosts.py: error: {error}")
        return 1
    except KeyboardInterrupt:
        progress.clear()
        note("hosts.py: stopped")
        return 130
    finally:
        if options.json is not None:
            document = {"machine": asdict(machine), "load": os.getloadavg(), "cells": [asdict(cell) for cell in cells]}
            options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
