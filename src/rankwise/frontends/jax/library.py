"""The function that XLA calls: compiled once against the installed jaxlib's headers, and kept in the user's cache."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import jax
import jaxlib

from rankwise.system.library import get_include, get_library

SOURCE = Path(__file__).with_name("calls.cpp")
TARGET = "rankwise_call"
"""Its name in XLA."""


@lru_cache(1)
def register() -> None:
    """Make the name known to XLA.

    Raises RuntimeError if there is no C++ compiler, or if it fails.
    """
    function = ctypes.CDLL(str(_compiled())).rankwise_jax_call
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(function), platform="cpu")


def _compiled() -> Path:
    """The library, which is compiled if this combination of versions has none yet."""
    headers, engine = jax.ffi.include_dir(), Path(get_library())
    parts = (SOURCE.read_text(), jaxlib.__version__, headers, str(engine), str(engine.stat().st_mtime_ns))
    name = f"jax-{sha256(repr(parts).encode()).hexdigest()[:16]}.so"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankwise"
    if (folder / name).exists():
        return folder / name
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    if shutil.which(compiler[0]) is None:
        raise RuntimeError(
            f"rankwise.jax: no C++ compiler {compiler[0]!r}, which compiles its call for jaxlib {jaxlib.__version__} "
            "once; install one (apt install g++), or name it in CXX"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as own:  # several ranks may compile it at once
        made = Path(own, name)
        flags = ["-std=c++17", "-O2", "-w", "-shared", "-fPIC"]
        link = [f"-I{headers}", f"-I{get_include()}", str(engine), f"-Wl,-rpath,{engine.parent}"]
        command = [*compiler, *flags, str(SOURCE), *link, "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(
                f"rankwise.jax: its call cannot be compiled for jaxlib {jaxlib.__version__}: "
                f"{shlex.join(command)}\n{done.stderr[-2000:]}"
            )
        os.replace(made, folder / name)
    return folder / name
