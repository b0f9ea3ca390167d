"""The MPI of this environment."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""The environment in which Open MPI runs ranks for root too."""


def mpi_launcher() -> str | None:
    """The mpiexec of this Python's environment, else the one on PATH."""
    own = Path(sys.executable).with_name("mpiexec")
    return str(own) if own.exists() else shutil.which("mpiexec")
