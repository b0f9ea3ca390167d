"""Repeats the tests that a change adds or edits, in random order, beside a busy loop on each core.

    python tests/steady.py [--base REV] [--times 50] [TEST...]

The tests are those that are new or differ in the commit REV, or the ones that are named, as for pytest; the name of a
native test is its source file, native/tests/NAME_test.cpp. A test that kills, stops or times out ranks stays in
`make test` only if it passes this; otherwise it is marked slow. This leaves out tests that are marked slow or gpu.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NATIVE = "native/tests/"
NATIVE_BUILDS = {"build/native": {}, "build/tsan": {"RANKWISE_SHORT": "1"}}  # as `make test` runs them
NATIVE_LIMIT = 270  # seconds
BUSY = "import os\nwhile os.getppid() == {parent}: pass"  # ends when this process does, even if that is killed


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def changed_tests(base: str) -> list[str]:
    """The tests of the working tree that are not the same in the commit `base`."""
    files = git("diff", "--name-only", "--diff-filter=d", base, "--", "tests", NATIVE).split()
    new = git("ls-files", "--others", "--exclude-standard", "--", "tests", NATIVE).split()
    tests = []
    for file in [*files, *new]:
        name = Path(file).name
        if file.startswith(NATIVE) and name.endswith("_test.cpp"):
            tests.append(file)
        elif re.fullmatch(r"test_.*\.py", name):
            text = (ROOT / file).read_text()
            lines = set(range(1, text.count("\n") + 2)) if file in new else changed_lines(base, file)
            tests += [file if test is None else f"{file}::{test}" for test in tests_at(text, lines)]
    return tests


def changed_lines(base: str, file: str) -> set[int]:
    """The lines that are not in the commit `base`, and those on either side of lines that have gone."""
    lines: set[int] = set()
    diff = git("diff", "--unified=0", base, "--", file)
    for start, count in re.findall(r"^@@ \S+ \+(\d+)(?:,(\d+))? @@", diff, re.MULTILINE):
        first, n = int(start), int(count or 1)
        lines.update(range(first, first + (n or 2)))  # with n = 0, `first` is the line before those that have gone
    return lines


def tests_at(text: str, lines: set[int]) -> list[str | None]:
    """The tests that contain any of these lines; [None], meaning the whole file, if code that they share does."""
    found: list[str | None] = []
    for statement in ast.parse(text).body:
        decorators = getattr(statement, "decorator_list", [])
        begin = min(node.lineno for node in [statement, *decorators])
        assert statement.end_lineno is not None
        if lines.isdisjoint(range(begin, statement.end_lineno + 1)):
            continue
        if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test_"):
            found.append(statement.name)
        elif not isinstance(statement, (ast.Import, ast.ImportFrom)):
            return [None]
    return found


@contextmanager
def busy_cores() -> Iterator[None]:
    """A loop on each core that this process may use."""
    command = [sys.executable, "-c", BUSY.format(parent=os.getpid())]
    loops = [subprocess.Popen(command) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_python(tests: list[str], times: int) -> bool:
    """Whether every test passed each time."""
    seed = random.randrange(1 << 30)  # for the order, which must be the same in all workers of pytest-xdist
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow and not gpu", "--count", str(times)]
    command += ["--random-order-bucket=global", f"--random-order-seed={seed}"]
    files = {test.partition("::")[0] for test in tests}
    workers = 3 if any((ROOT / file).is_dir() for file in files) else min(3, len(files))  # `make test` has three
    command += ["-n", str(workers), "--dist", "loadfile", "--max-worker-restart", "0", *tests]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if status == 5:
        print("not tested: every one of these tests is marked slow, or needs a GPU")
    return status in (0, 5)


def run_native(tests: list[str], times: int) -> bool:
    names = "|".join(Path(test).stem for test in tests)
    command = ["ctest", "-R", f"^({names})$", "--schedule-random", "--repeat", f"until-fail:{times}"]
    # Without --no-tests=error, because the build with ThreadSanitizer has no kernels_test.
    command += ["-j", "3", "--output-on-failure", "--timeout", str(NATIVE_LIMIT + 30)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "RANKWISE_TEST_LIMIT": str(NATIVE_LIMIT)}
    statuses = [
        subprocess.run(
            [*command, "--test-dir", build], cwd=ROOT, env={**environment, **variables}, check=False
        ).returncode
        for build, variables in NATIVE_BUILDS.items()
    ]
    return not any(statuses)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="HEAD", metavar="REV", help="the commit before the change (default: HEAD)")
    parser.add_argument("--times", type=int, default=50, metavar="N", help="runs of each test (default: 50)")
    parser.add_argument("tests", nargs="*", metavar="TEST")
    options = parser.parse_args()
    tests = options.tests or changed_tests(options.base)
    for file in {test.partition("::")[0] for test in tests}:
        if not (ROOT / file).exists():
            parser.error(f"there is no {file}; expected tests/.../test_NAME.py[::NAME] or {NATIVE}NAME_test.cpp")
    if not tests:
        print(f"No test differs from {options.base}. Name another commit with --base, or the tests.")
        return 0
    print(f"== Running each {options.times} times, beside a busy loop on each core:", *tests, sep="\n  ", flush=True)
    native = [test for test in tests if test.startswith(NATIVE)]
    python = [test for test in tests if test not in native]
    with busy_cores():
        passed = [run_native(native, options.times)] if native else []
        passed += [run_python(python, options.times)] if python else []
    return not all(passed)


if __name__ == "__main__":
    sys.exit(main())
