"""What a rank costs that waits for requests, and how soon it has one: rankwise, gloo, and vLLM's shared memory.

    rankwise run -n 2 benchmarks/idle.py [--seconds 3] [--times 5] [FOLDER]

Rank 0 sleeps for some seconds and then sends a request; the others wait for it, on each contender in turns: in a
broadcast, or in vLLM's all_reduce if `benchmarks/inference_ops.py --get FOLDER` has unpacked that. The table, in
Markdown, has the medians of rank 1: CPU time of all its threads per second of waiting, and the time from the moment
before rank 0 calls the operation until rank 1 has its result.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from inference_ops import vllm

import rankwise as rw


def contenders(folder: Path | None) -> dict[str, Callable[[torch.Tensor], object]]:
    """By name, the operation that brings rank 0's tensor to the others, which have zeros."""
    found: dict[str, Callable[[torch.Tensor], object]] = {}
    for name in ("rankwise", "gloo"):
        group = dist.new_group(backend=name)
        found[name] = lambda x, group=group: dist.broadcast(x, 0, group=group)  # type: ignore[misc]
    if folder is not None:
        found["vLLM"] = vllm(folder, dist.get_rank(), dist.get_world_size())
    return found


def wait(operation: Callable[[torch.Tensor], object], seconds: float, rank: int) -> tuple[float, float]:
    """On rank 1: CPU time per second of waiting, and seconds until it had the request."""
    request = torch.zeros(2, dtype=torch.float32)
    dist.barrier()
    begin, used = time.perf_counter(), time.process_time()
    if rank == 0:
        time.sleep(seconds)
        now = time.perf_counter()
        request[0] = now // 1
        request[1] = now % 1
    operation(request)
    end = time.perf_counter()
    # A float32 holds the whole seconds of some months, and the fraction to 0.06 us.
    return (time.process_time() - used) / (end - begin), end - (request[0].double() + request[1].double()).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="from one request to the next")
    parser.add_argument("--times", type=int, default=5, help="requests for each contender")
    parser.add_argument("folder", type=Path, nargs="?")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rw.init()
    dist.init_process_group("rankwise")
    rank = dist.get_rank()
    ways = contenders(args.folder)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(1 + args.times):
        for name, operation in ways.items():
            figures = wait(operation, args.seconds if number else 0.1, rank)
            if number:  # the first one warms up
                found[name].append(figures)
    if rank == 1:
        print("| | CPU time, ms a second | to have the request, us |\n|---|---|---|")
        for name, figures_of in found.items():
            used, passed = (statistics.median(column) for column in zip(*figures_of, strict=True))
            print(f"| {name} | {1e3 * used:.2f} | {1e6 * passed:,.0f} |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
