"""The parts of `make test` and `make test-all`: runs each, and ends with how long each took and what was not tested.

    python tests/parts.py test
    python tests/parts.py all

A part is a target of make. A line of its output that begins with "not tested:" is repeated at the end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_TESTED = "not tested:"

TEST = ("test-native", "test-model", "test-python")
REST = (
    "test-slow",
    "test-model-large",
    "test-sanitizers",
    "test-engines",
    "test-multihost",
    "test-faults",
    "test-clients",
    "test-torch-suite",
)


def run(target: str, not_tested: list[str]) -> bool:
    """Whether the part passed."""
    command = ["make", "--no-print-directory", target]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as make:
        assert make.stdout is not None
        for line in make.stdout:
            print(line, end="", flush=True)
            if line.startswith(NOT_TESTED):
                not_tested.append(line.rstrip())
    return make.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("which", choices=["test", "all"])
    options = parser.parse_args()
    start = time.monotonic()
    table, not_tested, failed = list[str](), list[str](), list[str]()
    for target in TEST if options.which == "test" else TEST + REST:
        print(f"== make {target}", flush=True)
        begun = time.monotonic()
        passed = run(target, not_tested)
        table.append(f"{target:<18} {time.monotonic() - begun:6.0f} s  {'passed' if passed else 'FAILED'}")
        if not passed:
            failed.append(target)
    print(f"== {(time.monotonic() - start) / 60:.1f} minutes")
    print(*table, *dict.fromkeys(not_tested), sep="\n")
    if failed:
        print(f"failed: {', '.join(failed)}; make {failed[0]} runs one of them alone")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
