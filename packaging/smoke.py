"""Tries an installed rankwise, as users get it from the package index: python packaging/smoke.py

Needs NumPy alone. It runs ranks with the launcher, also one that fails, and with rw.spawn, and it calls the C API. The
last line says what was installed.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from sysconfig import get_config_var

import rankwise as rw
from rankwise import _native

PROGRAM = """
import sys
import numpy as np, rankwise as rw
group = rw.init()
x = np.full(100_000, group.rank, np.float32)
group.all_reduce(x)
assert (x == sum(range(group.world_size))).all()
assert [len(part) for part in group.all_gather_object("x" * group.rank)] == list(range(group.world_size))
if "die" in sys.argv and group.rank == 1:
    sys.exit(3)
group.barrier()
if group.rank == 0:
    print("the sum is right on", group.world_size, "ranks")
"""


def run(n: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rankwise", "run", "-n", str(n), "--timeout", "60", "--", sys.executable]
    return subprocess.run([*command, "-c", PROGRAM, *words], capture_output=True, text=True, timeout=200)


def main() -> None:
    for n in (1, 2, 3):
        done = run(n)
        assert done.returncode == 0, done.stderr
        assert f"the sum is right on {n} ranks" in done.stdout, done.stdout
    done = run(2, "die")
    assert done.returncode == 3, (done.returncode, done.stderr)
    assert "rank 1" in done.stderr, done.stderr
    pids = rw.spawn(os.getpid, n=2)
    assert len({*pids, os.getpid()}) == 3, pids
    library, comm = ctypes.CDLL(rw.get_library()), ctypes.c_void_p()
    assert library.rankwise_init_version(1, ctypes.byref(comm)) == 0  # a group of one rank, by the C API
    assert library.rankwise_world_size(comm) == 1
    assert os.listdir(rw.get_include()) == ["rankwise.h"]
    if get_config_var("Py_GIL_DISABLED"):
        import_module("rankwise._watch")
        assert not sys._is_gil_enabled(), "a module has turned the GIL on"  # type: ignore[attr-defined]
    for words in (["--version"], ["run", "--help"], ["doctor"]):
        subprocess.run([sys.executable, "-m", "rankwise", *words], check=True, capture_output=True, timeout=200)
    print(f"rankwise {version('rankwise')} works: {_native.__file__}, {os.uname().machine}")


if __name__ == "__main__":
    main()
