"""Failures raise rankwise's errors, and no rank waits forever."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = torch.distributed

KILLED = """
import os, signal, sys, torch, torch.distributed as dist
dist.init_process_group("rankwise")
rank = dist.get_rank()
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64), bucket_cap_mb=0.001)
net(torch.ones(2, 64)).sum().backward()
if rank == 1:
    for parameter in net.parameters():
        parameter.register_hook(lambda grad: os.kill(os.getpid(), signal.SIGKILL))
try:
    net(torch.ones(2, 64)).sum().backward()
except Exception as error:
    print("CAUGHT", type(error).__name__, error, flush=True)
    try:
        dist.all_reduce(torch.ones(1))
    except Exception as error:
        print("THEN", type(error).__name__, error.rank, error.how, flush=True)
    os._exit(0)
"""


@pytest.mark.slow
def test_a_rank_killed_in_backward(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(KILLED)
    command = [sys.executable, "-m", "rankwise", "run", "-n", "2", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 128 + 9, done.stderr
    assert "CAUGHT RuntimeError" in done.stdout, done.stdout + done.stderr
    assert re.search(r"CAUGHT.*PeerLostError: rank 1 \(.*\) was killed by SIGKILL", done.stdout)
    assert "THEN PeerLostError 1 was killed by SIGKILL\n" in done.stdout


TORCHRUN = """
import os, signal, torch, torch.distributed as dist
dist.init_process_group("rankwise")
dist.barrier()
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
"""


@pytest.mark.slow
def test_torchrun_ends_the_survivors_of_a_rank(tmp_path: Path) -> None:
    """They say first what they know, even in the moment in which torchrun has ended them."""
    program = tmp_path / "program.py"
    program.write_text(TORCHRUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert re.search(r"PeerLostError: rank 1 \(.*\) was killed by SIGKILL", done.stderr), done.stderr


def test_ranks_that_call_different_things(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> dict[int, str]:
        x = torch.ones(3 + rank)
        with pytest.raises(dist_errors().MismatchError) as caught:
            dist.all_reduce(x)
        assert x.tolist() == [1.0] * (3 + rank)
        calls: dict[int, str] = caught.value.calls
        return calls

    for calls in on_ranks(2, body):
        assert [call.partition(",")[0] for call in calls.values()] == ["all_reduce(count=3", "all_reduce(count=4"]


def warm_model() -> Any:
    """A model whose buckets are settled, so that backward calls one all_reduce of its 20 gradients."""
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(3):
        net(torch.ones(1, 4)).sum().backward()
    return net


def test_a_mismatch_in_backward(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> str:
        net = warm_model()
        loss = net(torch.ones(1, 4)).sum()
        try:
            dist.broadcast(torch.ones(2), 0) if rank == 1 else loss.backward()
            dist.barrier()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return str(error)
        return ""

    for text in on_ranks(2, body):
        assert "all_reduce(count=20" in text
        assert "broadcast(count=2" in text


def test_a_timeout_in_backward(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> str:
        net = warm_model()
        loss = net(torch.ones(1, 4)).sum()
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["over"])  # and no backward
            return ""
        dist.group.WORLD.set_timeout(timedelta(seconds=0.5))
        with pytest.raises(RuntimeError, match="CollectiveTimeout") as caught:
            loss.backward()
        with pytest.raises(dist_errors().CollectiveTimeout) as again:
            dist.barrier()
        assert again.value.missing == (1,)
        store.set("over", "")
        return str(caught.value)

    assert "rank 1 did not reach all_reduce" in on_ranks(2, body)[0]


def dist_errors() -> Any:
    import rankwise

    return rankwise


def test_a_wait_with_a_limit(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            work = dist.all_reduce(torch.ones(2), async_op=True)
            with pytest.raises(TimeoutError):
                work.wait(timedelta(milliseconds=20))
            dist.send(torch.ones(1), 1)
            assert work.wait()
            if "timeout" in signature(dist.barrier).parameters:  # torch 2.12 and later
                with pytest.raises(TimeoutError, match="rank 1"):
                    dist.barrier(timeout=timedelta(seconds=0.2))
            store.set("over", "")
        else:
            dist.recv(torch.ones(1), 0)
            dist.all_reduce(torch.ones(2))
            store.wait(["over"])

    on_ranks(2, body)


def test_calls_with_limits_at_the_same_time(on_ranks: Callable[..., Any]) -> None:
    """After them the group's timeout is in force again."""

    def body(rank: int, size: int) -> None:
        group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
        comm, options = group.operations.comm, dist.BarrierOptions()
        usual = comm.timeout
        if rank == 0:
            options.asyncOp, options.timeout = True, timedelta(seconds=40)
            work = group.barrier(options)
            while comm.timeout != 40:
                time.sleep(0.001)
            store.set("limited", "")
            options.asyncOp, options.timeout = False, timedelta(seconds=50)
            group.barrier(options)
            work.wait()
        else:
            store.wait(["limited"])
            time.sleep(0.3)  # until the other barrier has begun too
            dist.barrier()
            dist.barrier()
        assert comm.timeout == usual

    on_ranks(2, body)


@pytest.mark.slow
def test_a_monitored_barrier(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
        group.monitored_barrier(timedelta(seconds=60))
        if rank == 0:
            with pytest.raises(RuntimeError, match="Ranks 1, 2 failed to pass monitoredBarrier") as caught:
                group.monitored_barrier(timedelta(seconds=0.2), wait_all_ranks=True)
            assert caught.value.missing == (1, 2)
            store.set("over", "")
        store.wait(["over"])

    on_ranks(3, body)


def test_abort_and_what_is_under_way(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        part = dist.new_group()
        if rank == 0:
            work = dist.all_reduce(torch.ones(2), group=part, async_op=True)
            future = work.get_future()
            dist.send(torch.ones(1), 1)
            with pytest.raises(RuntimeError, match="aborted the process group"):
                future.wait()
            with pytest.raises(dist_errors().PeerLostError) as caught:
                dist.all_reduce(torch.ones(2), group=part)
            how = "aborted the group: torch.distributed aborted the process group"
            assert (caught.value.rank, caught.value.how) == (1, how)
        else:
            dist.recv(torch.ones(1), 0)
            part.abort()
            with pytest.raises(dist_errors().ClosedError):
                dist.all_reduce(torch.ones(2), group=part)

    on_ranks(2, body)


def test_work_left_at_the_end(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        part = dist.new_group()
        if rank == 0:
            future = dist.all_reduce(torch.ones(2), group=part, async_op=True).get_future()
            dist.destroy_process_group(part)
            with pytest.raises(RuntimeError):
                future.wait()
        dist.barrier()

    on_ranks(2, body)


@pytest.mark.slow
def test_a_rank_that_does_not_come(tmp_path: Path) -> None:
    program = (
        "import torch.distributed as dist, datetime\n"
        "try: dist.init_process_group('rankwise', store=dist.FileStore(__import__('sys').argv[1], 3), rank=0, "
        "world_size=3, timeout=datetime.timedelta(seconds=0.5))\n"
        "except TimeoutError as error: print(type(error).__name__, error.missing, error.operation, error.limit)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ,
        check=True,
    )
    assert done.stdout == "CollectiveTimeout (1, 2) init 0.5\n"
