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
table are the share of the rate that plain TCP connections reached, one from each host to the next, all at the same time
(if it is far below 90 %, the machine is too slow or too busy for this rate), and what a rank of each library needed to
meet the others: seconds from the start of its program, open sockets, and memory that it shares with no other process.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import signal
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
sys.path[1:1] = [str(ROOT / "tests")]
from multihost.network import CARD, PORT, CannotMake, Network, rank_variables  # noqa: E402 - the tests' network
from rankwise.tools.bench import libraries  # noqa: E402
from rankwise.tools.bench.command import sizes  # noqa: E402
from rankwise.tools.bench.rank import CASES, Case  # noqa: E402
from rankwise.tools.bench.report import Machine, Progress, note, number, size_name  # noqa: E402
from rankwise.tools.bench.workers import Launch, Workers, WorkersError  # noqa: E402
from rankwise.tools.cli import terminated  # noqa: E402

RANK_PROGRAM = str(Path(__file__).with_name("hosts_rank.py"))
ITEMS = {"float32": 4, "float16": 2}  # bytes of an element, by dtype
RATES = ((2, 500.0), (4, 200.0), (8, 100.0), (math.inf, 50.0))  # (at most so many hosts, Mbit/s)
PAYLOAD, ON_THE_WIRE = 1448, 1538  # bytes of a full TCP segment, and of the Ethernet frame that it takes
STREAM = 1.0  # seconds for which the plain TCP connections should send
MOST_CALLS = 8  # timed calls of one library in a round
PAUSE = 0.004  # seconds between two calls, in addition to the time that they take
AHEAD = 0.01  # seconds within which a request reaches all ranks; AHEAD_EACH more for each rank
AHEAD_EACH = 0.001
NAMES = tuple(case.name for case in CASES.values() if case.kind == "collective")
MPIS = ("mpich", "openmpi")
LIBRARIES = """\
rankwise                  with the backend that rw.init chooses without another launcher
rankwise/BACKEND          with this backend: gloo or hierarchical
rankwise@MPI              under mpiexec, with the backend that rw.init chooses there; MPI: mpich or openmpi
rankwise/BACKEND@MPI      the same with this backend: mpi, gloo or hierarchical
any of these + NAME=ALGORITHM+...   with these algorithms forced, as by RANKWISE_ALGORITHM
gloo                      torch.distributed's, called directly
mpich, openmpi            mpi4py, over TCP between the hosts
"""
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
"""


# ---- the networks and the libraries ----


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


ON_EACH_HOST = "nsenter --target={pid} --net --pid --mount"
# Used instead of ssh: `agent [-x] HOST COMMAND...`. It gives each host a name, by which the MPIs distinguish them.
AGENT = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1; shift
pids=(0 {pids})
exec nsenter --target=${{pids[${{host#host}}]}} --net --pid --mount unshare --uts sh -c "hostname $host; $*"
"""
MPICH = "-launcher ssh -launcher-exec {agent} -iface {card} -hosts {hosts} -ppn {block} -n {n}"
OPEN_MPI = (
    # No tree: a daemon on one host cannot start one on another, because it cannot see the other host's processes.
    "--prtemca plm_ssh_agent {agent} --prtemca plm_ssh_no_tree_spawn 1 --prtemca prte_if_include {card} "
    "--mca pml ob1 --mca btl tcp,sm,self --mca btl_tcp_if_include {card} "
    "--map-by {order}:oversubscribe --bind-to none --host {slots} -n {n}"
)
# Run by the Python of an MPI's environment, so that it also finds this environment's packages.
BORROW = """
import runpy, site, sys
site.addsitedir(sys.argv[1])
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
MPI_ENVIRONMENT = {
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "FI_PROVIDER": "tcp",
    "UCX_LOG_LEVEL": "fatal",
    "HWLOC_HIDE_ERRORS": "2",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Library:
    """One of LIBRARIES. name: as it was given. peer: gloo or an MPI without rankwise. algorithms: forced ones."""

    name: str
    peer: bool
    backend: str
    mpi: str
    algorithms: str = ""

    @classmethod
    def parse(cls, name: str) -> Library:
        """ValueError if `name` is none of LIBRARIES."""
        if name == "gloo":
            return cls(name, True, "", "")
        if name in MPIS:
            return cls(name, True, "", name)
        match = re.fullmatch(r"rankwise(?:/(\w+))?(?:@(mpich|openmpi))?((?:\+\w+=\w+)*)", name)
        if not match:
            raise ValueError(name)
        return cls(name, False, match[1] or "", match[2] or "", match[3][1:].replace("+", ","))

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of rankwise that make the choice."""
        chosen = {"RANKWISE_BACKEND": self.backend, "RANKWISE_ALGORITHM": self.algorithms}
        return {name: value for name, value in chosen.items() if value}


class Launches:
    """The commands that start the ranks of libraries on one network, in one order of ranks.

    placement: each rank's host. folder: for temporary files.
    """

    def __init__(self, network: Network, placement: Sequence[int], folder: Path) -> None:
        self._pids = [host.pid for host in network.hosts]
        self._placement, self._folder = placement, folder
        self._agent = folder / "agent"
        self._agent.write_text(AGENT.format(pids=" ".join(map(str, self._pids))))
        self._agent.chmod(0o700)
        self._port = PORT

    def of(self, library: Library) -> Launch:
        """Raises WorkersError if the library is not installed."""
        if library.mpi:
            return self._mpi(library)
        self._port += 1  # the ranks of several libraries run at the same time
        return self._direct(library)

    def _direct(self, library: Library) -> Launch:
        """A shell starts each rank with the environment that torchrun would give it."""
        if library.peer:
            libraries.peer(library.name)
        lines = []
        for rank, host in enumerate(self._placement):
            variables = rank_variables(self._placement, rank, self._port)
            if library.peer:  # tools/bench/rank.py reads its rank here
                variables |= {"RANKWISE_RANK": str(rank), "RANKWISE_WORLD_SIZE": str(len(self._placement))}
                variables["GLOO_SOCKET_IFNAME"] = CARD
            variables |= library.variables
            words = [f"{name}={value}" for name, value in variables.items()]
            lines.append(f'{ON_EACH_HOST.format(pid=self._pids[host])} env {shlex.join(words)} "$@" &')
        launcher = ("sh", "-c", "\n".join([*lines, "wait"]), "hosts")
        return Launch("gloo" if library.peer else "rankwise", launcher, (sys.executable, RANK_PROGRAM))

    def _mpi(self, library: Library) -> Launch:
        """mpiexec runs in the network of the first host, and starts processes on the others with the agent."""
        found = libraries.peer(library.mpi)
        each = self._placement.count(0)
        names = [f"host{number}" for number in range(1, len(self._pids) + 1)]
        in_blocks = list(self._placement) == sorted(self._placement)
        options = (MPICH if library.mpi == "mpich" else OPEN_MPI).format(
            agent=self._agent,
            card=CARD,
            hosts=",".join(names),
            slots=",".join(f"{name}:{each}" for name in names),
            block=each if in_blocks else 1,
            order="slot" if in_blocks else "node",
            n=len(self._placement),
        )
        first = f"nsenter --target={self._pids[0]} --net unshare --uts"
        command = f'hostname {names[0]}; exec {shlex.quote(found.launcher[0])} {options} "$@"'
        python = found.python if library.peer else (*found.python, "-c", BORROW, sysconfig.get_path("purelib"))
        environment = {**MPI_ENVIRONMENT, **found.environment, "TMPDIR": str(self._folder), **library.variables}
        launcher = (*first.split(), "sh", "-c", command, "hosts")
        return Launch("mpi" if library.peer else "rankwise", launcher, (*python, RANK_PROGRAM), environment)


# ---- measuring ----


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
            self._start(Launches(network, setting.placement, folder), folder, stack)
            reached = f"{100 * self._stream():.0f} %"
            self.progress.print(f"\n{setting}; plain TCP connections reached {reached} of the rate\n")
            self.progress.print("| operation | bytes | " + " | ".join(self.workers) + " | ratio | least |")
            self.progress.print("|---|---:|" + "---:|" * (len(self.workers) + 2))
            for name in self.options.operations:
                for size in [0] if CASES[name].at else self.options.sizes:
                    cells = self._point(CASES[name], size)
                    self.progress.print(self._row(name, size, cells))
                    yield cells

    def _start(self, launches: Launches, folder: Path, stack: ExitStack) -> None:
        for library in self.options.libraries:
            try:
                launch = launches.of(library)
                self.progress.show(f"{self.setting}: starting {library.name}")
                # One library after another, because they all need the cores while they start.
                workers = Workers(launch, self.setting.n, folder)
                stack.callback(workers.close)
                workers.meet()
                answers = workers.ask(do="opening")
            except WorkersError as error:
                self.progress.leave_out(library.name, str(error))
                continue
            self.workers[library.name] = workers
            needed = {name: mean(answer[name] for answer in answers) for name in answers[0]}
            opening = "{seconds:.2f} s, {sockets:.1f} sockets, {megabytes:.1f} MB".format_map(needed)
            self.progress.print(f"{self.setting}: {library.name} ({workers.about}) met in {opening}")
        if not self.workers:
            raise WorkersError("there is no library to measure")

    def _stream(self) -> float:
        """The share of the rate that plain TCP connections reach, one from each host to the next, all at once."""
        setting = self.setting
        firsts = {setting.placement.index(host): host for host in range(setting.hosts)}
        to = [f"10.0.0.{(firsts[rank] + 1) % setting.hosts + 1}" if rank in firsts else "" for rank in range(setting.n)]
        size = round((STREAM + setting.delay / 50) * setting.payload)  # so long that the delay hardly counts
        workers = next(iter(self.workers.values()))
        answers = workers.ask(do="stream", to=to, size=size, start=self._soon() + 0.2)
        rate: float = min(answer["rate"] for answer in answers if answer)
        return rate / setting.payload

    def _point(self, case: Case, size: int) -> list[Cell]:
        """All libraries at one operation and size, their rounds interleaved."""
        item = ITEMS[self.options.dtype]
        n = self.setting.n
        count = 0 if case.at else case.count(size * size // case.total(size, n), item, n)
        at = case.at[0] if case.at else size_name(size)
        point = {"case": case.name, "at": at, "count": count, "dtype": self.options.dtype, "memory": "numpy"}
        cells = {name: Cell(self.setting, name, case.name, size) for name in self.workers}
        for _ in range(self.options.rounds):
            for name, cell in cells.items():
                workers = self.workers[name]
                if not workers.alive:
                    continue
                self.progress.show(f"{self.setting}: {case.name} {at} {name}")
                try:
                    cell.seconds += self._round(workers, point, min(cell.seconds, default=0.0))
                except WorkersError as error:
                    workers.close()
                    self.progress.leave_out(name, str(error))
        return [cell for cell in cells.values() if cell.seconds]

    def _round(self, workers: Workers, point: dict[str, object], expected: float) -> list[float]:
        """The seconds of each timed call. expected: seconds of a call, or 0 if unknown."""

        def calls(times: int, period: float) -> list[float]:
            first = self._soon()
            starts = [first + period * turn for turn in range(times)]
            answers = workers.ask(do="scheduled", starts=starts, **point)
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
        times = {cell.library: median(cell.seconds) for cell in cells}
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
    parse = listed(Library.parse, "libraries as listed below")
    orders = listed(one_of("by-host", "round-robin"), "by-host or round-robin")
    operations = listed(one_of(*NAMES), f"some of {', '.join(NAMES)}")
    rates = ", ".join(f"{rate:g} " + (f"up to {most}" if most < math.inf else "above") for most, rate in RATES)
    add("--hosts", type=hosts, default=[2, 4, 8], metavar="N,...", help="how many hosts (2,4,8)")
    add("--per-host", type=whole, default=[1], metavar="N,...", help="how many ranks on each host (1)")
    add("--delay", type=delays, default=[5.0], metavar="MS,...", help="from each host to every other (5)")
    add("--rate", type=from_0, metavar="MBIT", help=f"Mbit/s of each host's interface (hosts: {rates})")
    add("--order", type=orders, default=["by-host"], metavar="NAME,...", help="by-host: 0 0 1 1, round-robin: 0 1 0 1")
    add("--operations", type=operations, default=list(NAMES), metavar="NAME,...", help="(all)")
    add("--sizes", type=sizes, default="8,1K,64K,1M,16M", metavar="BYTES,...", help="a list, or LOW:HIGH (%(default)s)")
    add("--dtype", choices=ITEMS, default="float32", help="of the arrays (%(default)s)")
    default = "rankwise,gloo,mpich,openmpi"
    add("--libraries", type=parse, default=parse(default), metavar="NAME,...", help=f"see below ({default})")
    add("--rounds", type=at_least(1), default=3, metavar="N", help="rounds, each with all libraries (3)")
    add("--time", type=from_0, default=0.3, metavar="S", help="seconds for each library in a round (0.3)")
    add("--json", type=Path, metavar="FILE", help="write the seconds of every call there")
    return parser


def options_of(words: Sequence[str] | None) -> argparse.Namespace:
    reader = parser()
    options = reader.parse_args(words)
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


def main(words: Sequence[str] | None = None) -> int:
    options = options_of(words)
    signal.signal(signal.SIGTERM, terminated)
    chosen = settings(options)
    progress = Progress(sys.stderr)
    machine = Machine.read()
    print(f"machine: {machine}", flush=True)
    cells: list[Cell] = []
    try:
        for setting in chosen:
            for some in Hosts(setting, options, progress).measure():
                cells += some
    except (CannotMake, WorkersError, OSError) as error:
        progress.show("")
        note(f"hosts.py: error: {error}")
        return 1
    except KeyboardInterrupt:
        progress.show("")
        note("hosts.py: stopped")
        return 130
    finally:
        if options.json is not None:
            document = {"machine": asdict(machine), "cells": [asdict(cell) for cell in cells]}
            options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
