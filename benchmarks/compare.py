"""Whether one revision of rankwise is slower than another, by interleaved measurements of both.

    python benchmarks/compare.py main              main (old) and this working tree (new)
    python benchmarks/compare.py v0.1.0 main       two revisions, the old one first
    python benchmarks/compare.py main --runs 3     three runs, each with new ranks
    python benchmarks/compare.py main -n 2 --sizes 8,64K --time 0.02     quickly: does the comparison work?

Each revision is taken out of git, built and installed in an environment of its own, all of it in a
temporary folder that is removed at the end, also after Ctrl-C. The path of a Python interpreter in
place of a revision stands for the rankwise that is installed there, which saves the build.

Both revisions are timed by this working tree's tools/bench, through the public interface: their ranks stay for a whole
run, and at each operation and size the measurements of the two are interleaved, so that a change in the machine's speed
affects both; every second run begins with the new revision. A cell is one operation at one size on one number of
ranks, with arrays that are either reused from call to call or written before each call. Its ratio is
the new median time over the old one: below 1 the new revision is faster.

It prints the geometric mean of all ratios, the worst cell, and the cells whose ratio is above 1.10 in every run. The
exit status is 1 if the mean is above 1.02 or if there is such a cell, and 2 if a revision cannot be built or measured.
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
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from rankwise.tools.bench.command import counts, sizes
from rankwise.tools.bench.rank import CASES
from rankwise.tools.bench.report import Machine, Progress, note, number
from rankwise.tools.bench.timing import Bench, Contender
from rankwise.tools.bench.workers import Launch, Workers, WorkersError
from rankwise.tools.cli import terminated

ROOT = Path(__file__).resolve().parents[1]
OLD, NEW = "old", "new"
WORKING_TREE = "the working tree"
CELL_LIMIT = 1.10  # the ratio above which a cell is listed
MEAN_LIMIT = 1.02
OPERATIONS = [case.name for case in CASES.values() if case.kind != "object"]


class CompareError(Exception):
    """A revision cannot be built or measured; says why."""


@dataclass(frozen=True)
class Cell:
    operation: str
    at: str
    ranks: int
    fresh: bool

    def __str__(self) -> str:
        return f"{self.operation:<15}{self.at:>6}  {self.ranks} ranks  {'fresh' if self.fresh else 'reused':<6}"


Run = dict[Cell, dict[str, float]]  # us of a call, by cell and revision: OLD and NEW


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
    execute([sys.executable, "-m", "venv", "--without-pip", environment])
    packages = next(environment.glob("lib/python*/site-packages"))
    spec = importlib.util.find_spec("numpy")
    assert spec is not None
    assert spec.origin is not None
    # A folder named in a .pth file has its own .pth files ignored, so this environment's rankwise stays out of sight.
    (packages / "numpy.pth").write_text(f"{Path(spec.origin).parents[1]}\n")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    tools = all(importlib.util.find_spec(name) for name in ("scikit_build_core", "nanobind"))
    execute([*pip, *["--no-build-isolation"] * tools, "--target", packages, sources])
    return environment / "bin" / "python"


def execute(command: Sequence[str | Path]) -> None:
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


def measure(interpreters: dict[str, Path], options: argparse.Namespace, folder: Path, turned: bool) -> Run:
    """All cells once. turned: the new revision comes first."""
    found: Run = {}
    machine, progress = Machine.read(), Progress(sys.stderr)
    for n in options.ranks:
        with ExitStack() as stack:
            contenders = []
            for name, python in interpreters.items():
                launcher = (str(python), "-m", "rankwise", "run", "-n", "{n}")
                workers = Workers(Launch("rankwise", launcher, environment={"PYTHONPATH": ""}), n, folder)
                stack.callback(workers.close)
                contenders.append(Contender(name, workers))
            for one in contenders:
                one.workers.meet()
            for fresh in (False, True):
                order = contenders[:: -1 if turned else 1]
                bench = Bench(order, n, machine, progress, "float32", options.time, fresh)
                for name in options.operations:
                    for at, count in bench.points(CASES[name], options.sizes) if not (fresh and CASES[name].at) else ():
                        rows = bench.point(CASES[name], at, count)
                        if len(rows) == 2:
                            found[Cell(name, at, n, fresh)] = {row.library: row.median_us for row in rows}
    progress.show("")
    if NEW in progress.left_out or OLD in progress.left_out:
        raise CompareError("only one of the revisions could be measured")
    return found


# ---- reporting ----


def report(runs: Sequence[Run]) -> tuple[str, bool]:
    """The text that is printed at the end, and whether the new revision is slower."""
    ratios = {cell: [run[cell][NEW] / run[cell][OLD] for run in runs] for cell in runs[0]}
    by_run = ", ".join(f"{geometric_mean([values[i] for values in ratios.values()]):.3f}" for i in range(len(runs)))
    mean = geometric_mean([one for values in ratios.values() for one in values])

    def line(cell: Cell) -> str:
        old, new = (min(run[cell][name] for run in runs) for name in (OLD, NEW))
        values = "  ".join(f"{one:.2f}" for one in ratios[cell])
        return f"{cell}  {number(old):>8} us -> {number(new):>8} us  {values}"

    lines = [f"geometric mean of new / old over {len(ratios)} cells: {mean:.3f} (by run {by_run})"]
    for name in dict.fromkeys(cell.operation for cell in ratios):
        values = [one for cell, some in ratios.items() if cell.operation == name for one in some]
        lines.append(f"  {name:<15}{geometric_mean(values):.3f}")
    worst = sorted(ratios, key=lambda cell: -min(ratios[cell]))
    slower = [cell for cell in worst if min(ratios[cell]) > CELL_LIMIT]
    lines.append(f"worst cell: {line(worst[0])}")
    lines.append(f"cells above {CELL_LIMIT:.2f} in every run: {len(slower)}")
    lines += [f"  {line(cell)}" for cell in slower]
    return "\n".join(lines), mean > MEAN_LIMIT or bool(slower)


# ---- the command ----


def names(text: str) -> list[str]:
    unknown = set(text.split(",")) - set(OPERATIONS)
    if unknown:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(OPERATIONS)}, got {', '.join(sorted(unknown))}")
    return text.split(",")


def parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("old", metavar="OLD", help="a revision that git knows, or a Python interpreter")
    add("new", metavar="NEW", nargs="?", default=WORKING_TREE, help="the same (default: the working tree)")
    add("-n", "--ranks", metavar="N", type=counts, default=[2, 4], help="numbers of ranks (default 2,4)")
    add("--operations", metavar="NAMES", type=names, default=OPERATIONS, help="barrier,all_reduce (default: all)")
    add("--sizes", type=sizes, default="8:64M", metavar="LOW:HIGH", help="bytes, or a list: 8,1K,1M (default 8:64M)")
    add("--time", type=float, default=0.1, metavar="S", help="seconds for each revision at each cell (default 0.1)")
    add("--runs", type=int, default=1, metavar="K", help="runs through all cells (default 1)")
    add("--json", type=Path, metavar="FILE", help="write the times of every cell there")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    options = parser().parse_args(words)
    signal.signal(signal.SIGTERM, terminated)
    try:
        with tempfile.TemporaryDirectory(prefix="rankwise-compare-") as name:
            folder = Path(name)
            tempfile.tempdir = name
            revisions = {OLD: options.old, NEW: options.new}
            interpreters = {name: interpreter_of(revision, name, folder) for name, revision in revisions.items()}
            Machine.read().show(if_busy=": ratios of single cells mean little")
            runs = []
            for index in range(options.runs):
                note(f"run {index + 1} of {options.runs}")
                runs.append(measure(interpreters, options, folder, turned=bool(index % 2)))
    except (CompareError, WorkersError, OSError) as error:
        note(f"compare.py: error: {error}")
        return 2
    except KeyboardInterrupt:
        note("compare.py: stopped")
        return 130
    finally:
        tempfile.tempdir = None
    text, slower = report(runs)
    print(text)
    if options.json is not None:
        rows = [{"run": i, **vars(cell), **us} for i, run in enumerate(runs) for cell, us in run.items()]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
