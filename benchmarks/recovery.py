"""What a loss costs, and what being ready for it costs, as a table.

    python benchmarks/recovery.py [--kills 100] [--ranks 2 4 8]

shrink     from SIGKILL to the end of the first correct all_reduce of the survivors, on the last of them
restore    from SIGKILL to the same with a replacement, which is a new Python that imports NumPy
commit     rw.elastic.State.commit of 64 MiB, and numpy.copyto of them
steps      steps of 10 ms with and without a commit of 1 MiB

A rank is killed at a random moment of all_reduces of random sizes. After each kill the survivors shrink and
add up, then restore and add up, and go on. Each rank that is killed notes the time before it kills itself; all
times are of one clock, CLOCK_MONOTONIC.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import rankwise as rw

TARGETS = {"shrink": (0.050, 0.500), "restore": (None, 1.0)}  # seconds: median, worst
STATE, SMALL_STATE = 64 << 20, 1 << 20  # bytes
STEP = 0.010  # seconds
BLOCK = 10  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="for each number of ranks")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--steps", type=int, default=300, help="pairs of steps, with and without a commit")
    parser.add_argument("--only", choices=["kills", "commit", "steps"], help="one part of the table")
    parser.add_argument("--program", nargs="+", help=argparse.SUPPRESS)  # what a rank runs
    options = parser.parse_args()
    if options.program:
        name, *arguments = options.program
        PROGRAMS[name](*arguments)
        return
    if options.only in (None, "kills"):
        print("| after a kill | ranks | kills | median, ms | worst, ms | target, ms |")
        print("|---|---:|---:|---:|---:|---|")
        for n in options.ranks:
            times = _ranks(n, "kills", options.kills, "--restarts", str(options.kills))
            for kind, (median, worst) in TARGETS.items():
                target = f"worst {1e3 * worst:.0f}" + (f", median {1e3 * median:.0f}" if median else "")
                found = [one[kind] for one in times]
                print(
                    f"| {kind} | {n} | {len(found)} | {1e3 * statistics.median(found):.1f} | {1e3 * max(found):.1f} "
                    f"| {target} |",
                    flush=True,
                )
        print()
    if options.only in (None, "commit"):
        plain, commit = _commit()
        print(
            f"commit of {STATE >> 20} MiB: {1e3 * commit:.2f} ms, a plain copy {1e3 * plain:.2f} ms: "
            f"{100 * plain / commit:.0f} % of its speed (target: 50 %)"
        )
    if options.only in (None, "steps"):
        without, committed = _ranks(2, "steps", options.steps)
        print(
            f"a step of {1e3 * without:.2f} ms on 2 ranks with a commit of {SMALL_STATE >> 20} MiB: "
            f"{1e3 * committed:.2f} ms: {100 * (committed / without - 1):+.1f} % (target: 3 %)"
        )


def _ranks(n: int, program: str, argument: int, *options: str) -> Any:
    """What rank 0 of a program writes at its end."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rankwise", "run", "-n", str(n), "--timeout", "60", *options, __file__]
        result = Path(folder) / "result"
        Path(f"{result}.killed").write_bytes(bytes(8))  # when a rank was killed last
        done = subprocess.run(
            [*command, "--program", program, str(argument), str(result)], stderr=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr)
        return json.loads(result.read_text())


def kills(count: str, result: str) -> None:
    """Ranks are killed one after another; the times since each kill."""
    notes = np.memmap(result + ".killed", np.float64, "r+", shape=1)
    group = rw.init()
    times: list[dict[str, float]] = []
    if os.environ["RANKWISE_RESTART"] != "0":
        _since(notes, group)
    while True:
        times = max(group.all_gather_object(times), key=len)  # a replacement has none
        if len(times) == int(count):
            break
        chance = random.Random(len(times))
        victim, delay = chance.randrange(group.world_size), chance.uniform(0, 0.05)
        if group.rank == victim:
            threading.Thread(target=_die, args=(delay, notes)).start()
        try:
            while True:
                group.all_reduce(np.ones(chance.choice((1, 1_000, 100_000, 1_000_000))))
        except rw.PeerLostError:
            rest = group.shrink()
        shrunk = _since(notes, rest)
        group = rest.restore()
        rest.close()
        times.append({"shrink": shrunk, "restore": _since(notes, group)})
    if group.rank == 0:
        Path(result).write_text(json.dumps(times))


def _die(seconds: float, notes: Any) -> None:
    time.sleep(seconds)
    notes[0] = time.monotonic()
    os.kill(os.getpid(), signal.SIGKILL)


def _since(notes: Any, group: rw.Group) -> float:
    """Seconds from the kill to the end of an all_reduce on the last rank."""
    total = group.all_reduce(np.ones(1000))
    at = time.monotonic()
    assert (total == group.world_size).all()
    return group.all_reduce(at, "max") - float(notes[0])


def steps(count: str, result: str) -> None:
    """Steps with and without a commit, in alternate blocks; the median of each on rank 0, in seconds."""
    group = rw.init()
    state = rw.elastic.State(arrays={"parameters": np.zeros(SMALL_STATE // 8)}, objects={"epoch": 3})
    found: tuple[list[float], list[float]] = ([], [])
    x = np.random.default_rng(group.rank).random((100, 100))
    products = max(1, int(STEP / _median(lambda: x @ x, 50)))
    products = int(group.broadcast(products))

    @rw.elastic.run(state)
    def train(group: rw.Group, state: rw.elastic.State) -> None:
        for block in range(2 * int(count) // BLOCK):
            group.barrier()
            begin = time.perf_counter()
            for _ in range(BLOCK):
                for _ in range(products):
                    x @ x
                group.all_reduce(np.ones(1000))
                if block % 2:
                    state.commit()
            found[block % 2].append((time.perf_counter() - begin) / BLOCK)

    train()
    if group.rank == 0:
        Path(result).write_text(json.dumps([statistics.median(one) for one in found]))


def _commit() -> tuple[float, float]:
    """Seconds of a copy and of a commit of STATE bytes."""
    x = np.random.default_rng(0).random(STATE // 8)
    copy = x.copy()
    state = rw.elastic.State(arrays={"x": x})
    plain, commit = [], []
    for _ in range(5):  # interleaved, so that a noisy machine favours neither
        plain.append(_median(lambda: np.copyto(copy, x), 10))
        commit.append(_median(state.commit, 10))
    state.close()
    return min(plain), min(commit)


def _median(call: Callable[[], object], times: int) -> float:
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


PROGRAMS = {"kills": kills, "steps": steps}

if __name__ == "__main__":
    main()
