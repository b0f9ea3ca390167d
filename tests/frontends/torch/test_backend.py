"""rankwise as one backend of a process group, which torch's own C++ calls and observes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rankwise.frontends.torch.operations import ACCEPTED  # noqa: E402 - it needs torch

dist = torch.distributed
OnRanks = Callable[..., list[Any]]

from_2_14 = pytest.mark.skipif(not ACCEPTED, reason="torch before 2.14 accepts no Backend that is written in Python")


def operations(group: Any) -> None:
    """Some of each kind, on 2 ranks."""
    rank, size = group.rank(), group.size()
    x = torch.full((3,), float(rank + 1))
    dist.all_reduce(x, group=group)
    assert x.tolist() == [3, 3, 3]
    work = dist.all_reduce(x, group=group, async_op=True)
    work.wait()
    assert work.get_future().wait()[0].tolist() == [6, 6, 6]
    dist.all_reduce(y := torch.ones(8)[::2], group=group)  # packed
    assert y.tolist() == [2] * 4
    out = torch.empty(size * 2)
    dist.all_gather_into_tensor(out, torch.full((2,), float(rank)), group=group)
    assert out.tolist() == [0, 0, 1, 1]
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.ones(4), group=group)
    assert part.tolist() == [2, 2]
    outs = [torch.empty(1) for _ in range(size)]
    dist.all_gather(outs, torch.tensor([float(rank)]), group=group)
    assert [t.item() for t in outs] == [0, 1]
    gathered = [torch.empty(1) for _ in range(size)] if rank == 1 else None
    dist.gather(torch.tensor([float(rank)]), gathered, group=group, group_dst=1)
    assert gathered is None or [t.item() for t in gathered] == [0, 1]
    dist.scatter(part, list(torch.arange(4.0).chunk(2)) if rank == 0 else None, group=group, group_src=0)
    assert part.tolist() == [2.0 * rank, 2.0 * rank + 1]
    dist.all_to_all_single(part, torch.arange(2.0) + 10 * rank, group=group)
    assert part.tolist() == [rank, 10.0 + rank]
    if rank == 0:
        dist.send(part, group=group, group_dst=1)
    else:
        dist.recv(part, group=group, group_src=0)
        assert part.tolist() == [0, 10]
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    assert objects == [{"rank": 0}, {"rank": 1}]
    dist.barrier(group=group)


@from_2_14
def test_one_group_of_two_backends(on_ranks: OnRanks) -> None:
    """gloo stands for the backend of an accelerator: it needs none to be made."""

    def body(rank: int, size: int) -> None:
        segment = dist.group.WORLD._get_backend(torch.device("cpu")).comm._comm.segment
        groups = dist.group.WORLD, dist.new_group()
        dist.barrier()
        assert segment.allocated_blocks == 2  # a new group lies in the default group's memory
        dist.barrier()
        for group in groups:
            assert {device.type for device in group._device_types} == {"cpu", "cuda"}
            ours, theirs = (group._get_backend(torch.device(device)) for device in ("cpu", "cuda"))
            assert (type(ours).__name__, type(theirs).__name__) == ("RankwiseBackend", "ProcessGroupGloo")
            assert ours.options.backend == "rankwise"
            operations(group)

    on_ranks(2, body, backend="cpu:rankwise,cuda:gloo")


@from_2_14
def test_failures_keep_their_classes_through_the_dispatcher(on_ranks: OnRanks) -> None:
    def body(rank: int, size: int) -> str:
        with pytest.raises(ValueError, match="expected 2 times the input's 4 elements"):
            dist.group.WORLD.all_gather_single(torch.empty(4), torch.empty(4))
        try:
            dist.all_reduce(torch.ones(2 + rank))
        except Exception as error:  # noqa: BLE001 - its class is returned
            return type(error).__name__
        return ""

    assert on_ranks(2, body, backend="cpu:rankwise,cuda:gloo") == ["MismatchError"] * 2


WATCHED = """
import gc, torch, torch.distributed as dist
dist.init_process_group("rankwise")
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
kinds = [type(dist.group.WORLD).__name__, type(backend).__name__]
part = dist.new_group()
gc.collect()
for group in (dist.group.WORLD, part):
    for _ in range(3):
        dist.all_reduce(torch.ones(2), group=group)
    dist.all_gather_into_tensor(torch.empty(4), torch.ones(2), group=group)
    dist.barrier(group=group)
"""

DETAIL = """
assert kinds == ["ProcessGroup", "_ProcessGroupWrapper"], kinds
try:
    dist.all_reduce(torch.ones(2 + dist.get_rank()))
except RuntimeError as error:
    assert "Detected mismatch between collectives on ranks" in str(error), error
else:
    raise AssertionError("torch found no mismatch")
dist.destroy_process_group()
"""

RECORDER = """
import pickle
from torch._C._distributed_c10d import _dump_fr_trace
assert kinds == ["ProcessGroup", "RankwiseBackend"], kinds
entries = pickle.loads(_dump_fr_trace(backend="rankwise"))["entries"]
names = [entry["profiling_name"] for entry in entries]
assert sum("all_reduce" in name for name in names) == 6, names
assert all(name.startswith("rankwise:") for name in names), names
dist.destroy_process_group()
"""

INTO_A_TENSOR = """
assert kinds == ["RankwiseGroup", "RankwiseBackend"], kinds
ops, name, out = torch.ops._c10d_functional, dist.group.WORLD.group_name, torch.empty(4)
mine = torch.full((2,), float(dist.get_rank()))
ops.wait_tensor(ops.all_gather_into_tensor_out(mine, 2, name, out=out))
assert out.tolist() == [0, 0, 1, 1]
dist.destroy_process_group()
"""


def run(tmp_path: Path, program: str, **variables: str) -> None:
    """Run the program on two ranks; the test fails if one of them does."""
    file = tmp_path / "program.py"
    file.write_text(WATCHED + program)
    command = [sys.executable, "-m", "rankwise", "run", "-n", "2", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ | variables, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@from_2_14
def test_debug_mode_wraps_the_backend(tmp_path: Path) -> None:
    run(tmp_path, DETAIL, TORCH_DISTRIBUTED_DEBUG="DETAIL")


@pytest.mark.skipif(not ACCEPTED, reason="torch before 2.14 records only backends that are written in C++")
def test_the_flight_recorder_records_every_call_where_it_is_asked_for(tmp_path: Path) -> None:
    if torch.__version__.startswith("2.14."):
        pytest.skip("torch 2.14 attaches its flight recorder only to nccl; 2.15 to every backend")
    run(tmp_path, RECORDER, TORCH_FR_BUFFER_SIZE="200")


def test_capabilities_are_answered_truly(on_ranks: OnRanks) -> None:
    def body(rank: int, size: int) -> None:
        group = dist.group.WORLD
        backend = group._get_backend(torch.device("cpu"))
        assert backend.name() == group.name() == "rankwise"
        assert not backend.supports_coalescing
        assert backend.supports_shrinking == hasattr(dist, "shrink_group")
        assert group.split_group([1, 0]).rank() == 1 - rank  # in the order given
        dist.barrier()

    on_ranks(2, body)


@pytest.mark.skipif(not ACCEPTED, reason="torch before 2.14 splits only the groups of accelerators")
def test_split_group(on_ranks: OnRanks) -> None:
    def body(rank: int, size: int) -> None:
        part = dist.split_group(split_ranks=[[2, 0], [1]])
        assert (part.rank(), part.size()) == [(1, 2), (0, 1), (0, 2)][rank]
        x = torch.ones(1)
        dist.all_reduce(x, group=part)
        assert x.item() == part.size()

    on_ranks(3, body)


@from_2_14
def test_functional_collectives_into_a_given_tensor(tmp_path: Path) -> None:
    run(tmp_path, INTO_A_TENSOR)
