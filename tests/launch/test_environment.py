"""The rank of this process, from the environment of each launcher (recorded from real ones)."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from rankwise.backends.native import shm
from rankwise.contract.errors import UnsupportedError
from rankwise.contract.job import Job
from rankwise.launch.environment import find_job, join_job, starting_process
from rankwise.system.settings import Settings

ALONE = Settings({})

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "33529",
    "TORCHELASTIC_RUN_ID": "c10e604d",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-host-7127@1",
    "PMIX_RANK": "3",
}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}
SLURM = {
    "SLURM_JOB_ID": "812",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "5",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "3,2",
}


def test_a_process_alone() -> None:
    assert find_job({}, ALONE) == Job()
    assert Job().one_host


def test_a_process_that_a_rank_started_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OPEN_MPI.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANKWISE_JOINED", "")
    assert join_job(Settings.read()).rank == 3
    assert join_job(Settings.read()).rank == 3, "the same process again"
    pid, name = os.environ["RANKWISE_JOINED"].split(" ", 1)
    assert pid == str(os.getpid())
    monkeypatch.setenv("RANKWISE_JOINED", f"{os.getppid()} {name}")
    assert join_job(Settings.read()) == Job()
    monkeypatch.setenv("PMIX_NAMESPACE", "another job, which the rank has started")
    assert join_job(Settings.read()).rank == 3


def test_a_rank_of_one_of_several_launchers() -> None:
    variables = {"RANKWISE_RANK": "5", "RANKWISE_WORLD_SIZE": "6", "RANKWISE_SEGMENT_FD": "7"}
    variables |= {"RANKWISE_LOCAL_RANK": "1", "RANKWISE_LOCAL_WORLD_SIZE": "2"}
    job = find_job({"MASTER_ADDR": "host-a", "MASTER_PORT": "4711"}, Settings(variables))
    assert (job.rank, job.world_size, job.local_rank, job.local_world_size) == (5, 6, 1, 2)
    assert (job.master, job.segment_fd, job.one_host) == (("host-a", 4711), 7, False)
    with pytest.raises(UnsupportedError, match="the launcher started 2 of the 6 ranks on this host"):
        shm.open_communicator(job, 1.0)


def test_a_process_that_replaces_a_lost_one() -> None:
    variables = {"RANKWISE_RANK": "1", "RANKWISE_WORLD_SIZE": "3", "RANKWISE_SEGMENT_FD": "7", "RANKWISE_RESTART": "2"}
    assert find_job({}, Settings(variables)).restart == 2


def test_rankwise_run() -> None:
    job = find_job(TORCHRUN, Settings({"RANKWISE_RANK": "1", "RANKWISE_WORLD_SIZE": "3", "RANKWISE_SEGMENT_FD": "7"}))
    assert job == Job(1, 3, 1, 3, "rankwise run", segment_fd=7)
    assert job.one_host
    for settings in (Settings({"RANKWISE_RANK": "1"}), Settings({"RANKWISE_WORLD_SIZE": "2"})):
        with pytest.raises(ValueError, match=r"^RANKWISE_RANK and RANKWISE_WORLD_SIZE: expected both or neither"):
            find_job({}, settings)
    with pytest.raises(ValueError, match=r"^RANKWISE_SEGMENT_FD is not set"):
        find_job({}, Settings({"RANKWISE_RANK": "0", "RANKWISE_WORLD_SIZE": "1"}))


def test_torchrun() -> None:
    job = find_job(TORCHRUN, Settings({"RANKWISE_SECRET": "s"}))
    assert (job.rank, job.world_size, job.local_rank, job.local_world_size) == (1, 2, 1, 2)
    assert (job.launcher, job.secret, job.one_host, job.node) == ("torchrun", b"s", True, 0)
    for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"):
        assert find_job({**TORCHRUN, name: "4711"}, ALONE).id != job.id
    assert (job.master, job.master_serves) == (("localhost", 33529), False)
    assert find_job({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}, ALONE).master_serves
    with pytest.raises(ValueError, match=r"MASTER_PORT='no': expected an integer"):
        find_job({**TORCHRUN, "MASTER_PORT": "no"}, ALONE)
    assert find_job({**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"}, ALONE).id == job.id
    by_hand = find_job({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "7"}, ALONE)
    assert (by_hand.local_rank, by_hand.local_world_size, by_hand.node, by_hand.one_host) == (None, None, None, False)
    assert by_hand.master == ("a", 7)


@pytest.mark.parametrize(
    ("environ", "announces", "missing"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "WORLD_SIZE=2", "MASTER_ADDR and MASTER_PORT"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "RANK=1", "MASTER_ADDR and MASTER_PORT"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "WORLD_SIZE=2", "MASTER_PORT"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4", "RANK and MASTER_ADDR and MASTER_PORT"),
        ({"PMI_SIZE": "2"}, "PMI_SIZE=2", "PMI_RANK"),
        ({"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}, "MPI_LOCALNRANKS=2", "PMI_RANK and PMI_SIZE"),
        ({"PMIX_RANK": "1"}, "PMIX_RANK=1", "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"),
        ({"SLURM_PROCID": "1"}, "SLURM_PROCID=1", "SLURM_STEP_ID"),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}, "SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID"),
    ],
)
def test_ranks_that_cannot_find_each_other_do_not_run_alone(
    environ: dict[str, str], announces: str, missing: str
) -> None:
    found = ", ".join(f"{name}={value}" for name, value in environ.items())
    with pytest.raises(
        ValueError, match=f"^{announces} announces several ranks, but without {missing} this.*found: {found}[.]"
    ):
        find_job(environ, ALONE)


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"RANK": "captain"},
        {"RANK": "0"},
        {"LOCAL_RANK": "1"},
        {"PMIX_RANK": "0"},
        {"SLURM_JOB_ID": "812", "SLURM_NTASKS": "8", "SLURM_NNODES": "2"},  # salloc's shell on the login node
        # salloc's shell on a node, which keeps the allocation's number of tasks
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"},
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"},  # a batch script
    ],
)
def test_variables_that_announce_no_second_rank(environ: dict[str, str]) -> None:
    assert find_job(environ, ALONE) == Job()


def test_incomplete_variables() -> None:
    """The error lists the variables that are set, so that the missing one is seen."""
    for name, environ in (
        ("WORLD_SIZE", {"RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "7"}),
        ("RANK", {"WORLD_SIZE": "2", "LOCAL_RANK": "0"}),
        ("OMPI_COMM_WORLD_SIZE", {"OMPI_COMM_WORLD_RANK": "1"}),
        ("OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE": "2"}),
        ("PMI_SIZE", {"PMI_RANK": "1"}),
    ):
        listed = ", ".join(f"{name}={value}" for name, value in environ.items())
        with pytest.raises(ValueError, match=f"^environment variable {name} is not set.*found: {listed}$"):
            find_job(environ, ALONE, lambda _: "1")


def test_two_jobs() -> None:
    by_hand = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "7"}
    for environ, launcher, found in (
        (OPEN_MPI, "Open MPI", "OMPI_COMM_WORLD_RANK=3, OMPI_COMM_WORLD_SIZE=8"),
        ({**MPICH, "PMI_RANK": "1"}, "MPICH", "PMI_RANK=1, PMI_SIZE=2"),
        (SLURM, "Slurm", "SLURM_PROCID=4"),
    ):
        with pytest.raises(
            ValueError, match=rf"two jobs, rank 0 of 2 and rank \d of \d \(.*{launcher}.*unset"
        ) as error:
            find_job({**environ, **by_hand}, ALONE, lambda _: "1")
        assert f"RANK=0, WORLD_SIZE=2, MASTER_ADDR=a, MASTER_PORT=7, {found}" in str(error.value).replace(
            "OMPI_COMM_WORLD_LOCAL_RANK=3, ", ""
        )
    agreeing = {**by_hand, "RANK": "3", "WORLD_SIZE": "8"}
    assert find_job({**OPEN_MPI, **agreeing}, ALONE).master == ("a", 7), "a script that passes mpiexec's numbers on"


def test_the_rendezvous_address_is_taken_from_every_launcher() -> None:
    where = {"MASTER_ADDR": "node1", "MASTER_PORT": "7"}
    for environ in (OPEN_MPI, MPICH, SLURM):
        assert find_job({**environ, **where}, ALONE, lambda _: "1").master == ("node1", 7)
        assert find_job(environ, ALONE, lambda _: "1").master is None


def test_open_mpi() -> None:
    job = find_job(OPEN_MPI, ALONE)
    assert (job.rank, job.world_size, job.local_rank, job.local_world_size) == (3, 8, 3, 4)
    assert job.launcher == "mpiexec (Open MPI)"
    assert not job.one_host
    assert find_job({**OPEN_MPI, "PMIX_NAMESPACE": "prterun-host-7127@2"}, ALONE).id != job.id


def test_mpich() -> None:
    asked = []

    def starter(variable: str) -> str:
        asked.append(variable)
        return "77 1234"

    job = find_job(MPICH, ALONE, starter)
    assert asked == ["PMI_RANK"]
    assert job == Job(0, 2, 0, 2, "mpiexec (MPICH)", "mpiexec (MPICH) 77 1234")


def test_slurm() -> None:
    job = find_job(SLURM, ALONE)
    assert job == Job(4, 5, 1, 2, "srun (Slurm)", "srun (Slurm) 812.0", node=1)
    one_node = {**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "5"}
    assert find_job(one_node, ALONE).one_host
    repeated = {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3", "SLURM_NTASKS": "7"}
    assert find_job(repeated, ALONE).local_world_size == 1


def test_the_inner_launcher_wins() -> None:
    assert find_job({**SLURM, **MPICH}, ALONE, lambda _: "1").launcher == "mpiexec (MPICH)"
    assert find_job({**SLURM, **MPICH, **OPEN_MPI}, ALONE).launcher == "mpiexec (Open MPI)"
    assert find_job({**SLURM, **OPEN_MPI, **TORCHRUN}, ALONE).launcher == "torchrun"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"RANK": "x"}, "environment variable RANK='x': expected an integer"),
        ({"RANK": "2"}, "torchrun gave rank 2 of 2: expected 0 <= rank < world size"),
        ({"RANK": "-1"}, "torchrun gave rank -1 of 2: expected"),
        ({"WORLD_SIZE": ""}, "environment variable WORLD_SIZE is not set, and this process runs under torchrun"),
        ({"LOCAL_WORLD_SIZE": "two"}, "environment variable LOCAL_WORLD_SIZE='two': expected an integer"),
    ],
)
def test_impossible_values(change: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        find_job({**TORCHRUN, **change}, ALONE)


def test_starting_process_is_the_same_for_all_it_started() -> None:
    """Also with a shell in between. This test plays the part of mpiexec."""
    code = "from rankwise.launch.environment import starting_process; print(starting_process('SOME_RANK'))"
    commands = [[sys.executable, "-c", code], ["sh", "-c", '"$0" -c "$1"; true', sys.executable, code]]
    told = [
        subprocess.run(
            command, env={**os.environ, "SOME_RANK": str(rank)}, stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip()
        for rank, command in enumerate(commands)
    ]
    assert told[0] == told[1] == starting_process("SOME_RANK")
    assert told[0].split()[0] == str(os.getpid())
