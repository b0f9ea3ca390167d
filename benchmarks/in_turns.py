"""A program that asks torch.distributed for gloo, in turns on gloo and on rankwise: the median time of each.

    python benchmarks/in_turns.py -n 2 [--rounds 5] [--figure "ms a token"] [--fake] program.py [ARGUMENT...]

A single run of each misleads on a machine that does other work as well, so that each round runs the program once on
every backend. torchrun starts it, unchanged; on rankwise with RANKWISE_TORCH_AS=gloo. What counts is how long a run
takes, or with --figure the last number that the program prints before these words. --fake also measures torch's
backend "fake", which moves nothing: what the program takes without communication, if it can go on with wrong numbers.
This file needs nothing else of its folder.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GLOO, RANKWISE, FAKE = "gloo", "rankwise", "fake"


def on_fake(words: list[str]) -> None:
    """Run the program in this process, a rank, with torch's backend "fake" in place of whatever it asks for."""
    import torch.distributed as dist

    init_process_group, new_group = dist.init_process_group, dist.new_group

    def init(*args: object, **options: Any) -> None:
        options.pop("backend", None)
        place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        init_process_group(FAKE, **{**options, **place, "init_method": None})

    def group(ranks: Any = None, timeout: Any = None, backend: object = None, *args: Any, **options: Any) -> Any:
        return new_group(ranks, timeout, FAKE, *args, **options)

    for module in dist, dist.distributed_c10d:
        setattr(module, "init_process_group", init)  # noqa: B010 - mypy refuses to assign to a function
        setattr(module, "new_group", group)  # noqa: B010
    sys.argv = words
    sys.path[0] = str(Path(words[0]).resolve().parent)
    runpy.run_path(words[0], run_name="__main__")


def run(backend: str, ranks: int, words: list[str], figure: str | None) -> float:
    """What a run of the program on the backend takes: seconds, or the figure that it prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [__file__, "--on-fake", *words] if backend == FAKE else words
    environ = {name: value for name, value in os.environ.items() if name != "RANKWISE_TORCH_AS"}
    environ |= {"RANKWISE_TORCH_AS": "gloo"} if backend == RANKWISE else {}
    begin = time.perf_counter()
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    passed = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{done.stdout}\non {backend}, the program failed with exit status {done.returncode}")
    if figure is None:
        return passed
    found = re.findall(rf"(\d[\d,]*(?:\.\d+)?) *{re.escape(figure)}", done.stdout)
    if not found:
        raise SystemExit(f"{done.stdout}\non {backend}, the program printed no number before {figure!r}")
    return float(found[-1].replace(",", ""))


def main() -> None:
    if sys.argv[1:2] == ["--on-fake"]:
        on_fake(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="how often the program runs on each backend")
    parser.add_argument("--figure", metavar="WORDS", help='words that follow the number that counts: "ms a token"')
    parser.add_argument("--fake", action="store_true", help='measure torch\'s backend "fake" as well')
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()

    words = [args.program, *args.arguments]
    figures: dict[str, list[float]] = {name: [] for name in (GLOO, RANKWISE, *([FAKE] if args.fake else []))}
    print(f"{' '.join(words)}: {args.ranks} ranks, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs", flush=True)
    for number in range(args.rounds):
        for backend, found in figures.items():
            found.append(run(backend, args.ranks, words, args.figure))
        texts = [f"{backend} {found[-1]:.2f}" for backend, found in figures.items()]
        print(f"round {number + 1}: {', '.join(texts)}", flush=True)
    unit = args.figure or "s"
    for backend, found in figures.items():
        print(
            f"{backend:<8} median {statistics.median(found):8.2f} {unit}, best {min(found):.2f}, worst {max(found):.2f}"
        )


if __name__ == "__main__":
    main()
