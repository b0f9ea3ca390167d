"""nccl on a real GPU: conformance, and arrays in the GPU's memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.backends.nccl import communicator as nccl
from rankwise.contract.errors import BackendUnavailable
from rankwise.testing import check_backend

pytestmark = pytest.mark.gpu
PROGRAM = Path(__file__).with_name("gpu_program.py")


@pytest.fixture(params=[1, 2])
def ranks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """So many ranks share the first GPU."""
    try:
        version = nccl.libraries().nccl.get_version()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    if request.param > 1 and version < 23000:
        pytest.skip(f"two ranks on one GPU need NCCL 2.30 or newer, and this is {version}")
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    return int(request.param)


def test_conformance(ranks: int) -> None:
    report = check_backend("nccl", ranks)
    assert report.ok, report.failures[:10]


def test_arrays_on_the_gpu(ranks: int) -> None:
    command = [sys.executable, "-m", "rankwise", "run", "-n", str(ranks), "--backend", "nccl", str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=dict(os.environ))
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "training: ok" in done.stdout
