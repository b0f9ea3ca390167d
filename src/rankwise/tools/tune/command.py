"""The command line of `rankwise tune`, the run through all points, and the thresholds that follow from the times."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from rankwise._native import thresholds
from rankwise.system.tuning_file import NEVER, NONE, Measured, TuningFile, load, path_of, save
from rankwise.tools.bench import libraries
from rankwise.tools.bench.command import check_operations, start
from rankwise.tools.bench.libraries import ALGORITHMS, launches
from rankwise.tools.bench.rank import CASES
from rankwise.tools.bench.report import OURS, Machine, Progress, algorithm_table, size_name
from rankwise.tools.bench.timing import Bench, Contender
from rankwise.tools.bench.workers import WorkersError
from rankwise.tools.cli import Parser, option, seconds, until_stopped, whole
from rankwise.tools.layout import columns

# ---- the thresholds between algorithms, from their times at several sizes ----
#
# A block is one rank's part of an array, and the whole array for all_reduce, broadcast, reduce and reduce_scatter, as
# in the tuning table.

GAIN = 1.05  # a threshold moves only if the calls whose algorithm changes become this much faster on average
BY_BLOCK = ("scatter", "all_to_all")
"""The operations for which the benchmark counts the whole array, and the tuning table one block of it."""

Costs = Mapping[tuple[str, int], Mapping[str, float]]
"""{(operation, block): {algorithm: time of a call}}."""


@dataclass(frozen=True)
class Rule:
    """A threshold, below and above which different algorithms run. On each side, the fastest that can run counts.

    low, high: the smallest and largest block that is measured, in bytes. up_to: the threshold is the last size of
    `below`, not the first of `above`. divided: the table divides it by the number of ranks. least: how many
    ranks the rule needs.
    """

    threshold: str
    operation: str
    below: tuple[str, ...]
    above: tuple[str, ...]
    low: int
    high: int
    up_to: bool = False
    divided: bool = False
    least: int = 2


_KIB, _MIB = 1 << 10, 1 << 20
_SLOTS = ("flat", "staged")
_BLOCKS = ("all_gather", "gather", "scatter", "all_to_all")

# The registered_ thresholds have no rule: above them, a call on private arrays must first find out that the arrays are
# not registered, and the times of forced algorithms do not include this.
RULES = (
    Rule("flat_all_reduce", "all_reduce", ("flat",), ("staged",), 128, 64 * _KIB, up_to=True, divided=True),
    Rule("flat_reduce", "reduce", ("flat",), ("staged",), 128, _MIB, up_to=True, least=3),
    Rule("single_copy_all_reduce", "all_reduce", _SLOTS, ("single_copy",), 32 * _KIB, 16 * _MIB),
    Rule("single_copy_reduce", "reduce", _SLOTS, ("single_copy",), 32 * _KIB, 16 * _MIB),
    Rule("single_copy_reduce_scatter", "reduce_scatter", _SLOTS, ("single_copy",), 32 * _KIB, 16 * _MIB),
    Rule("single_copy_broadcast", "broadcast", ("staged",), ("single_copy", "single_copy_split"), 4 * _KIB, 4 * _MIB),
    *(
        Rule(f"single_copy_{operation}", operation, ("staged",), ("single_copy",), 4 * _KIB, _MIB)
        for operation in _BLOCKS
    ),
    Rule("put_all_gather", "all_gather", ("staged", "single_copy"), ("single_copy_put",), 32 * _KIB, 4 * _MIB),
)


def rules(operations: Sequence[str], ranks: int) -> list[Rule]:
    """The rules for these operations, on so many ranks."""
    return [rule for rule in RULES if rule.operation in operations and rule.least <= ranks]


def blocks(rule: Rule) -> list[int]:
    """The powers of two at which the rule is measured."""
    return [1 << power for power in range(rule.low.bit_length() - 1, rule.high.bit_length())]


def size_of(operation: str, block: int, ranks: int) -> int:
    """The size as the benchmark counts it."""
    return block * ranks if operation in BY_BLOCK else block


def algorithms_at(operation: str, block: int, chosen: Sequence[Rule]) -> set[str]:
    """The algorithms that these rules compare at this point."""
    return {
        name
        for rule in chosen
        if operation == rule.operation and rule.low <= block <= rule.high
        for name in (*rule.below, *rule.above)
    }


def points(chosen: Sequence[Rule]) -> dict[str, list[int]]:
    """What these rules need: the blocks of each operation, in the order in which the operations are measured."""
    points_of: dict[str, set[int]] = {}
    for rule in sorted(chosen, key=lambda rule: list(CASES).index(rule.operation)):
        points_of.setdefault(rule.operation, set()).update(blocks(rule))
    return {operation: sorted(sizes) for operation, sizes in points_of.items()}


def threshold(rule: Rule, costs: Costs, ranks: int, default: int) -> int | None:
    """The threshold with which the measured calls are the fastest, or the default if no other is clearly faster.

    None if nothing was measured on one side, as with single copy where the system forbids it.
    """
    gains = _gains(rule, costs)
    if not gains:
        return None
    sizes = list(gains)
    edge = default // ranks if rule.divided else default
    usual = next((i for i, size in enumerate(sizes) if (size > edge if rule.up_to else size >= edge)), len(sizes))
    # `above` from the block of this number on; of equal ones the last, as it leaves more to the simpler algorithm.
    best = max(range(len(sizes), -1, -1), key=lambda first: sum(list(gains.values())[first:]))
    moved = list(gains.values())[min(best, usual) : max(best, usual)]
    if not moved or abs(sum(moved)) / len(moved) < math.log(GAIN):
        return default
    if rule.up_to:
        last = sizes[best - 1] if best else sizes[0] // 2
        return last * ranks if rule.divided else last
    return sizes[best] if best < len(sizes) else NEVER


def _gains(rule: Rule, costs: Costs) -> dict[int, float]:
    """By block: the logarithm of below / above."""
    gains: dict[int, float] = {}
    for block in blocks(rule):
        measured = costs.get((rule.operation, block), {})
        below, above = ([measured[name] for name in side if name in measured] for side in (rule.below, rule.above))
        if below and above:
            gains[block] = math.log(min(below) / min(above))
    return gains


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

    def run() -> int:
        return Tune(options.operations or list(ALGORITHMS), options.ranks, options.time, options.output).go()

    return until_stopped("tune", run, (WorkersError, OSError, ValueError), "stopped; no file was written")


def _parser() -> Parser:
    return Parser(
        prog="rankwise tune",
        usage="rankwise tune [operation ...] -n N [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
        options=(
            option("operations", nargs="*", metavar="operation", help="an operation whose thresholds to measure"),
            option(
                "-n",
                "--ranks",
                type=whole("a number of ranks of at least 2", 2),
                required=True,
                metavar="N",
                help="how many ranks, at least 2",
            ),
            option("--output", metavar="FILE", help="the file to write (default: this user's for this CPU)"),
            option(
                "--time",
                type=seconds,
                default=0.05,
                metavar="S",
                help="seconds for each algorithm at each point (default 0.05)",
            ),
        ),
    )


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
            answer = contenders[0].workers.ask(do="algorithms", operation="all_reduce", size=8)[0]
            cores: str = answer["cores"]
            costs = self._measure(contenders)
        if not costs:
            why = "; ".join(self.progress.left_out.values()) or "too little memory"
            raise WorkersError(f"nothing was measured: {why}")
        chosen = self._thresholds(costs, thresholds()[cores])
        earlier = before.measured.get(cores)
        measured = Measured(
            self.ranks, time.strftime("%Y-%m-%d"), {**(earlier.thresholds if earlier else {}), **chosen}
        )
        save(self.path, TuningFile(self.machine.cpu, {**before.measured, cores: measured}))
        self._report(cores, chosen)
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
        forced = {name: launch for name, launch in launches(ours, operations).items() if name in compared}
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
                    bench.contenders = [contender for contender in contenders if contender.name in names]
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
        values = {rule.threshold: threshold(rule, costs, self.ranks, defaults[rule.threshold]) for rule in self.rules}
        return {name: value for name, value in values.items() if value is not None}

    def _report(self, cores: str, values: dict[str, int]) -> None:
        rows = [("threshold", "default", "here")]
        rows += [(name, _size(thresholds()[cores][name]), _size(value)) for name, value in values.items()]
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
