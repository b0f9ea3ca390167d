"""What docs/how-to/compiled.md shows compiles, runs, and prints what the page says."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rankwise as rw
from compilers import compiler_for, run
from snippets import check_commands, read, write_files

SNIPPETS = read("docs/how-to/compiled.md")


def test_the_programs_run_as_shown(tmp_path: Path) -> None:
    compiler_for(".c")
    write_files(SNIPPETS, tmp_path)
    for snippet in SNIPPETS:
        if name := re.match(r"/\* (\w+\.c) \*/\n", snippet.text):
            (tmp_path / name[1]).write_text(snippet.text)
    commands = [snippet for snippet in SNIPPETS if snippet.language == "bash"]
    assert len(commands) == 2
    for snippet in commands:
        check_commands(snippet, tmp_path)


@pytest.mark.slow
def test_numba_runs_as_shown(tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="there is no numba; pip install numba")
    snippet = next(snippet for snippet in SNIPPETS if "import numba" in snippet.text)
    (tmp_path / "norm.py").write_text(snippet.text)
    done = run(2, sys.executable, tmp_path / "norm.py")
    assert (done.returncode, done.stdout) == (0, f"{200**0.5}\n" * 2), done.stderr


def test_jax_runs_as_shown(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="there is no JAX; pip install jax")
    snippet = next(snippet for snippet in SNIPPETS if "import jax" in snippet.text)
    (tmp_path / "norm.py").write_text(snippet.text)
    done = run(2, sys.executable, tmp_path / "norm.py")
    assert (done.returncode, done.stdout) == (0, "14.142136\n" * 2), done.stderr


def test_c_takes_the_handle_of_a_python_group(tmp_path: Path) -> None:
    source = next(snippet.text for snippet in SNIPPETS if "rankwise_from_handle" in snippet.text)
    (tmp_path / "mean.c").write_text(f"#include <rankwise.h>\n{source}")
    library = rw.get_library()
    link = [library, f"-Wl,-rpath,{Path(library).parent}"]
    build = [compiler_for(".c"), "-shared", "-fPIC", f"-I{rw.get_include()}", "mean.c", *link, "-o", "mean.so"]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=60)
    mean = ctypes.CDLL(str(tmp_path / "mean.so")).mean
    mean.restype, mean.argtypes = ctypes.c_double, (ctypes.c_uint64, ctypes.c_double)

    def body(group: rw.Group) -> float:
        return float(mean(group.handle, float(group.rank)))

    assert rw.testing.run_ranks(body, 3) == [1.0] * 3
