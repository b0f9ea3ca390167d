"""The parts of `make test` and `make test-all`: runs each, and ends with how long each took and what was not tested.

    python tests/parts.py test
    python tests/parts.py all [--minutes M]    a part that would not end within M minutes is left out, and said to be

A part is a target of make. A line of its output that begins with "not tested:" is repeated at the end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_TESTED = "not tested:"


@dataclass(frozen=True)
class Part:
    target: str
    minutes: int  # that it takes on 2 cores, once everything is built


TEST = (Part("test-native", 1), Part("test-model", 1), Part("test-python", 8))
REST = (
    Part("test-slow", 18),
    Part("test-model-large", 1),
    Part("test-sanitizers", 10),
    Part("test-engines", 6),
    Part("test-multihost", 6),
    Part("test-faults", 16),
    Part("test-clients", 8),
    Part("test-torch-suite", 35),
)


def run(part: Part, not_tested: list[str]) -> bool:
    """Whether the part passed."""
    command = ["make", "--no-print-directory", part.target]
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
    parser.add_argument("--minutes", type=float, default=float("inf"), metavar="M")
    options = parser.parse_args()
    start = time.monotonic()
    table, not_tested, failed = list[str](), list[str](), list[str]()
    for part in TEST if options.which == "test" else TEST + REST:
        left = options.minutes - (time.monotonic() - start) / 60
        if part not in TEST and part.minutes > left:
            not_tested.append(f"{NOT_TESTED} {part.target}: it takes {part.minutes} minutes, and {left:.0f} are left")
            continue
        print(f"== make {part.target}", flush=True)
        begun = time.monotonic()
        passed = run(part, not_tested)
        table.append(f"{part.target:<18} {time.monotonic() - begun:6.0f} s  {'passed' if passed else 'FAILED'}")
        if not passed:
            failed.append(part.target)
    print(f"== {(time.monotonic() - start) / 60:.1f} minutes")
    print(*table, *dict.fromkeys(not_tested), sep="\n")
    if failed:
        print(f"failed: {', '.join(failed)}; make {failed[0]} runs one of them alone")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
