"""Two hosts with two ranks each over a link of 1 Gbit/s: flat gloo and hierarchical interleaved, as a table.

    sudo python benchmarks/two_hosts.py [--rate 1000] [--hosts 2] [--per-host 2] [--sizes 1048576 16777216]

The hosts are network namespaces, which exist only while this program runs (it needs root and iproute2). Each
number is the slowest rank's time of the fastest call, of 7 calls in each of --rounds jobs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from multihost.network import Network, Ranks  # noqa: E402 - the tests have it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=1000, help="Mbit/s of each host's network interface (1000)")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--per-host", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 64 << 10, 1 << 20, 16 << 20], help="bytes")
    parser.add_argument("--json", action="store_true", help="print the seconds as JSON")
    options = parser.parse_args()
    n = options.hosts * options.per_host
    placements = {
        "by host (0 0 1 1)": tuple(rank // options.per_host for rank in range(n)),
        "round-robin (0 1 0 1)": tuple(rank % options.hosts for rank in range(n)),
    }
    rows = []
    for name, placement in placements.items():
        best: dict[tuple[str, int], float] = {}
        for _ in range(options.rounds):
            for backend in ("gloo", "hierarchical"):
                for size, seconds in zip(options.sizes, _measure(options, placement, backend), strict=True):
                    best[backend, size] = min(best.get((backend, size), 1e9), seconds)
        for size in options.sizes:
            rows.append((name, size, best["gloo", size], best["hierarchical", size]))
    if options.json:
        print(json.dumps(rows))
        return
    print("| ranks on hosts | bytes | gloo, ms | hierarchical, ms | times faster |")
    print("|---|---:|---:|---:|---:|")
    for name, size, flat, ours in rows:
        print(f"| {name} | {size:,} | {1e3 * flat:.2f} | {1e3 * ours:.2f} | {flat / ours:.2f} |")


def _measure(options: argparse.Namespace, placement: tuple[int, ...], backend: str) -> list[float]:
    """Seconds of an all_reduce of each size."""
    program = [str(ROOT / "tests" / "multihost" / "program.py"), "seconds", *map(str, options.sizes)]
    variables = {"RANKWISE_BACKEND": backend, "RANKWISE_TIMEOUT": "60"}
    with (
        tempfile.TemporaryDirectory() as folder,
        Network(options.hosts, rate=options.rate) as network,
        Ranks(network, placement, program, Path(folder), variables) as ranks,
    ):
        if any(ranks.wait(300)):
            sys.exit(ranks.report())
        seconds: list[float] = json.loads(ranks.out(0).splitlines()[-1])
        return seconds


if __name__ == "__main__":
    main()
