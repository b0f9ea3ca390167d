"""Importing rankwise is quick and brings in nothing that the program did not ask for."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"cloudpickle", "cuda", "cupy", "jax", "matplotlib", "ml_dtypes", "mpi4py", "nccl", "sklearn", "torch"}
MOST = 230  # modules that rankwise, with every public name loaded, may add to NumPy's; each takes half a millisecond

EVERY_NAME = "import rankwise; [getattr(rankwise, name) for name in rankwise.__all__]"


def python(code: str, *launcher: str) -> str:
    """What a fresh interpreter prints for `code`."""
    command = [sys.executable, *launcher, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def loaded_by(code: str, *launcher: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after `code`."""
    code = f"{code}\nimport sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(python(code, *launcher).split())


@pytest.mark.parametrize("name", ["autograd", "elastic", "overlap", "testing", "trace"])
def test_a_module_of_the_package_can_be_imported(name: str) -> None:
    code = f"import rankwise.{name} as first, rankwise; assert first is rankwise.{name}; print(first.__name__)"
    assert python(code) == f"rankwise.{name}"


def test_import_loads_few_modules() -> None:
    """Counts modules, not time, which depends on the machine and its load."""
    added = f"import sys, numpy; before = len(sys.modules); {EVERY_NAME}; print(len(sys.modules) - before)"
    assert int(python(added)) < MOST


@pytest.mark.parametrize(
    "code",
    [
        EVERY_NAME,
        "import numpy, rankwise; rankwise.init().all_reduce(numpy.ones(3))",
        "import rankwise.tools.cli, rankwise.testing",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    assert loaded_by(code) & HEAVY == set()


@pytest.mark.parametrize(
    "code",
    [
        "import rankwise",
        "import rankwise.contract.communicator",
        "import rankwise.tools.cli",
        "import rankwise.tools.run",
    ],
)
def test_the_launcher_and_the_contract_do_without_numpy(code: str) -> None:
    assert "numpy" not in loaded_by(code)


def test_the_launcher_imports_little() -> None:
    """Each of these costs the launcher one to seven ms, unless one of its libraries imports it anyway."""
    slow = {"ctypes", "dataclasses", "inspect", "json", "logging", "pathlib", "shutil", "tempfile", "typing"}
    libraries = "import argparse, contextlib, selectors, socket, subprocess, rankwise"
    assert slow & loaded_by("import rankwise.tools.run") <= loaded_by(libraries)


def test_ranks_that_inherit_their_segment_import_no_sockets() -> None:
    ours = loaded_by("import rankwise; rankwise.init().barrier()", "-m", "rankwise", "run", "-n", "1", "python")
    slow = {"email", "hashlib", "hmac", "json", "logging", "selectors", "socket"}
    assert slow & ours <= loaded_by("import numpy, rankwise")


def test_an_import_is_seen() -> None:
    assert "numpy" in loaded_by("import numpy")
