"""Tries an installed rankwise, as users get it from the package index: python packaging/smoke.py [--all]

It runs ranks with the launcher, also one that fails, and with rw.spawn, calls the C API, and runs the programs of
README.md, which is next to this folder. It needs NumPy alone. It also tries torch, Tcl and cloudpickle if they are
there; with --all, it fails if one is missing. It prints what was installed, and what was not tried.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from sysconfig import get_config_var

import rankwise as rw
from rankwise import _native

README = Path(__file__).resolve().parents[1] / "README.md"
COMMAND = [sys.executable, "-m", "rankwise"]

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

TORCH = """
import sys
import torch, torch.distributed as dist
dist.init_process_group(sys.argv[1])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
model(torch.full((1, 1), 1.0 + dist.get_rank())).sum().backward()
assert model.module.weight.grad.item() == 1.5, model.module.weight.grad
name = type(dist.group.WORLD._get_backend(torch.device("cpu"))).__module__
assert name.startswith("rankwise."), name
dist.destroy_process_group()
"""

TCL = """
package require torchtcl
torch::distributed_init [torch::get_rank] [torch::get_world_size]
set sum [torch::distributed_all_reduce [torch::full {2} [torch::get_rank] float32] "sum"]
puts [torch::tensor_to_list $sum]
"""


def run(*words: str, status: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, env={**os.environ, **variables})
    assert done.returncode == status, f"{shlex.join(words)}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def ranks(n: int, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    return run(*COMMAND, "run", "-n", str(n), "--timeout", "60", *words, status=status)


def try_alone() -> None:
    for n in (1, 2, 3):
        done = ranks(n, sys.executable, "-c", PROGRAM)
        assert f"the sum is right on {n} ranks" in done.stdout, done.stdout
    done = ranks(2, sys.executable, "-c", PROGRAM, "die", status=3)
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
        run(*COMMAND, *words)


def try_readme(with_cloudpickle: bool) -> None:
    """Run the programs of README.md, and compare what they print, in any order of the ranks."""
    tried, printed = 0, ""
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        if language == "python" and (name := re.match(r"# (\w+\.py)\n", text)):
            Path(name[1]).write_text(text, "utf-8")
        elif language == "python":
            Path("program.py").write_text(text, "utf-8")
            printed = run(sys.executable, "program.py").stdout if with_cloudpickle else ""
        elif language == "bash":
            lines = [shlex.split(line) for line in text.splitlines() if line.startswith("rankwise ")]
            printed = "".join(run(*COMMAND, *words[1:]).stdout for words in lines)
        elif language == "text" and printed:
            assert sorted(printed.splitlines()) == sorted(text.splitlines()), f"README.md: {text}\nprinted: {printed}"
            tried += 1
    assert tried == 1 + with_cloudpickle, f"{tried} of README.md's programs were tried"


def try_torch() -> None:
    Path("ddp.py").write_text(TORCH)
    ranks(2, sys.executable, "ddp.py", "rankwise")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    run(*torchrun, "ddp.py", "gloo", RANKWISE_TORCH_AS="gloo")


def try_tcl() -> None:
    Path("sum.tcl").write_text(TCL)
    assert ranks(2, "sum.tcl").stdout == "1.0 1.0\n" * 2
    if shutil.which("tclsh"):
        package = run(*COMMAND, "tclsh", "--package-path").stdout.strip()
        assert run("tclsh", "sum.tcl", TCLLIBPATH=package).stdout == "0.0 0.0\n"


def main() -> None:
    there = {name: find_spec(name) is not None for name in ("torch", "cloudpickle", "_tkinter")}
    there["Tcl"] = there.pop("_tkinter") or shutil.which("tclsh") is not None
    missing = [name for name in there if not there[name]]
    if missing and sys.argv[1:] == ["--all"]:
        sys.exit(f"missing: {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try_alone()
        try_readme(there["cloudpickle"])
        if there["torch"]:
            try_torch()
        if there["Tcl"]:
            try_tcl()
        os.chdir("/")
    print(f"rankwise {version('rankwise')} works: {_native.__file__}, {os.uname().machine}")
    if missing:
        print(f"not tried, since not installed: {', '.join(missing)}")


if __name__ == "__main__":
    main()
