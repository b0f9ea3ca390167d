"""The commands on real ranks, against NumPy: run_ranks.py does the checking, on every rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("run_ranks.py")
RUN = [sys.executable, "-m", "rankwise", "run"]


@pytest.mark.parametrize("n", [1, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))])
def test_commands_on_ranks(n: int) -> None:
    done = subprocess.run([*RUN, "-n", str(n), str(PROGRAM)], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "all well\n" * n


MEET = """
import sys
from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.session import Session

session = Session(COMMANDS)
for number in range(int(sys.argv[2])):
    print(*session.answer("distributed_init", [sys.argv[1], "2", "127.0.0.1", sys.argv[3], "gloo"])[:2])
    print(*session.answer("distributed_all_reduce", [session.answer("full", ["1", sys.argv[1]])[1]])[:2])
    print(session.answer("tensor_item", [list(session.handles.tensors)[-1]])[1])
"""


def meet(rank: int, times: int, port: int, timeout: float) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", MEET, str(rank), str(times), str(port)]
    environment = {**os.environ, "RANKWISE_TIMEOUT": str(timeout)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_ranks_meet_at_an_address() -> None:
    ranks = [meet(rank, 2, 29517, 30) for rank in range(2)]
    for rank, process in enumerate(ranks):
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        lines = out.splitlines()
        said = f"Distributed training initialized (2 processes): rank={rank}, world_size=2, backend="
        assert lines[0].startswith(f"ok {said}")
        assert lines[3].startswith(f"ok {said}")  # once more, with the group that is there
        assert (lines[2], lines[5]) == ("1.0", "1.0")


@pytest.mark.slow
def test_a_rank_whose_peers_do_not_join_fails_with_an_error() -> None:
    process = meet(1, 1, 29518, 0.5)
    out, _ = process.communicate(timeout=60)
    assert out.startswith("error ")
    assert "0.5 s" in out.splitlines()[0]


def test_simulation_on_demand_under_a_launcher() -> None:
    code = (
        "from rankwise.frontends.tcl.commands import COMMANDS; "
        "from rankwise.frontends.tcl.session import Session; s = Session(COMMANDS); "
        "print(s.answer('distributed_init', ['3', '8', 'nccl'])[1], s.answer('distributed_barrier', [])[1])"
    )
    environment = {**os.environ, "RANKWISE_TCL_SIMULATE": "1"}
    words = [*RUN, "-n", "2", "python", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    for line in done.stdout.splitlines():
        assert line.startswith("Distributed training initialized (emulated multi-GPU): rank=3, world_size=8, ")
        assert line.endswith("Barrier synchronized (simulated multi-GPU)")
