"""What the programs check and print at their end."""

import hashlib
import statistics
import time
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist


def same_on_all_ranks(tensors: Iterable[torch.Tensor], ranks: int = 2, as_on_gloo: bool = True) -> None:
    """All ranks must have the same tensors, bit for bit.

    as_on_gloo: also on gloo and on rankwise; rank 0 then prints their digest as the program's result. torch's backend
    "fake" moves nothing, so that nothing is checked on it.
    """
    assert dist.get_world_size() == ranks, f"{dist.get_world_size()} ranks in place of {ranks}"
    if dist.get_backend() == "fake":
        return
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    digests = [""] * ranks
    dist.all_gather_object(digests, digest.hexdigest()[:16])
    assert len(set(digests)) == 1, f"the ranks have different tensors: {digests}"
    if as_on_gloo and dist.get_rank() == 0:
        print("result:", digests[0], flush=True)


def time_of(what: str, step: Callable[[], object], count: int = 1, times: int = 7) -> None:
    """Print what `step` takes over `count`, after one that warms up."""
    passed = []
    for _ in range(1 + times):
        dist.barrier()
        begin = time.perf_counter()
        step()
        passed.append((time.perf_counter() - begin) / count)
    print_times(what, passed[1:])


def print_times(what: str, passed: list[float]) -> None:
    """Rank 0 prints the median of these seconds, and the least, as the program's time."""
    if dist.get_rank() == 0:
        print(
            f"time: {1e3 * statistics.median(passed):.2f} ms a {what}, {1e3 * min(passed):.2f} ms at best", flush=True
        )
