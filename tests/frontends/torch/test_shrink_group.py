"""torch.distributed.shrink_group: the remaining ranks go on in a smaller group, whether the others live or not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import rankwise  # noqa: E402 - it is of no use here without torch

dist = torch.distributed
OnRanks = Callable[..., list[Any]]

both_flags = pytest.mark.parametrize("flag", ["SHRINK_DEFAULT", "SHRINK_ABORT"])


def flags(name: str) -> int:
    return int(getattr(dist.distributed_c10d, name))


def operations(rank: int, size: int) -> None:
    """One of each kind on the default group, of which this is the rank."""
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (rank, size, "rankwise")
    x = torch.full((3,), float(rank))
    dist.all_reduce(x)
    assert x.tolist() == [sum(range(size))] * 3
    work = dist.all_reduce(y := torch.ones(70_000), async_op=True)
    work.wait()
    assert y[-1] == size
    dist.broadcast(z := torch.full((2,), float(rank)), src=size - 1)
    assert z.tolist() == [size - 1] * 2
    received = torch.empty(1)
    sent = dist.isend(torch.full((1,), float(rank)), dst=(rank + 1) % size)
    dist.recv(received, src=(rank - 1) % size)
    sent.wait()
    assert received.item() == (rank - 1) % size
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    ends = sorted({0, size - 1})
    part = dist.new_group(ends)
    if rank in ends:
        dist.all_reduce(w := torch.ones(1), group=part)
        assert w.item() == len(ends)
    dist.barrier()


def train(steps: int) -> Any:
    """The parameters after steps of DistributedDataParallel with the same data on every rank."""
    torch.manual_seed(0)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(2, 8)).square().sum().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


@pytest.mark.slow
@both_flags
def test_the_others_do_not_wait_for_a_rank_that_lives(on_ranks: OnRanks, flag: str) -> None:
    """Rank 1 knows of nothing until the others have done all their work."""

    def body(rank: int, size: int) -> None:
        store = dist.distributed_c10d._get_default_store()
        dist.barrier()
        if rank == 1:
            store.wait(["over"])
            with pytest.raises(rankwise.PeerLostError):
                dist.all_reduce(torch.ones(1))
            return
        before = dist.group.WORLD
        smaller = dist.shrink_group([1], shrink_flags=flags(flag))
        assert smaller is dist.group.WORLD is not before
        new = (0, None, 1, 2)[rank]
        operations(new, 3)
        assert torch.isfinite(train(2)).all()
        if rank == 0:
            store.set("over", "")

    on_ranks(4, body)


@pytest.mark.slow
def test_again_down_to_one_rank(on_ranks: OnRanks) -> None:
    """The excluded ranks end their part at once."""

    def body(rank: int, size: int) -> None:
        for left in (2, 1):
            if rank == left:
                return
            dist.shrink_group([left])
            operations(rank, left)

    on_ranks(3, body)


@pytest.mark.slow
def test_abort_ends_operations_that_wait_for_the_excluded_rank(on_ranks: OnRanks) -> None:
    def body(rank: int, size: int) -> None:
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["over"])
            return
        work = dist.all_reduce(torch.ones(70_000), async_op=True)
        dist.shrink_group([1], shrink_flags=flags("SHRINK_ABORT"))
        with pytest.raises(rankwise.PeerLostError) as caught:
            work.wait()
        assert caught.value.how == "aborted the group: shrink_group([1], shrink_flags=SHRINK_ABORT)"
        operations(rank // 2, 2)
        if rank == 0:
            store.set("over", "")

    on_ranks(3, body)


def test_a_group_of_some_ranks(on_ranks: OnRanks) -> None:
    def body(rank: int, size: int) -> None:
        part = dist.new_group([0, 1, 3])
        if rank in (0, 3):
            smaller = dist.shrink_group([1], group=part)
            assert dist.get_process_group_ranks(smaller) == [0, 3]
            assert (smaller.rank(), smaller.size()) == (rank // 3, 2)
            dist.broadcast(x := torch.full((1,), float(rank)), src=3, group=smaller)
            assert x.item() == 3
        operations(rank, 4)  # the default group is as it was

    on_ranks(4, body)


def test_options_of_the_new_group(on_ranks: OnRanks) -> None:
    def body(rank: int, size: int) -> list[float]:
        dist.group.WORLD.set_timeout(timedelta(seconds=77))
        limits = []
        from torch._C._distributed_c10d import Backend

        for without, given in ([2], None), ([1], Backend.Options("rankwise", timedelta(seconds=55))):
            if rank in without:
                break
            smaller = dist.shrink_group(without, pg_options=given)
            limits.append(smaller._get_backend(torch.device("cpu")).comm.timeout)
        return limits

    assert on_ranks(3, body) == [[77, 55], [77], []]


@pytest.mark.slow
def test_bad_arguments_do_no_harm(on_ranks: OnRanks) -> None:
    def body(rank: int, size: int) -> None:
        for ranks, kind, text in (
            ([2], ValueError, "Rank 2 at index 0 is out of bounds for group size 2"),
            ([-1], ValueError, "out of bounds"),
            ([0, 1], ValueError, "Cannot exclude all 2 ranks"),
            ([rank], RuntimeError, f"Current rank {rank} is in the exclusion list"),
            ([], ValueError, "cannot be empty"),
            ([1 - rank, 1 - rank], ValueError, "Duplicate rank"),
            (["1"], TypeError, "must be integers"),
        ):
            with pytest.raises(kind, match=text):
                dist.shrink_group(ranks)
        operations(rank, 2)

    on_ranks(2, body)


def test_ranks_that_exclude_different_ranks(on_ranks: OnRanks) -> None:
    def body(rank: int, size: int) -> None:
        if rank < 2:
            with pytest.raises(rankwise.MismatchError, match=r"do not all exclude the same ranks; rank [01] excludes"):
                dist.shrink_group([2] if rank == 0 else [2, 3])
            dist.shrink_group([2, 3])
            operations(rank, 2)

    on_ranks(4, body)


def test_another_rank_is_lost_too(on_ranks: OnRanks) -> None:
    def body(rank: int, size: int) -> None:
        if rank in (1, 3):
            return
        with pytest.raises(rankwise.PeerLostError, match="exclude rank 3 as well") as lost:
            dist.shrink_group([1])
        assert lost.value.rank == 3
        dist.shrink_group([1, 3])
        operations(rank // 2, 2)

    on_ranks(4, body)


KILLED = """
import os, signal, sys, torch, torch.distributed as dist, rankwise
from torch.nn.parallel import DistributedDataParallel
rank, size, flag = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), getattr(dist.distributed_c10d, sys.argv[2])
dist.init_process_group("rankwise", store=dist.FileStore(sys.argv[1], size), rank=rank, world_size=size)
everybody = dist.new_group()
model = torch.nn.Linear(64, 64)
net = DistributedDataParallel(model, bucket_cap_mb=0.001)
net(torch.ones(2, 64)).sum().backward()
if rank == 1:
    for parameter in net.parameters():
        parameter.register_hook(lambda grad: os.kill(os.getpid(), signal.SIGKILL))
try:
    net(torch.ones(2, 64)).sum().backward()
    sys.exit("no error")
except RuntimeError as error:
    assert "PeerLostError: rank 1 " in str(error), error
try:
    dist.all_reduce(torch.ones(1))
except rankwise.PeerLostError as error:
    lost = error.rank
dist.shrink_group([lost], shrink_flags=flag)
model.zero_grad()
net = DistributedDataParallel(model, bucket_cap_mb=0.001)
net(torch.full((2, 64), float(dist.get_rank()))).sum().backward()
total = torch.ones(70_000)
dist.all_reduce(total)
dist.barrier()
print("ON", lost, dist.get_rank(), dist.get_world_size(), total[-1].item(), model.weight.grad[0, 0].item(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow  # four processes import torch; tests/group/test_recovery.py shrinks groups after kills
@both_flags
def test_after_a_kill_in_backward(tmp_path: Path, flag: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(KILLED)
    command = [sys.executable, "-m", "rankwise", "run", "-n", "3", "--keep-going", str(program)]
    command += [str(tmp_path / "store"), flag]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("ON"))
    assert lines == ["ON 1 0 2 2.0 1.0", "ON 1 1 2 2.0 1.0"], done.stdout + done.stderr


STOPPED = """
import os, signal, sys, torch, torch.distributed as dist, rankwise
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("rankwise", store=dist.FileStore(sys.argv[1], size), rank=rank, world_size=size)
dist.barrier()
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
dist.shrink_group([1])
print("ON", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_the_launcher_ends_a_rank_that_is_stopped_and_was_excluded(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(STOPPED)
    command = [
        sys.executable,
        "-m",
        "rankwise",
        "run",
        "-n",
        "3",
        "--keep-going",
        str(program),
        str(tmp_path / "store"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (0, "ON 2\nON 2\n"), done.stderr
    assert "which was left out by the others and had to be ended" in done.stderr.splitlines()[-1]
