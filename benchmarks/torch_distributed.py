"""torch.distributed on rankwise and on gloo: time of its operations, and of training steps.

    rankwise run -n 2 benchmarks/torch_distributed.py [--operations NAME ... | --steps-only] [--time 0.1]

Both backends have a group in the same processes, and their measurements are interleaved: at every point
a batch of calls of one, then a batch of the other, until the time is up. Times are in us per call, on the
slowest rank; the tables, in Markdown, show the median over the batches, and the best.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from ddp import Sorter, Trainer, distributed

SIZES = [8, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
BACKENDS = ("rankwise", "gloo")
MODELS = [(128, 4), (128, 32), (512, 4)]  # width of the transformer, rows per rank
LEAST_BATCHES = 5
BATCH = 0.002  # seconds that a batch should take; it has one call at least

Groups = dict[str, dist.ProcessGroup]


def operations(size: int, group: dist.ProcessGroup) -> dict[str, Callable[[], object]]:
    """Each operation on `size` bytes: of the reduced tensor, of the gathered result, or of the scattered input."""
    ranks = dist.get_world_size()
    whole = torch.ones(max(size // 4, ranks))
    part = torch.ones(max(len(whole) // ranks, 1))
    whole_of_parts = torch.ones(len(part) * ranks)
    x = torch.zeros(max(size // 4, 1))
    return {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_single(whole_of_parts, part, group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_single(part, whole_of_parts, group=group),
    }


def measure(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Seconds per call on the slowest rank, by backend, one for each batch."""
    control = dist.group.WORLD
    fastest = {}  # the least seconds per call so far, on the slowest rank, from which the next batch is planned
    for name, call in calls.items():
        for _ in range(3):
            call()
        fastest[name] = slowest(call, 1, control)
    times: dict[str, list[float]] = {name: [] for name in calls}
    spent = 0.0
    while spent < seconds or len(times["gloo"]) < LEAST_BATCHES:
        for name, call in calls.items():
            repeats = max(1, min(1000, round(BATCH / max(fastest[name], 1e-6))))
            each = slowest(call, repeats, control)
            times[name].append(each)
            fastest[name] = min(fastest[name], each)
            spent += each * repeats / len(calls)
    return times


def slowest(call: Callable[[], object], repeats: int, control: dist.ProcessGroup) -> float:
    """Seconds per call on the slowest rank; the same result on all ranks."""
    dist.barrier(group=control)
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    passed = torch.tensor([time.perf_counter() - begin])
    dist.all_reduce(passed, dist.ReduceOp.MAX, group=control)
    return passed.item() / repeats


def table(title: str, rows: dict[str, dict[str, list[float]]], unit: float, name: str) -> None:
    if dist.get_rank():
        return
    print(f"\n{title}\n")
    print(f"| | rankwise, {name} | best | gloo, {name} | best | times faster | best |")
    print("|---|---|---|---|---|---|---|")
    for label, times in rows.items():
        ours, theirs = ([statistics.median(times[b]), min(times[b])] for b in BACKENDS)
        cells = [number(value * unit) for value in (*ours, *theirs)]
        cells += [number(slow / fast) for fast, slow in zip(ours, theirs, strict=True)]
        print(f"| {label} | {' | '.join(cells)} |", flush=True)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def words(size: int) -> str:
    if size < 1 << 10:
        return f"{size} B"
    return f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", type=float, default=0.1, help="seconds for each backend at each point")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--steps", type=int, default=20, help="training steps of each backend")
    parser.add_argument("--operations", nargs="+", help="only these, and no steps")
    parser.add_argument("--operations-only", action="store_true")
    parser.add_argument("--steps-only", action="store_true")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("rankwise")
    groups: Groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    ranks = dist.get_world_size()
    names = [] if args.steps_only else args.operations or list(operations(8, groups["gloo"]))
    for name in names:
        rows = {}
        for size in args.sizes:
            rows[words(size)] = measure({b: operations(size, g)[name] for b, g in groups.items()}, args.time)
        table(f"{name}, {ranks} ranks, float32", rows, 1e6, "us")
    if not args.operations_only and not args.operations:
        rows = {}
        for label, width, batch in [(k, w, b) for k in ("DDP", "FSDP2") for w, b in MODELS]:
            trainers = {}
            for backend, group in groups.items():
                torch.manual_seed(0)
                model = distributed(Sorter(width), group, shards=label == "FSDP2")
                trainers[backend] = Trainer(model, dist.get_rank(), batch)
            steps: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
            for count in range(args.steps + 3):
                for backend, trainer in trainers.items():
                    dist.barrier()
                    begin = time.perf_counter()
                    trainer.step()
                    passed = torch.tensor([time.perf_counter() - begin])
                    dist.all_reduce(passed, dist.ReduceOp.MAX)
                    if count >= 3:
                        steps[backend].append(passed.item())
            rows[f"{label}, width {width}, {batch} rows a rank"] = steps
        table(f"A training step of examples/ddp.py, {ranks} ranks", rows, 1e3, "ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
