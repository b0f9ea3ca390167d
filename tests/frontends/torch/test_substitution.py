"""RANKWISE_TORCH_AS=gloo: programs that ask for gloo communicate through rankwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

PRELUDE = """
import logging, torch, torch.distributed as dist
from torch.distributed import distributed_c10d
logs = []
class Kept(logging.Handler):
    def emit(self, record): logs.append((record.levelname, record.getMessage()))
logging.getLogger("rankwise").addHandler(Kept())
logging.getLogger("rankwise").setLevel(logging.INFO)
def kind(group):
    backend = group._get_backend(torch.device("cpu"))
    return "rankwise" if hasattr(backend, "comm") else type(backend).__name__
"""

ASKS_FOR_GLOO = """
dist.init_process_group("gloo")
rank = dist.get_rank()
assert kind(dist.group.WORLD) == "rankwise"
assert (dist.get_backend(), dist.get_backend_config()) == ("gloo", "cpu:gloo,cuda:gloo")
dist.monitored_barrier()
for asked in (None, "gloo", "cpu:gloo"):
    part = dist.new_group(backend=asked)
    assert (kind(part), dist.get_backend(part)) == ("rankwise", asked or "gloo")
    x = torch.ones(2)
    dist.all_reduce(x, group=part)
    assert x.tolist() == [2, 2]
assert (dist.new_group([0]) is dist.GroupMember.NON_GROUP_MEMBER) == (rank == 1)
own = dist.new_group(backend="rankwise")
assert (kind(own), dist.get_backend(own)) == ("rankwise", "rankwise")
dist.destroy_process_group()
assert len(logs) == 1 and logs[0][0] == "INFO", logs
assert "process groups of the backend gloo communicate through rankwise" in logs[0][1]
"""

BY_DEFAULT = """
dist.init_process_group()
assert (kind(dist.group.WORLD), dist.get_backend()) == ("rankwise", "undefined")
dist.destroy_process_group()
"""

COMBINED = """
import torch.testing._internal.distributed.fake_pg
from rankwise.frontends.torch.operations import ACCEPTED
dist.init_process_group("cpu:gloo,meta:fake")
for group in (dist.group.WORLD, dist.new_group()):
    assert dist.get_backend(group) == "cpu:gloo,meta:fake"
    assert kind(group) == ("rankwise" if ACCEPTED else "ProcessGroupGloo")
    x = torch.ones(2)
    dist.all_reduce(x, group=group)
    assert x.tolist() == [2, 2]
dist.destroy_process_group()
assert len(logs) == 1 and logs[0][0] == ("INFO" if ACCEPTED else "WARNING"), logs
assert ACCEPTED or "cpu:gloo,meta:fake stays as it is" in logs[0][1]
"""

UNTOUCHED = """
assert distributed_c10d._new_process_group_helper.__module__ == "torch.distributed.distributed_c10d"
assert "rankwise.frontends.torch.substitution" not in __import__("sys").modules
dist.init_process_group("gloo")
assert (kind(dist.group.WORLD), logs) == ("ProcessGroupGloo", [])
dist.barrier()  # rank 0 serves torch's store, from which the other rank may still connect
dist.destroy_process_group()
"""


def run(tmp_path: Path, program: str, **variables: str) -> None:
    """Run the program on two ranks; it fails if they do."""
    file = tmp_path / "program.py"
    file.write_text(PRELUDE + program)
    command = [sys.executable, "-m", "rankwise", "run", "-n", "2", str(file)]
    environ = {name: value for name, value in os.environ.items() if name != "RANKWISE_TORCH_AS"} | variables
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_request_for_gloo_opens_rankwise(tmp_path: Path) -> None:
    run(tmp_path, ASKS_FOR_GLOO, RANKWISE_TORCH_AS="gloo")


def test_gloo_is_the_default_on_the_cpu(tmp_path: Path) -> None:
    run(tmp_path, BY_DEFAULT, RANKWISE_TORCH_AS="gloo")


@pytest.mark.slow
def test_a_combination_keeps_its_name_and_where_torch_does_not_allow_it_its_backends(tmp_path: Path) -> None:
    run(tmp_path, COMBINED, RANKWISE_TORCH_AS="gloo")


@pytest.mark.slow
def test_unset_nothing_of_torch_is_touched(tmp_path: Path) -> None:
    run(tmp_path, UNTOUCHED)


def test_another_value_is_refused_where_torch_is_imported() -> None:
    environ = os.environ | {"RANKWISE_TORCH_AS": "nccl"}
    command = [sys.executable, "-c", "import torch"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environ, check=False)
    assert done.returncode == 1
    assert "environment variable RANKWISE_TORCH_AS='nccl': expected gloo" in done.stderr


@pytest.mark.slow
def test_an_invalid_value_of_another_variable_does_not_concern_programs_that_import_torch() -> None:
    environ = os.environ | {"RANKWISE_TORCH_AS": "gloo", "RANKWISE_TIMEOUT": "long"}
    subprocess.run([sys.executable, "-c", "import torch"], timeout=100, env=environ, check=True)
