"""Finds this process's rank in the environment variables that its launcher set."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from rankwise.contract.job import Job
from rankwise.contract.logger import logger
from rankwise.system import proc
from rankwise.system.settings import Settings, integer, set_joined

Environment = Mapping[str, str]


def find_job(environ: Environment, settings: Settings, starter: Callable[[str], str] | None = None) -> Job:
    """The job of this process, which the innermost launcher started; without a launcher, a job of one rank.

    Launchers may run inside one another (torchrun under Slurm), and the innermost one's ranks count;
    hence the order of the search. starter: see `starting_process`, which is the default.

    Raises ValueError, which names the variable, if one is missing or invalid. It is also raised if
    variables announce several ranks but not how to meet them, so that no rank silently runs alone, and
    if there are variables of two jobs that no launcher sets together.
    """
    if settings.rank is not None or settings.world_size is not None:
        return _rankwise(environ, settings)
    by_torchrun = "TORCHELASTIC_RUN_ID" in environ
    meeting = environ.get("MASTER_ADDR") and environ.get("MASTER_PORT")
    if ("RANK" in environ or "WORLD_SIZE" in environ) and ("LOCAL_RANK" in environ or meeting):
        job = _torchrun(environ, settings)
        other = None if by_torchrun else _by_launcher(environ, settings, starter)
        if other is not None and (other.rank, other.world_size) != (job.rank, job.world_size):
            raise ValueError(
                f"the environment names two jobs, rank {job.rank} of {job.world_size} and rank {other.rank} of "
                f"{other.world_size} ({other.launcher}); unset the variables of one: {_variables_set(environ)}"
            )
        return job
    return _by_launcher(environ, settings, starter) or _alone(environ)


def join_job(settings: Settings) -> Job:
    """The job of this process, which joins it; one rank alone if a rank that has joined it started this process."""
    job = find_job(os.environ, settings)
    if not job.launcher:
        return job
    name = f"{job.launcher} {job.id} rank {job.rank} of {job.world_size}"
    pid, _, joined = settings.joined.partition(" ")
    if joined == name and pid != str(os.getpid()):
        logger().warning(
            "this process was started by rank %d of %s (pid %s), so it is no rank of that job: it is one rank alone",
            job.rank,
            job.launcher,
            pid,
        )
        return Job()
    set_joined(f"{os.getpid()} {name}")
    return job


def _alone(environ: Environment) -> Job:
    """One rank. Raises ValueError if a variable announces several, but those that must accompany it are missing."""
    for rank, size, needed in _ANNOUNCEMENTS:
        announced = [name for name, least in ((rank, 1), (size, 2)) if _is_at_least(environ.get(name, ""), least)]
        if announced:
            missing = [name for name in needed if not environ.get(name)]
            raise ValueError(
                f"{announced[0]}={environ[announced[0]]} announces several ranks, but without "
                f"{' and '.join(missing)} this process cannot meet the others; found: {_variables_set(environ)}. "
                f"Set what is missing, or unset {announced[0]} to run one rank alone"
            )
    return Job()


def _is_at_least(text: str, least: int) -> bool:
    return text.isdecimal() and int(text) >= least


def _by_launcher(environ: Environment, settings: Settings, starter: Callable[[str], str] | None) -> Job | None:
    """The job of mpiexec or srun."""
    if "OMPI_COMM_WORLD_RANK" in environ or "OMPI_COMM_WORLD_SIZE" in environ:
        return _open_mpi(environ, settings)
    if "PMI_RANK" in environ:
        return _mpich(environ, settings, starter or starting_process)
    if "SLURM_PROCID" in environ and _is_srun_step(environ.get("SLURM_STEP_ID", "")):
        return _slurm(environ, settings)
    return None


def _variables_set(environ: Environment) -> str:
    """The rank variables that are set, as NAME=value."""
    return ", ".join(f"{name}={environ[name]}" for name in _NAMES if name in environ)


def _rankwise(environ: Environment, settings: Settings) -> Job:
    if settings.rank is None or settings.world_size is None:
        raise ValueError("RANKWISE_RANK and RANKWISE_WORLD_SIZE: expected both or neither, found one")
    if settings.segment_fd is None:
        raise ValueError("RANKWISE_SEGMENT_FD is not set; `rankwise run` sets it together with RANKWISE_RANK")
    several = settings.local_rank is not None and settings.local_world_size is not None  # the job has several nodes
    return _checked(
        Job(
            settings.rank,
            settings.world_size,
            settings.local_rank if several else settings.rank,
            settings.local_world_size if several else settings.world_size,
            "rankwise run",
            secret=settings.secret,
            segment_fd=settings.segment_fd,
            master=_master(environ) if several else None,
            restart=settings.restart,
        )
    )


def _torchrun(environ: Environment, settings: Settings) -> Job:
    parts = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    job = _job(
        environ,
        settings,
        launcher="torchrun" if "TORCHELASTIC_RUN_ID" in environ else "RANK and WORLD_SIZE",
        rank="RANK",
        world_size="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        local_world_size="LOCAL_WORLD_SIZE",
        node="GROUP_RANK",
        identity=" ".join(environ.get(part, "") for part in parts),
    )
    return replace(job, master_serves=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True")


def _open_mpi(environ: Environment, settings: Settings) -> Job:
    return _job(
        environ,
        settings,
        launcher="mpiexec (Open MPI)",
        rank="OMPI_COMM_WORLD_RANK",
        world_size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_world_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        identity=environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid", ""),
    )


def _mpich(environ: Environment, settings: Settings, starter: Callable[[str], str]) -> Job:
    # MPICH's environment names no job, but its ranks on one host have the same parent process.
    return _job(
        environ,
        settings,
        launcher="mpiexec (MPICH)",
        rank="PMI_RANK",
        world_size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_world_size="MPI_LOCALNRANKS",
        identity=starter("PMI_RANK"),
    )


def _is_srun_step(step: str) -> bool:
    """Whether this SLURM_STEP_ID is a step of srun's tasks, not the shell of a batch script or of salloc."""
    return bool(step) and not _is_at_least(step, _SLURM_OWN_STEPS)


def _slurm(environ: Environment, settings: Settings) -> Job:
    """A task of srun."""
    sizes = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    job = _job(
        environ,
        settings,
        launcher="srun (Slurm)",
        rank="SLURM_PROCID",
        world_size=next((name for name in sizes if name in environ), sizes[0]),
        local_rank="SLURM_LOCALID",
        local_world_size="",
        node="SLURM_NODEID",
        identity=f"{environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}",
    )
    nodes = environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES")
    if nodes is None:
        return job
    tasks = _tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = integer(environ, "SLURM_NODEID") or 0
    local = job.world_size if nodes == "1" else tasks[node] if node < len(tasks) else None
    return replace(job, local_world_size=local)


def _tasks_per_node(text: str) -> list[int]:
    """Slurm writes 2,2,2,1 as "2(x3),1"."""
    counts: list[int] = []
    for part in text.split(",") if text else []:
        count, _, times = part.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    return counts


def _job(
    environ: Environment,
    settings: Settings,
    *,
    launcher: str,
    rank: str,
    world_size: str,
    local_rank: str,
    local_world_size: str,
    identity: str,
    node: str = "",
) -> Job:
    """A Job from the variables with these names. The variables for the local rank and the node may be absent."""
    numbers = {name: integer(environ, name) for name in (rank, world_size)}
    for name, number in numbers.items():
        if number is None:
            raise ValueError(
                f"environment variable {name} is not set, and this process runs under {launcher}; "
                f"found: {_variables_set(environ)}"
            )
    return _checked(
        Job(
            numbers[rank] or 0,
            numbers[world_size] or 0,
            integer(environ, local_rank),
            integer(environ, local_world_size),
            launcher,
            f"{launcher} {identity}",
            settings.secret,
            master=_master(environ),
            node=integer(environ, node),
        )
    )


def _master(environ: Environment) -> tuple[str, int] | None:
    host, port = environ.get("MASTER_ADDR"), integer(environ, "MASTER_PORT")
    return (host, port) if host and port is not None else None


def _checked(job: Job) -> Job:
    if not 0 <= job.rank < job.world_size:
        raise ValueError(f"{job.launcher} gave rank {job.rank} of {job.world_size}: expected 0 <= rank < world size")
    return job


def starting_process(variable: str) -> str:
    """The process that started this rank: its nearest ancestor without `variable`, as pid and start time.

    Returns "" if /proc does not show it.
    """
    pid = os.getpid()
    try:
        while variable in proc.environment(pid):
            pid = int(proc.stat(pid)[proc.PARENT])
        return f"{pid} {proc.stat(pid)[proc.START_TIME]}"
    except OSError:
        return ""


_NAMES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
    "PMIX_RANK", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS",
)  # fmt: skip

# A rank above 0 or a size above 1, which announce several ranks, and the other variables that such a process needs.
# SLURM_NTASKS is not listed, because the shell of an allocation, which is not a rank, has it too; nor is LOCAL_RANK,
# which programs also use to choose a device.
_ANNOUNCEMENTS = (
    ("RANK", "WORLD_SIZE", ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")),
    ("PMIX_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_RANK", "PMI_SIZE")),
    ("PMI_RANK", "PMI_SIZE", ("PMI_RANK", "PMI_SIZE")),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_PROCID", "SLURM_STEP_ID")),
)

_SLURM_OWN_STEPS = 0xFFFFFFF0  # above it are the ids of a batch script's step, of salloc's shell, and the like
