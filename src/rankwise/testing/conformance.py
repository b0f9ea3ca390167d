"""The conformance suite from the command line: `python -m rankwise.testing.conformance --backend shm -n 4`.

Exits with 0 where everything is right, else with 1 after a list of what is not.
"""

from __future__ import annotations

import argparse
import sys

from rankwise.backends import registry
from rankwise.testing.cases import OPERATIONS
from rankwise.testing.ranks import close_pools
from rankwise.testing.suite import check_backend

SHOWN = 20  # failures


def main(argv: list[str] | None = None) -> int:
    names = sorted({name for names in OPERATIONS.values() for name in names})
    parser = argparse.ArgumentParser(
        prog="python -m rankwise.testing.conformance", description="Check a backend against the contract."
    )
    parser.add_argument("--backend", default="shm", choices=registry.names())
    parser.add_argument("-n", type=int, default=4, metavar="RANKS", help="how many ranks (4)")
    parser.add_argument(
        "--operation", action="append", choices=names, default=[], help="only this one; may be repeated"
    )
    parser.add_argument("--seed", type=int, default=0, help="another selection of cases (0)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for all cases of one operation (60)")
    options = parser.parse_args(argv)
    if options.n < 1 or (options.backend == "solo" and options.n != 1):
        parser.error(f"-n {options.n}: expected {'1 rank on solo' if options.backend == 'solo' else 'at least 1 rank'}")

    show = sys.stderr.isatty()
    try:
        report = check_backend(
            options.backend,
            options.n,
            operations=options.operation,
            seed=options.seed,
            timeout=options.timeout,
            progress=lambda name: print(f"\r\033[K{name}", end="", file=sys.stderr) if show else None,
        )
    finally:
        close_pools()
        print("\r\033[K" if show else "", end="", file=sys.stderr)
    print(report.table())
    for failure in report.failures[:SHOWN]:
        print(f"\n{failure}")
    if len(report.failures) > SHOWN:
        print(f"\n... and {len(report.failures) - SHOWN} more")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
