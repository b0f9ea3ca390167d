"""Whether one revision of rankwise is slower than another, by interleaved measurements of both.

    python benchmarks/compare.py main              main (old) and this working tree (new)
    python benchmarks/compare.py v0.1.0 main       two revisions, the old one first
    python benchmarks/compare.py main --times 3    three runs, each with new ranks
    python benchmarks/compare.py main --quick      a few points on 2 ranks: does the comparison work?

Each revision is taken out of git, built and installed in an environment of its own, all of it in a
temporary folder that is removed at the end, also after Ctrl-C. The path of a Python interpreter in
place of a revision stands for the rankwise that is installed there, which saves the build.

Both revisions' ranks stay for a whole run. At each operation and size the measurements of the two are
interleaved, as `rankwise bench` does with peers, so that a change in the machine's speed affects both;
every second run begins with the new revision. A cell is one operation at one size on one number of
ranks, with arrays that are either reused from call to call or written before each call. Its ratio is
the new median time over the old one: below 1 the new revision is faster.

It prints the geometric mean of all ratios and each cell whose ratio is above 1.10. The exit status is
1 if the mean is above 1.02 or if one cell is above 1.10 in every run, and 2 if a revision cannot be
built or measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from types import FrameType
from typing import NoReturn

from rankwise.tools.bench.cases import OPERATIONS, parse_sizes, size_name
from rankwise.tools.bench.report import Machine, Progress, note, number
from rankwise.tools.bench.timing import Bench, Contender
from rankwise.tools.bench.workers import Launch, Workers, WorkersError

ROOT = Path(__file__).resolve().parents[1]
OLD, NEW = "old", "new"
WORKING_TREE = "the working tree"
CELL_LIMIT = 1.10  # the ratio above which a cell is listed
MEAN_LIMIT = 1.02
DTYPE = "float32"
QUICK = {"ranks": [2], "sizes": "8,64K", "time": 0.02}


class CompareError(Exception):
    """A revision cannot be built or measured; says why."""


@dataclass(frozen=True)
class Cell:
    ranks: int
    operation: str
    size: int
    fresh: bool

    def __str__(self) -> str:
        size = size_name(self.size) if self.size else "-"
        return f"{self.operation:<15}{size:>6}  {self.ranks} ranks  {'fresh' if self.fresh else 'reused':<6}"


Medians = dict[str, float]  # seconds of a call, by revision: OLD and NEW
Run = dict[Cell, Medians]


# ---- building ----


def git(*words: str) -> bytes:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False)
    if done.returncode:
        raise CompareError(f"git {' '.join(words)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def extract(revision: str, folder: Path) -> str:
    """Put the files of a revision, or those of the working tree, in `folder`; returns what to call it."""
    folder.mkdir()
    if revision == WORKING_TREE:
        for name in git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0"):
            if name and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        return WORKING_TREE
    commit = git("rev-parse", "--verify", "--short", f"{revision}^{{commit}}").decode().strip()
    archive = folder.with_suffix(".zip")
    git("archive", f"--output={archive}", commit)
    shutil.unpack_archive(archive, folder)
    return revision if commit.startswith(revision) else f"{revision} ({commit})"


def install(sources: Path, environment: Path) -> Path:
    """Build rankwise from `sources` into a new environment that borrows NumPy from this one; its interpreter."""
    run([sys.executable, "-m", "venv", "--without-pip", environment])
    packages = next(environment.glob("lib/python*/site-packages"))
    spec = importlib.util.find_spec("numpy")
    assert spec is not None
    assert spec.origin is not None
    # A folder named in a .pth file has its own .pth files ignored, so this environment's rankwise stays out of sight.
    (packages / "numpy.pth").write_text(f"{Path(spec.origin).parents[1]}\n")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    tools = all(importlib.util.find_spec(name) for name in ("scikit_build_core", "nanobind"))
    run([*pip, *["--no-build-isolation"] * tools, "--target", packages, sources])
    return environment / "bin" / "python"


def run(command: Sequence[str | Path]) -> None:
    # pip's own temporary folders go into ours, where nothing outlives an interrupted build.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # CMake may be there alone
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir(), "PATH": path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise CompareError("\n".join([f"{' '.join(map(str, command))} failed:", *lines[-20:]]))


def interpreter_of(revision: str, name: str, folder: Path) -> Path:
    """A Python interpreter in whose environment this revision is installed."""
    if os.access(revision, os.X_OK) and Path(revision).is_file():
        note(f"{name}: the rankwise of {revision}")
        return Path(revision).absolute()
    title = extract(revision, folder / f"{name}-sources")
    note(f"{name}: building {title}")
    return install(folder / f"{name}-sources", folder / name)


# ---- measuring ----


class Comparison:
    """Both revisions, and how they are measured. interpreters: by revision."""

    def __init__(self, interpreters: dict[str, Path], options: argparse.Namespace, folder: Path) -> None:
        self.interpreters, self.options, self.folder = interpreters, options, folder
        self.machine = Machine.read()
        self.progress = Progress(sys.stderr)
        per_size = sum(OPERATIONS[name].has_bytes for name in options.operations)
        points = per_size * len(options.sizes) * 2 + len(options.operations) - per_size
        self.progress.points = options.times * len(options.ranks) * points

    def run(self, index: int) -> Run:
        """All cells once."""
        found: Run = {}
        for n in self.options.ranks:
            with ExitStack() as stack:
                contenders = list(self._start(n, stack))
                for fresh in (False, True):
                    found |= self._with_ranks(n, contenders[:: -1 if index % 2 else 1], fresh)
        return found

    def _start(self, n: int, stack: ExitStack) -> Iterator[Contender]:
        started = {}
        for name, python in self.interpreters.items():
            launcher = (str(python), "-m", "rankwise", "run", "-n", "{n}")
            launch = Launch("rankwise", launcher, environment={"PYTHONPATH": ""})
            started[name] = stack.enter_context(Workers(launch, n, self.folder))
        for name, workers in started.items():
            self.progress.show(f"starting {n} ranks of the {name} revision")
            workers.meet()
            yield Contender(name, workers)

    def _with_ranks(self, n: int, contenders: list[Contender], fresh: bool) -> Run:
        where = ""
        bench = Bench(
            contenders=contenders,
            n=n,
            cores=self.machine.cores,
            memory=self.machine.memory,
            dtype=DTYPE,
            op="sum",
            seconds=self.options.time,
            check=False,
            fresh=fresh,
            failed=failed,
            progress=lambda what: self.progress.show(f"{where}{what}"),
        )
        bench.prepare()
        found: Run = {}
        for name in self.options.operations:
            operation = OPERATIONS[name]
            if fresh and not operation.has_bytes:
                continue
            for count in bench.counts(operation, self.options.sizes):
                where = f"{name} of {count} elements, {n} ranks, {'fresh' if fresh else 'reused'} arrays: "
                for result in bench.point(operation, count):
                    cell = Cell(n, name, result.size, fresh)
                    found.setdefault(cell, {})[result.contender] = result.times.median
                self.progress.done += 1
        self.progress.clear()
        for skipped in bench.skipped:
            note(f"left out: {skipped}")
        return found


def failed(name: str, why: str) -> NoReturn:
    raise CompareError(f"the {name} revision's ranks failed: {why}")


# ---- reporting ----


def report(runs: Sequence[Run]) -> tuple[str, bool]:
    """The text that is printed at the end, and whether the new revision is slower."""
    ratios = {cell: [run[cell][NEW] / run[cell][OLD] for run in runs] for cell in runs[0]}
    means = [geometric_mean([values[i] for values in ratios.values()]) for i in range(len(runs))]
    mean = geometric_mean(means)
    listed = {cell: values for cell, values in ratios.items() if max(values) > CELL_LIMIT}
    always = [cell for cell, values in listed.items() if min(values) > CELL_LIMIT]
    each = f" (by run {', '.join(f'{one:.3f}' for one in means)})" if len(runs) > 1 else ""
    lines = [f"geometric mean of new / old over {len(ratios)} cells: {mean:.3f}{each}"]
    for name in dict.fromkeys(cell.operation for cell in ratios):
        values = [one for cell, some in ratios.items() if cell.operation == name for one in some]
        lines.append(f"  {name:<15}{geometric_mean(values):.3f}")
    lines.append(f"cells above {CELL_LIMIT:.2f}: {len(listed)}")
    for cell, values in sorted(listed.items(), key=lambda item: -geometric_mean(item[1])):
        old, new = (min(run[cell][name] for run in runs) * 1e6 for name in (OLD, NEW))
        times = f"{number(old):>8} us -> {number(new):>8} us"
        marked = "  in every run" if len(runs) > 1 and cell in always else ""
        lines.append(f"  {cell}  {times}  {'  '.join(f'{one:.2f}' for one in values)}{marked}")
    return "\n".join(lines), mean > MEAN_LIMIT or bool(always)


def as_json(runs: Sequence[Run]) -> str:
    rows = [
        {"run": index, **vars(cell), "old_us": medians[OLD] * 1e6, "new_us": medians[NEW] * 1e6}
        for index, run in enumerate(runs)
        for cell, medians in run.items()
    ]
    return json.dumps(rows, indent=1) + "\n"


# ---- the command ----


def parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("old", metavar="OLD", help="a revision that git knows, or a Python interpreter")
    add("new", metavar="NEW", nargs="?", default=WORKING_TREE, help="the same (default: the working tree)")
    add("-n", "--ranks", metavar="N", type=numbers, default=[2, 4], help="numbers of ranks (default 2,4)")
    add("--operations", metavar="NAMES", type=names, default=list(OPERATIONS), help="barrier,all_reduce (default: all)")
    add("--sizes", default="8:64M", metavar="LOW:HIGH", help="bytes, or a list: 8,1K,1M (default 8:64M)")
    add("--factor", type=int, default=4, metavar="F", help="between sizes, from HIGH downwards (default 4)")
    add("--time", type=float, default=0.1, metavar="S", help="seconds for each revision at each cell (default 0.1)")
    add("--times", type=int, default=1, metavar="K", help="runs through all cells (default 1)")
    add("--quick", action="store_true", help=f"{QUICK['sizes']} bytes on 2 ranks, {QUICK['time']} s for each cell")
    add("--json", type=Path, metavar="FILE", help="write the times of every cell there")
    return parser


def numbers(text: str) -> list[int]:
    if not all(part.isdecimal() and int(part) > 1 for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"expected numbers of ranks of at least 2, got {text!r}")
    return [int(part) for part in text.split(",")]


def names(text: str) -> list[str]:
    unknown = set(text.split(",")) - set(OPERATIONS)
    if unknown:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(OPERATIONS)}, got {', '.join(sorted(unknown))}")
    return text.split(",")


def options_of(words: Sequence[str] | None) -> argparse.Namespace:
    reader = parser()
    options = reader.parse_args(words)
    if options.quick:
        vars(options).update(QUICK)
    if options.times < 1 or options.factor < 2 or not options.time > 0:
        reader.error("expected --times of at least 1, --factor of at least 2 and --time above 0")
    try:
        options.sizes = parse_sizes(options.sizes, options.factor)
    except ValueError as error:
        reader.error(f"argument --sizes: {error}")
    return options


def terminated(signum: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


def main(words: Sequence[str] | None = None) -> int:
    options = options_of(words)
    signal.signal(signal.SIGTERM, terminated)
    try:
        with tempfile.TemporaryDirectory(prefix="rankwise-compare-") as name:
            folder = Path(name)
            tempfile.tempdir = name
            revisions = {OLD: options.old, NEW: options.new}
            interpreters = {name: interpreter_of(revision, name, folder) for name, revision in revisions.items()}
            comparison = Comparison(interpreters, options, folder)
            print(f"machine: {comparison.machine}", flush=True)
            if comparison.machine.load > comparison.machine.cores / 2:
                note("the machine is busy with other things: ratios of single cells mean little")
            runs = []
            for index in range(options.times):
                note(f"run {index + 1} of {options.times}")
                runs.append(comparison.run(index))
            text, slower = report(runs)
            print(text)
            if options.json is not None:
                options.json.write_text(as_json(runs))
            return int(slower)
    except (CompareError, WorkersError, OSError) as error:
        note(f"compare.py: error: {error}")
        return 2
    except KeyboardInterrupt:
        note("compare.py: stopped")
        return 130


if __name__ == "__main__":
    sys.exit(main())
