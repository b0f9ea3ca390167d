"""What nccl does with arrays on a real GPU: `rankwise run -n 2 --backend nccl tests/backends/gpu_program.py`.

Each part prints a line. Two ranks may share one GPU (NCCL_MULTI_RANK_GPU_ENABLE=1, NCCL 2.30 or newer).
"""

from __future__ import annotations

import importlib.util
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rankwise as rw
from rankwise.contract.work import Work
from rankwise.group.group import Group

sys.path.insert(0, str(Path(__file__).parent))
from test_device_memory import OPERATIONS, check_operation, contents

Make = Callable[[Any], Any]


def of_torch(data: Any) -> torch.Tensor:
    return torch.as_tensor(np.ascontiguousarray(data)).cuda()


def libraries() -> dict[str, Make]:
    found: dict[str, Make] = {"torch": of_torch}
    if importlib.util.find_spec("cupy"):
        import cupy

        found["cupy"] = cupy.asarray
    return found


def host(x: Any) -> np.ndarray[Any, Any]:
    return x.cpu().numpy() if isinstance(x, torch.Tensor) else x.get()


def messages(group: Group, make: Make) -> None:
    n, me = group.world_size, group.rank
    left, right = (me - 1) % n, (me + 1) % n
    sending = group.isend(make(contents(me)), right, 9)
    assert (host(group.recv(make(np.zeros((6, 2), np.float32)), left, 9)) == contents(left)).all()
    sending.wait()


def dtypes(group: Group, _make: Make) -> None:
    """Every dtype of torch that rankwise knows, also those that are reduced on the host."""
    n = group.world_size
    kinds = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128"
    for kind in (getattr(torch, name) for name in kinds.split()):
        x = torch.ones(1000, device="cuda").to(kind)
        group.all_reduce(x, "max" if kind is torch.bool else "sum") if not kind.is_complex else group.all_reduce(x)
        assert (x.cpu() == (torch.ones(1000) if kind is torch.bool else torch.full((1000,), n)).to(kind)).all(), kind
        gathered = group.all_gather(torch.full((3,), group.rank).cuda().to(kind))
        assert (gathered.cpu() == torch.arange(n).to(kind)[:, None].expand(n, 3)).all(), kind


def streams(group: Group, _make: Make) -> None:
    """A result is used on the program's stream, without a wait of the host, after much work on that stream."""
    n = group.world_size
    a = torch.rand(4096, 4096, device="cuda")
    for step in range(20):
        x = (a @ a) * 0 + step + group.rank
        group.all_reduce(x)
        y = x + 1
        assert y[-1, -1].item() == n * step + n * (n - 1) / 2 + 1
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for step in range(20):
            x = (a @ a) * 0 + step
            work = group.all_reduce(x, async_op=True)
            assert isinstance(work, Work)
            b = a @ a  # beside it
            assert (work.wait() + 1)[0, 0].item() == n * step + 1
            del b


def training(group: Group, _make: Make) -> None:
    """data_parallel on the GPU: the gradients are the means over the ranks, and the parameters stay equal."""
    torch.manual_seed(group.rank)
    module = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).cuda()
    model = rw.overlap.data_parallel(module, group)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.rand(32, 64, device="cuda")).square().mean().backward()
        optimizer.step()
    for parameter in module.parameters():
        everyone = group.all_gather(parameter.detach())
        assert all(torch.equal(one, everyone[0]) for one in everyone)


def large(group: Group, _make: Make) -> None:
    n = group.world_size
    x = torch.ones(64 << 20, device="cuda")
    group.all_reduce(x)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(5):
        group.all_reduce(x)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / 5
    assert (x == n**6).all()
    if group.rank == 0:
        print(f"all_reduce of 256 MiB on {n} ranks of one GPU: {seconds * 1e3:.2f} ms", flush=True)
    small = torch.ones(1, device="cuda")
    group.all_reduce(small)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(1000):
        group.all_reduce(small)
    launched = (time.perf_counter() - start) / 1000
    torch.cuda.synchronize()
    if group.rank == 0:
        print(f"a launch: {launched * 1e6:.1f} us; 4 bytes: {(time.perf_counter() - start) * 1e3:.1f} us", flush=True)


def split(group: Group, _make: Make) -> None:
    with group.split(group.rank % 2) as part:
        assert part is not None
        assert host(part.all_reduce(torch.ones(2, device="cuda")))[0] == part.world_size


def main() -> int:
    failures = 0
    with rw.init("nccl") as group:
        everything: list[tuple[str, Callable[[], None]]] = []
        for library, make in libraries().items():
            for name in OPERATIONS:
                if group.world_size > 1:
                    everything.append((f"{name} of {library}", partial(check_operation, group, name, make, host)))
            everything.append((f"messages of {library}", partial(messages, group, make)))
        for part in (dtypes, streams, training, split, large):
            everything.append((part.__name__, partial(part, group, of_torch)))
        for name, run in everything:
            error = ""
            try:
                run()
            except Exception:  # noqa: BLE001 - it is printed and counted, and the next part follows
                error = traceback.format_exc()
            if group.rank == 0 or error:
                print(f"rank {group.rank}: {name}: {'failed' if error else 'ok'}\n{error}".rstrip(), flush=True)
            failures += bool(error)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
