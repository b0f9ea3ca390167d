"""What is packaged, and for which systems."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def configured(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """What CMake says of the core with these variables."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if cmake is None:
        pytest.skip("there is no cmake; pip install cmake")
    command = [cmake, "-S", str(ROOT), "-B", str(folder / "build"), "-DRANKWISE_PYTHON=OFF"]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **variables})


@pytest.mark.parametrize("library", ["glibc", "pretended", "musl"])
def test_another_c_library_than_glibc_is_refused(library: str, tmp_path: Path) -> None:
    variables = {}
    if library == "pretended":
        (tmp_path / "features.h").touch()  # with which glibc says that it is glibc
        variables["CFLAGS"] = f"-I{tmp_path}"
    elif library == "musl":
        if shutil.which("musl-gcc") is None:
            pytest.skip("there is no musl-gcc; apt install musl-tools")
        variables["CC"] = "musl-gcc"
    done = configured(tmp_path, **variables)
    if library == "glibc":
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0
        said = " ".join(done.stderr.split())
        assert "rankwise needs Linux with glibc, and " in said
        assert "Use a system with glibc" in said
