"""The conformance suite from the command line: `python -m rankwise.testing.conformance --backend shm -n 4`.

Under another launcher the suite uses the ranks that it started, and rank 0 prints the report:
`mpiexec -n 4 python -m rankwise.testing.conformance --backend mpi`.

The exit code is 0 if every check passed; otherwise it is 1, and the failures are listed.
"""

from __future__ import annotations

import argparse
import os
import sys

from rankwise.backends import registry
from rankwise.initialize import init
from rankwise.launch.environment import find_job
from rankwise.system.settings import Settings
from rankwise.testing.cases import OPERATIONS
from rankwise.testing.ranks import close_pools
from rankwise.testing.suite import Report, check_backend, check_group

SHOWN = 20  # failures that are printed


def main(argv: list[str] | None = None) -> int:
    names = sorted({name for names in OPERATIONS.values() for name in names})
    parser = argparse.ArgumentParser(
        prog="python -m rankwise.testing.conformance", description="Check a backend against the contract."
    )
    parser.add_argument("--backend", default="shm", choices=registry.names())
    parser.add_argument("-n", type=int, metavar="RANKS", help="how many ranks (default: 4, or all of the launcher)")
    parser.add_argument(
        "--operation", action="append", choices=names, default=[], help="check only this operation; may be repeated"
    )
    parser.add_argument("--seed", type=int, default=0, help="selects other cases (default 0)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds for the cases of one operation (default 60)"
    )
    options = parser.parse_args(argv)
    job = find_job(os.environ, Settings.read())
    n = options.n or (job.world_size if job.launcher else 4)
    if options.n == 0 or n < 1 or (options.backend == "solo" and n != 1):
        parser.error(f"-n {options.n}: expected {'1 rank on solo' if options.backend == 'solo' else 'at least 1 rank'}")
    if job.launcher and n != job.world_size:
        parser.error(f"-n {options.n}: {job.launcher} started {job.world_size} ranks")

    show = sys.stderr.isatty() and job.rank == 0

    def progress(name: str) -> None:
        if show:
            print(f"\r\033[K{name}", end="", file=sys.stderr)

    chosen = {"operations": options.operation, "seed": options.seed, "progress": progress}
    try:
        if job.launcher:
            with init(options.backend, timeout=options.timeout) as group:
                report = check_group(group, **chosen)
        else:
            report = check_backend(options.backend, n, timeout=options.timeout, **chosen)
    finally:
        close_pools()
        print("\r\033[K" if show else "", end="", file=sys.stderr)
    return show_report(report) if job.rank == 0 else 0 if report.ok else 1


def show_report(report: Report) -> int:
    """Print the report; returns the exit code."""
    print(report.table())
    for failure in report.failures[:SHOWN]:
        print(f"\n{failure}")
    if len(report.failures) > SHOWN:
        print(f"\n... and {len(report.failures) - SHOWN} more")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
