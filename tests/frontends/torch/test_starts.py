"""Ranks, started in every way that torch users start them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("rankwise")
x = torch.full((3,), float(dist.get_rank()))
dist.all_reduce(x)
line = f"rank {dist.get_rank()} of {dist.get_world_size()} {x.tolist()}"
print(line + chr(10), end="", flush=True)  # one write, which that of another rank cannot cut
dist.barrier()
dist.destroy_process_group()
"""

SPAWNED = """
import socket, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def job(rank, folder, port, other):
    for arguments in (
        {"init_method": f"tcp://127.0.0.1:{port}"},
        {"init_method": f"file://{folder}/meet"},
        {"init_method": f"file://{folder}/again"},
        {"store": lambda: dist.TCPStore("127.0.0.1", other, 2, rank == 0)},
    ):
        arguments = {name: value() if callable(value) else value for name, value in arguments.items()}
        dist.init_process_group("rankwise", rank=rank, world_size=2, **arguments)
        x = torch.ones(2)
        dist.all_reduce(x)
        assert x.tolist() == [2, 2]
        dist.destroy_process_group()
if __name__ == "__main__":
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ports.append(listener.getsockname()[1])
    mp.spawn(job, (sys.argv[1], *ports), nprocs=2)
    print("ok")
"""


def run(*command: str) -> str:
    environ = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


EXPECTED = ["rank 0 of 2 [1.0, 1.0, 1.0]", "rank 1 of 2 [1.0, 1.0, 1.0]"]


def test_torchrun(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    assert sorted(run(*torchrun, "--nproc-per-node=2", str(program)).splitlines()) == EXPECTED


@pytest.mark.slow  # test_failures.py and test_substitution.py start ranks so too
def test_rankwise_run(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    assert sorted(run(sys.executable, "-m", "rankwise", "run", "-n", "2", str(program)).splitlines()) == EXPECTED


@pytest.mark.slow
def test_spawn_with_every_init_method(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SPAWNED)
    assert run(sys.executable, str(program), str(tmp_path)) == "ok\n"


@pytest.mark.slow
def test_one_rank_alone(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "rankwise", "run", "-n", "1", str(program)]
    assert run(*command) == "rank 0 of 1 [0.0, 0.0, 0.0]\n"


@pytest.mark.slow
def test_the_backend_is_there_without_an_import() -> None:
    code = (
        "import sys, torch; print(torch.distributed.Backend.RANKWISE, "
        "[name for name in ('rankwise.frontends.torch.group', 'torch._dynamo') if name in sys.modules])"
    )
    assert run(sys.executable, "-c", code) == "rankwise []\n"
    code = "import rankwise.torch, torch.distributed as d; print(d.Backend('rankwise'), rankwise.torch.register())"
    assert run(sys.executable, "-c", code) == "rankwise None\n"


@pytest.mark.slow
def test_ranks_on_several_hosts(on_ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def body(rank: int, size: int) -> str:
        from rankwise.system import locality

        dist = torch.distributed
        store = dist.distributed_c10d._get_default_store()
        dist.destroy_process_group()
        ours = locality.locality
        locality.locality = lambda: {"host": rank}  # type: ignore[assignment]
        try:
            dist.init_process_group("rankwise", store=dist.PrefixStore("apart", store), rank=rank, world_size=size)
            part = dist.new_group()
        finally:
            locality.locality = ours
        apart = dist.group.WORLD
        dist.barrier(group=part)
        x = torch.arange(4.0) + rank
        dist.all_reduce(x, group=apart)
        assert x.tolist() == [1, 3, 5, 7]
        work = dist.all_reduce(x, group=apart, async_op=True)
        assert work.get_future().wait()[0].tolist() == [2, 6, 10, 14]
        outs = [torch.empty(2) for _ in range(size)]
        dist.all_gather(outs, torch.full((2,), float(rank)), group=apart)
        assert [out[0].item() for out in outs] == [0, 1]
        if rank == 0:
            dist.send(x, 1, group=apart)
        else:
            dist.recv(x, 0, group=apart)
        dist.barrier(group=apart)
        return f"{type(apart.operations.comm).__name__} {type(part.operations.comm).__name__}"

    assert on_ranks(2, body) == ["GlooCommunicator GlooCommunicator"] * 2
