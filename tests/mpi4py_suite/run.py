"""mpi4py's own tests on rankwise's mpi4py: `make test-all PART=mpi4py`.

    python run.py [--ranks 1,2,3,4] [--folder build/mpi4py] [FILE...]

They come with the source distribution of mpi4py, which is downloaded, and use the parts of mpi4py that are Python
alone. A table says for each file how many tests passed on every number of ranks. The exit code is 1 if a test of the
files that must pass fails and is not in LEFT_OUT. Of the other files the counts are printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from os import environ
from pathlib import Path

VERSION = "4.1.2"
MUST_PASS = (
    "cco_buf", "cco_obj", "cco_vec", "p2p_obj", "p2p_buf", "p2p_obj_matched", "p2p_buf_matched", "msgzero", "comm",
    "group", "op", "status", "request",
)  # fmt: skip
OTHERS = (
    "cco_nb_buf", "cco_nb_vec", "cco_pr_buf", "cco_pr_vec", "comm_topo", "datatype", "msgspec", "pack", "info",
    "exceptions", "pickle", "environ", "objmodel", "subclass", "buffer", "util_dtlib", "util_pkl5", "util_sync",
    "util_pool", "threads",
)  # fmt: skip
LEFT_OUT = {
    "p2p_buf": {"testConstructor": "it makes a request from a C handle"},
    "p2p_obj": {"testCommLock": "it looks for the locks that mpi4py itself uses"},
    "op": {"testCreateMany": "it makes an operation from a C handle"},
}
"""The tests that are left out, by file, and why. Arrays that only claim to be on a GPU are left out of all."""

SECONDS, OTHER_SECONDS = 240, 60
"""After which a file that must pass counts as hung, and another one."""


@dataclass
class Counts:
    passed: int
    skipped: int
    failed: dict[str, str]
    """The last line of each error, by test."""

    def __str__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"{self.passed}" + (f" ({self.skipped} skipped{failed})" if self.skipped or failed else "")


def fetch(folder: Path) -> tuple[Path, Path]:
    """The folder of mpi4py's tests, and the one in which its package can be imported."""
    source, package = folder / f"mpi4py-{VERSION}", folder / "site"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    if not source.exists():
        words = ["download", "--no-deps", "--no-binary", "mpi4py", "--dest", str(folder), f"mpi4py=={VERSION}"]
        subprocess.run([*pip, *words], check=True)
        with tarfile.open(folder / f"mpi4py-{VERSION}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    if not package.exists():
        subprocess.run([*pip, "install", "--no-deps", "--target", str(package), f"mpi4py=={VERSION}"], check=True)
    return source / "test", package


def run(name: str, n: int, tests: Path, package: Path, results: Path) -> Counts:
    """One file on n ranks. A test has passed if it has on every rank."""
    results.mkdir(parents=True, exist_ok=True)
    prefix = results / f"{name}.{n}"
    words = ["run", "-n", str(n), "--timeout", "60", "--trace", "none", "--mpi4py"]
    program = [str(Path(__file__).with_name("rank.py")), str(tests), f"test_{name}.py", str(prefix)]
    left_out = [f".{test}" for test in LEFT_OUT.get(name, {})]
    env = {**environ, "PYTHONPATH": str(package)}
    seconds = SECONDS if name in MUST_PASS else OTHER_SECONDS
    try:
        done = subprocess.run(
            [sys.executable, "-m", "rankwise", *words, *program, *left_out],
            env=env, capture_output=True, text=True, timeout=seconds,
        )  # fmt: skip
        ended = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]
    except subprocess.TimeoutExpired:
        ended = f"not complete after {seconds} s"
    ranks = []
    for rank in range(n):
        file = Path(f"{prefix}.{rank}")
        ranks.append(json.loads(file.read_text()) if file.exists() else {})
        file.unlink(missing_ok=True)
    failed = {"the file": ended} if ended else {}
    counts = Counts(0, 0, failed)
    for test in sorted(set().union(*ranks)):
        outcomes = [each.get(test, "it did not run on every rank") for each in ranks]
        bad = [outcome for outcome in outcomes if not outcome.startswith(("passed", "skipped"))]
        if bad:
            failed[test] = bad[0].strip().splitlines()[-1]
        elif all(outcome == "passed" for outcome in outcomes):
            counts.passed += 1
        else:
            counts.skipped += 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2,3,4", help="numbers of ranks, between commas")
    parser.add_argument("--folder", type=Path, default=Path("build/mpi4py"), help="where mpi4py is kept")
    parser.add_argument("files", nargs="*", default=[*MUST_PASS, *OTHERS], metavar="FILE")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    tests, package = fetch(folder)
    sizes = [int(n) for n in options.ranks.split(",")]
    print(f"{'passed on ranks':<18}" + "".join(f"{n:>28}" for n in sizes))
    wrong = []
    for name in options.files:
        found = [run(name, n, tests, package, folder / "results") for n in sizes]
        print(f"{name:<18}" + "".join(f"{each!s:>28}" for each in found), flush=True)
        if name in MUST_PASS:
            for n, each in zip(sizes, found, strict=True):
                wrong += [f"{test} on {n} ranks: {why}" for test, why in each.failed.items()]
    for name, known in LEFT_OUT.items():
        for test, why in known.items():
            print(f"left out: {name}, {test}: {why}")
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
