"""The commands in one process, and the two hosts of `rankwise tclsh`: Tcl inside Python, and the tclsh on the PATH."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.session import Session

try:
    import _tkinter as tcl_in_python
except ImportError:
    tcl_in_python = None


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    """The commands in this process, which no launcher has started."""
    for name in ("RANKWISE_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANKWISE_TCL_SIMULATE"):
        monkeypatch.delenv(name, raising=False)
    return Session(COMMANDS)


@pytest.fixture
def in_python() -> None:
    """Only where this Python has Tcl."""
    if tcl_in_python is None:
        pytest.skip("this Python has no Tcl; apt install python3-tk")


@pytest.fixture
def in_tclsh(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs started from here find no Tcl in their Python, so that `rankwise tclsh` runs on tclsh."""
    if shutil.which("tclsh") is None:
        pytest.skip("there is no tclsh; apt install tcl")
    hiding: Path = tmp_path_factory.mktemp("without_tcl")
    (hiding / "_tkinter.py").write_text("raise ImportError('this test hides it')")
    monkeypatch.setenv("PYTHONPATH", str(hiding))


@pytest.fixture
def either_host() -> None:
    """Only where `rankwise tclsh` has a host."""
    if tcl_in_python is None and shutil.which("tclsh") is None:
        pytest.skip("there is no Tcl, neither in this Python nor beside it; apt install python3-tk tcl")


@pytest.fixture(params=["in_python", "in_tclsh"])
def host(request: pytest.FixtureRequest) -> None:
    """A test of scripts runs in both hosts."""
    request.getfixturevalue(request.param)
