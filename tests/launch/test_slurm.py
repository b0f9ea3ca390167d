"""Jobs under Slurm: a cluster of two nodes, both on this machine, with a controller and a munge of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from launch.launchers import free_port

pytestmark = pytest.mark.slow

START = 30.0  # seconds that the cluster may take until it is idle
CONFIGURATION = """\
ClusterName=rankwise
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={one} CPUs=4
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={two} CPUs=4
PartitionName=all Nodes=ALL Default=YES
"""
SUMS = """
import rankwise as rw
group = rw.init()
print(group.rank, group.backend, group.all_reduce(group.rank))
"""
FARM = """
import os
import rankwise as rw

def work(number):
    return number * number, os.environ["SLURM_NODEID"]

with rw.Pool(group=rw.init()) as pool:
    if pool is not None:
        done = list(pool.map(work, range(12)))
        print([square for square, _ in done], sorted({node for _, node in done}))
"""
SQUARES = str([number * number for number in range(12)])


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands find the cluster."""
    if os.geteuid() or not all(shutil.which(program) for program in ("slurmctld", "slurmd", "munged")):
        pytest.skip("this needs root, slurmctld, slurmd and munged; apt install slurm-wlm munge")
    with TemporaryDirectory() as name, ExitStack() as daemons:
        folder = Path(name)
        values = {"folder": folder, "host": socket.gethostname().partition(".")[0]}
        values |= {port: free_port() for port in ("controller", "one", "two")}
        (folder / "slurm.conf").write_text(CONFIGURATION.format(**values))
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        for part in ("state", "spool-one", "spool-two"):
            (folder / part).mkdir()
        environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

        def start(*command: str) -> None:
            with (folder / "log").open("ab") as log:
                process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            daemons.callback(process.wait, 30)
            daemons.callback(process.terminate)

        files = [f"--{option}={folder}/munge.{option.split('-')[0]}" for option in ("socket", "pid-file", "seed-file")]
        start("munged", "-F", "-f", *files, f"--key-file={folder}/munge.key", f"--log-file={folder}/munge.log")
        until(lambda: (folder / "munge.socket").exists(), folder)
        start("slurmctld", "-D")
        start("slurmd", "-D", "-N", "one")
        start("slurmd", "-D", "-N", "two")
        idle = ["sinfo", "--noheader", "--format=%t %D"]
        until(lambda: output_of(idle, environment) == "idle 2\n", folder)
        yield environment


def until(holds: Callable[[], bool], folder: Path) -> None:
    end = time.monotonic() + START
    while not holds():
        assert time.monotonic() < end, (folder / "log").read_text(errors="replace")
        time.sleep(0.1)


def output_of(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout


def srun(cluster: dict[str, str], *arguments: str, **variables: str) -> str:
    command = ["srun", "--overcommit", *arguments]
    environment = {**cluster, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ranks_and_sums(output: str) -> list[str]:
    return sorted(output.splitlines())


def test_ranks_of_one_node_share_memory(cluster: dict[str, str]) -> None:
    output = srun(cluster, "--nodes=1", "--ntasks=3", sys.executable, "-c", SUMS)
    assert ranks_and_sums(output) == [f"{rank} shm 3" for rank in range(3)]


def test_ranks_of_two_nodes_meet_at_the_given_address(cluster: dict[str, str]) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    output = srun(cluster, "--nodes=2", "--ntasks=4", sys.executable, "-c", SUMS, **address)
    assert ranks_and_sums(output) == [f"{rank} hierarchical 6" for rank in range(4)]


def test_two_nodes_without_an_address_are_refused(cluster: dict[str, str]) -> None:
    command = ["srun", "--nodes=2", "--ntasks=2", sys.executable, "-c", SUMS]
    done = subprocess.run(command, env=cluster, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode
    assert "set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port there" in done.stderr


def test_a_pool_is_served_by_the_ranks_of_both_nodes(cluster: dict[str, str]) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    output = srun(cluster, "--nodes=2", "--ntasks=4", sys.executable, "-c", FARM, **address)
    assert output == f"{SQUARES} ['0', '1']\n"


def test_a_launcher_on_each_node(cluster: dict[str, str]) -> None:
    """As docs/how-to/launchers.md shows."""
    run = f"{sys.executable} -m rankwise run --nnodes $SLURM_NNODES --node-rank $SLURM_NODEID"
    script = f'{run} --rendezvous 127.0.0.1:{free_port()} -n 2 {sys.executable} -c "$PROGRAM"'
    output = srun(cluster, "--nodes=2", "--ntasks-per-node=1", "bash", "-c", script, PROGRAM=FARM)
    assert output == f"{SQUARES} ['0', '1']\n"
