"""torch.distributed on rankwise and on gloo: time of its operations, and of training steps.

    rankwise run -n 2 benchmarks/torch_distributed.py [--operations NAME ... | --steps-only] [--time 0.1]

Both backends have a group in the same processes, and so has a third one whose operations do nothing:
its time is what torch.distributed itself needs for a call, the floor of any backend. Measurements are
interleaved: at every point a batch of calls of one, then a batch of the next, until the time is up.
Times are in us per call, on the slowest rank; the tables, in Markdown, show the median over the batches,
and the best batch. FSDP2's steps are measured with torch's memory and with registered memory of rankwise.
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
FLOOR = "nothing"
MODELS = [(128, 4), (128, 32), (512, 4)]  # width of the transformer, rows per rank
LEAST_BATCHES = 5
BATCH = 0.002  # seconds that a batch should take; it has one call at least
SHORT_BATCH = 0.0002  # for short calls on a busy machine, where few long batches are undisturbed

Groups = dict[str, dist.ProcessGroup]

# torch 2.13 renamed them, and warns of the old names.
all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class Nothing(dist.ProcessGroup):
    """A process group whose operations return at once and do nothing."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: object) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]

    def setGroupName(self, name: str) -> None:
        self.name = name

    def getGroupName(self) -> str:
        return self.name

    def getBackendName(self) -> str:
        return FLOOR

    def _done(self, *args: object, **options: object) -> None:
        """torch.distributed takes None for an operation that is complete."""

    barrier = allreduce = broadcast = reduce = allgather = gather = scatter = _done
    all_gather_single = reduce_scatter_single = all_to_all_single = _done
    _allgather_base = _reduce_scatter_base = alltoall_base = _done  # before torch 2.13


def operations(size: int, group: dist.ProcessGroup) -> dict[str, Callable[[], object]]:
    """Each operation on `size` bytes: of the reduced tensor, of the gathered result, or of the scattered input."""
    ranks = dist.get_world_size()
    whole = torch.ones(max(size // 4, ranks))
    part = torch.ones(max(len(whole) // ranks, 1))
    whole_of_parts = torch.ones(len(part) * ranks)
    received = torch.ones(len(part) * ranks)
    parts = list(whole_of_parts.split(len(part)))
    at_root = parts if dist.get_rank() == 0 else None
    x = torch.zeros(max(size // 4, 1))
    return {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "broadcast": lambda: dist.broadcast(x, 0, group=group),
        "reduce": lambda: dist.reduce(x, 0, group=group),
        "all_gather": lambda: dist.all_gather(parts, part, group=group),
        "all_gather_into_tensor": lambda: all_gather(whole_of_parts, part, group=group),
        "reduce_scatter_tensor": lambda: reduce_scatter(part, whole_of_parts, group=group),
        "gather": lambda: dist.gather(part, at_root, 0, group=group),
        "scatter": lambda: dist.scatter(part, at_root, 0, group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(received, whole_of_parts, group=group),
        "barrier": lambda: dist.barrier(group=group),
    }


def measure(calls: dict[str, Callable[[], object]], seconds: float, batch: float = BATCH) -> dict[str, list[float]]:
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
            repeats = max(1, min(1000, round(batch / max(fastest[name], 1e-6))))
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
    """Columns: the median and the best of each contender, then gloo's over each of the others'."""
    if dist.get_rank():
        return
    contenders = list(next(iter(rows.values())))
    others = [each for each in contenders if each not in ("gloo", FLOOR)]
    heads = [f"{each}, {name} | best" for each in contenders] + [f"gloo / {each} | best" for each in others]
    print(f"\n{title}\n\n| | {' | '.join(heads)} |\n|---|{'---|' * 2 * len(heads)}")
    for label, times in rows.items():
        figures = {each: (statistics.median(times[each]), min(times[each])) for each in contenders}
        cells = [number(value * unit) for each in contenders for value in figures[each]]
        cells += [
            number(slow / fast) for each in others for fast, slow in zip(figures[each], figures["gloo"], strict=True)
        ]
        print(f"| {label} | {' | '.join(cells)} |", flush=True)


def steps(kind: str, width: int, batch: int, groups: Groups, count: int) -> dict[str, list[float]]:
    """Seconds of a training step by contender, one for each step, on the slowest rank."""
    trainers = {}
    for name in [*BACKENDS, "rankwise, registered"] if kind == "FSDP2" else BACKENDS:
        backend, _, registered = name.partition(", ")
        torch.manual_seed(0)
        model = distributed(Sorter(width), groups[backend], shards=kind == "FSDP2", registered=bool(registered))
        trainers[name] = Trainer(model, dist.get_rank(), batch)
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for step in range(count + 3):
        for name, trainer in trainers.items():
            dist.barrier()
            begin = time.perf_counter()
            trainer.step()
            passed = torch.tensor([time.perf_counter() - begin])
            dist.all_reduce(passed, dist.ReduceOp.MAX)
            if step >= 3:
                times[name].append(passed.item())
    return times


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
    dist.Backend.register_backend(FLOOR, Nothing, devices=["cpu"])
    dist.init_process_group("rankwise")
    groups: Groups = {name: dist.new_group(backend=name) for name in (*BACKENDS, FLOOR)}
    ranks = dist.get_world_size()
    names = [] if args.steps_only else args.operations or list(operations(8, groups["gloo"]))
    for name in names:
        rows = {}
        for size in args.sizes if name != "barrier" else [0]:
            calls = {backend: operations(size, group)[name] for backend, group in groups.items()}
            rows[words(size) if size else "-"] = measure(calls, args.time)
        table(f"{name}, {ranks} ranks, float32", rows, 1e6, "us")
    if not args.operations_only and not args.operations:
        for kind in ("DDP", "FSDP2"):
            rows = {}
            for width, batch in MODELS:
                rows[f"width {width}, {batch} rows a rank"] = steps(kind, width, batch, groups, args.steps)
            table(f"A training step of examples/ddp.py with {kind}, {ranks} ranks", rows, 1e3, "ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
