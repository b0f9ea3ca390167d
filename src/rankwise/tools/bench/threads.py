"""Ranks of a benchmark as the threads of one process, for the backend `threads`.

python -m rankwise.tools.bench.threads N RANK_FILE LIBRARY SOCKET

Each thread runs the `main` of RANK_FILE, which a process per rank runs otherwise.
"""

from __future__ import annotations

import runpy
import sys

import rankwise

FOREVER = 1e6  # seconds; the benchmark itself ends ranks that do not answer


def main(n: int, program: str, library: str, path: str) -> None:
    rank_main = runpy.run_path(program)["main"]
    rankwise.testing.run_ranks(n, lambda group: rank_main(library, path), backend="threads", timeout=FOREVER)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
