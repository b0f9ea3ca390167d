"""The command line of `rankwise tune`, and the run through all points."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from rankwise._native import thresholds
from rankwise.system.tuning_file import NEVER, NONE, Measured, TuningFile, load, path_of, save
from rankwise.tools.bench import libraries
from rankwise.tools.bench.command import check_operations, start
from rankwise.tools.bench.libraries import ALGORITHMS, launches
from rankwise.tools.bench.rank import CASES
from rankwise.tools.bench.report import OURS, Machine, Progress, algorithm_table, note, size_name
from rankwise.tools.bench.timing import Bench, Contender
from rankwise.tools.bench.workers import WorkersError
from rankwise.tools.cli import Parser, refuse, seconds, terminated, whole
from rankwise.tools.layout import columns
from rankwise.tools.tune.crossing import GAIN, Costs, algorithms_at, points, rules, size_of, threshold

DESCRIPTION = """\
Measure at which sizes each algorithm of the operations is the fastest on this machine, between N ranks
that share memory, and write these thresholds to a file. Each algorithm is measured with arrays that are
reused from call to call and with arrays written before each call, and both count equally. It takes some
minutes; let nothing else run meanwhile.
"""

EPILOG = f"""\
operations: {", ".join(ALGORITHMS)} (all by default)

Use as many ranks as your programs have on one host. There are separate thresholds for each way in which
ranks share the cores: own_cores (no more ranks than cores), shared_cores (more ranks than cores) and
yielded_cores (more, and they can yield their cores to each other, as under rankwise run). A run
measures one of these, and keeps the file's thresholds for the others. A threshold differs from its default
only if that makes the calls whose algorithm changes at least {100 * (GAIN - 1):.0f} % faster on average.

The default file is this user's for this CPU, in $XDG_CONFIG_HOME/rankwise or ~/.config/rankwise, where
rankwise.init finds it. To use another file, set RANKWISE_TUNING=FILE or call rankwise.init(tuning=FILE).
RANKWISE_TUNING=none selects the default thresholds. rankwise doctor shows which file is in force.

examples:
  rankwise tune -n 4                       measure everything, for all later programs of this user
  rankwise tune -n 64 --output big.json    write another file
  rankwise tune all_reduce reduce -n 4     only these thresholds; the file keeps its others
"""


def main(argv: Sequence[str]) -> int:
    """Run `rankwise tune` with these arguments; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(list(argv))
    check_operations(parser, options.operations, list(ALGORITHMS))
    signal.signal(signal.SIGTERM, terminated)
    try:
        return Tune(options.operations or list(ALGORITHMS), options.ranks, options.time, options.output).go()
    except (WorkersError, OSError, ValueError) as error:
        return refuse("tune", str(error))
    except KeyboardInterrupt:
        note("rankwise tune: stopped; no file was written")
        return 130


def _parser() -> Parser:
    parser = Parser(
        prog="rankwise tune",
        usage="rankwise tune [operation ...] -n N [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    add = parser.add_argument
    add("operations", nargs="*", metavar="operation", help="an operation whose thresholds to measure")
    several = whole("a number of ranks of at least 2", 2)
    add("-n", "--ranks", type=several, required=True, metavar="N", help="how many ranks, at least 2")
    add("--output", metavar="FILE", help="the file to write (default: this user's for this CPU)")
    add(
        "--time",
        type=seconds,
        default=0.05,
        metavar="S",
        help="seconds for each algorithm at each point (default 0.05)",
    )
    return parser


class Tune:
    """One run of the command. output: the file, or None for this user's."""

    def __init__(self, operations: Sequence[str], ranks: int, seconds: float, output: str | None) -> None:
        self.rules = rules(operations, ranks)
        self.ranks = ranks
        self.seconds = seconds
        self.machine = Machine.read()
        self.path = output or path_of(self.machine.cpu)
        self.progress = Progress(sys.stderr)

    def go(self) -> int:
        if not self.rules:
            raise ValueError(f"no threshold of these operations is for {self.ranks} ranks")
        before = self._file()
        self.machine.show(if_busy=", so the thresholds may be wrong")
        with ExitStack() as stack:
            contenders = self._start(stack)
            answer = contenders[0].workers.ask(do="algorithms", operation="all_reduce", bytes=8)[0]
            cores: str = answer["cores"]
            costs = self._measure(contenders)
        if not costs:
            why = "; ".join(self.progress.left_out.values()) or "too little memory"
            raise WorkersError(f"nothing was measured: {why}")
        found = self._thresholds(costs, thresholds()[cores])
        earlier = before.measured.get(cores)
        measured = Measured(self.ranks, time.strftime("%Y-%m-%d"), {**(earlier.thresholds if earlier else {}), **found})
        save(self.path, TuningFile(self.machine.cpu, {**before.measured, cores: measured}))
        self._report(cores, found)
        return 0

    def _file(self) -> TuningFile:
        """The file so far. ValueError if it is not a tuning file, is for another CPU, or cannot be written."""
        folder = os.path.dirname(os.path.abspath(self.path))
        while not os.path.lexists(folder):  # save creates the missing folders, but an error must not come that late
            folder = os.path.dirname(folder)
        if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            raise ValueError(f"{self.path} cannot be written: expected {folder} to be a folder that you can write to")
        if not os.path.lexists(self.path):
            return TuningFile(self.machine.cpu, {})
        before = load(self.path, thresholds())
        if before.cpu != self.machine.cpu:
            raise ValueError(f"{self.path} is for another CPU, {before.cpu}; name another file with --output")
        return before

    def _start(self, stack: ExitStack) -> list[Contender]:
        """Start ranks that choose their algorithms as usual, and ranks for each algorithm that the rules compare."""
        usual = {"RANKWISE_TUNING": NONE, "RANKWISE_ALGORITHM": ""}
        ours = replace(libraries.ours("shm"), environment=usual)
        operations = list(points(self.rules))
        compared = {name for rule in self.rules for name in (*rule.below, *rule.above)}
        if self.ranks != 2:
            compared.discard("single_copy_split")
        forced = {name: one for name, one in launches(ours, operations).items() if name in compared}
        return start({OURS: ours, **forced}, self.ranks, stack, self.progress)

    def _measure(self, contenders: list[Contender]) -> Costs:
        wanted = points(self.rules)
        logarithms: dict[tuple[str, int], dict[str, list[float]]] = {}
        for fresh in (False, True):
            bench = Bench(
                contenders=list(contenders),
                n=self.ranks,
                machine=self.machine,
                progress=self.progress,
                dtype="float32",
                seconds=self.seconds,
                fresh=fresh,
                algorithms=True,
            )
            for operation, sizes in wanted.items():
                measured = []
                for block in sizes:
                    names = {OURS, *algorithms_at(operation, block, self.rules)}
                    bench.contenders = [one for one in contenders if one.name in names]
                    size = size_of(operation, block, self.ranks)
                    (point,) = bench.points(CASES[operation], [size])
                    rows = bench.point(CASES[operation], *point)
                    for row in rows:
                        times = logarithms.setdefault((operation, block), {}).setdefault(row.library, [])
                        times.append(math.log(row.median_us))
                    measured += [rows] * bool(rows)
                shown = algorithm_table(measured, ALGORITHMS[operation])
                self.progress.print(f"\n{operation}, {self.ranks} ranks{', fresh arrays' * fresh}; us\n{shown}")
        return {
            point: {name: math.exp(sum(times) / 2) for name, times in by_name.items() if len(times) == 2}
            for point, by_name in logarithms.items()
        }

    def _thresholds(self, costs: Costs, defaults: dict[str, int]) -> dict[str, int]:
        found = {rule.threshold: threshold(rule, costs, self.ranks, defaults[rule.threshold]) for rule in self.rules}
        return {name: value for name, value in found.items() if value is not None}

    def _report(self, cores: str, found: dict[str, int]) -> None:
        rows = [("threshold", "default", "here")]
        rows += [(name, _size(thresholds()[cores][name]), _size(value)) for name, value in found.items()]
        self.progress.print(f"\nthresholds, {cores}:")
        print("\n".join(columns(rows, "<>>")))
        use = (
            "rankwise.init uses it"
            if self.path == path_of(self.machine.cpu)
            else f"RANKWISE_TUNING={self.path} uses it"
        )
        print(f"written to {self.path}; {use}")


def _size(threshold: int) -> str:
    return "never" if threshold == NEVER else size_name(threshold)
