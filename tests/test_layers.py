"""The rooms import each other only along the arrows, light modules import nothing heavy, files stay short.

No room uses what another one's names say is private to it.

frontends, tools, testing -> the public names of rankwise
 frontends, elastic, pool -> initialize -> group, launch, backends
       frontends, overlap -> group -> arrays -> contract <- backends -> native
                             frontends, launch, backends -> meeting -> system -> contract
                                         elastic, group, observe -> system
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LONGEST_FILE = 600  # lines

# What the files of a room may import of rankwise, besides their own room.
MAY_IMPORT = {
    "contract": set(),
    "arrays": {"contract"},
    "group": {"contract", "arrays", "system"},
    "launch": {"contract", "system", "meeting", "rank_threads"},
    "system": {"contract"},
    "meeting": {"contract", "system"},
    "observe": {"contract", "system"},
    "backends": {"contract", "system", "meeting", "_native"},
    "overlap": {"contract", "arrays", "group"},
    # initialize.py joins the group level with the backends.
    "initialize": {"contract", "system", "group", "launch", "backends", "_native"},
    "elastic": {"contract", "system", "arrays", "group", "initialize"},
    # rank_threads.py joins them too, for ranks that this process starts as threads.
    "rank_threads": {"contract", "system", "group", "backends", "_native"},
    "pool": {"contract", "system", "arrays", "group", "launch", "initialize", "rank_threads"},
    # These alone use the package's public names: "rankwise".
    "frontends": {"contract", "system", "meeting", "arrays", "group", "launch", "overlap", "initialize", "rankwise"},
    "tools": {"contract", "system", "launch", "observe", "rankwise"},
    "testing": {
        "contract",
        "system",
        "arrays",
        "group",
        "launch",
        "backends",
        "initialize",
        "pool",
        "rank_threads",
        "_native",
        "rankwise",
    },
    # The files of the package itself, which are its public names.
    "rankwise": {
        "contract",
        "arrays",
        "group",
        "launch",
        "observe",
        "overlap",
        "elastic",
        "pool",
        "testing",
        "initialize",
        "system",
    },
}
STANDARD_LIBRARY_ONLY = {"contract", "system", "meeting"}  # besides what they may import of rankwise
TOP = {"__init__.py", "__init__.pyi", "initialize.py", "rank_threads.py", "trace.py"}
# These rooms may use the native functions that move no bytes between ranks: reading an array's address and dtype,
# copying within a rank, checking pickles, the program's own streams, recognising the engine's Works, creating and
# reading a job's segment, measuring, ending with the launcher, handing XLA what it calls.
NATIVE_HELPERS = {
    "arrays": {"address", "copy_blocks", "describe"},
    "group": {
        "HostEvents",
        "HostStream",
        "LockProtocol",
        "Request",
        "Words",
        "Work",
        "available_memory",
        "check_plain",
        "is_basic",
        "load_allowed",
    },
    "launch": {"Operation", "Segment", "SegmentView", "end_with", "thresholds", "usable_cores"},
    "observe": {
        "Operation",
        "RankState",
        "SegmentView",
        "begin_measurement",
        "end_measurement",
        "request_stacks",
        "seconds_per_tick",
        "totals",
    },
    "elastic": {"available_memory"},
    "frontends": {"Request", "SegmentView", "Work", "jax_call"},
    "pool": {"FileCopy", "Segment", "end_with", "version"},
    "tools": {"adopt_orphans", "algorithms", "thresholds", "usable_cores"},
}
# A tool may list the backends; it opens none.
BACKEND_NAMES = "rankwise.backends.registry.names"
EXTENSIONS = {"_native", "_watch"}
# What Python and torch call private and have no other name for.
PRIVATE_ELSEWHERE = {"_allgather_base", "_exit", "_set_default_timeout", "_timeout"}
# The only parts of the package that load these extensions, and what else they may import. Ranks of programs that stay
# on another library meet as those of the backend shm do, and trace as observers do.
LOADS = {
    "frontends/watch/": {"_watch", "_native", "backends", "observe"},
}

# Modules of the package itself besides __init__.py: each is the import name of a front-end.
FRONT_DOORS = {"autograd.py", "jax.py", "mpi4py.py", "numba.py", "torch.py", "watch.py"}

# Imported inside the function that needs them, never when a module loads.
HEAVY = {
    "cuda",
    "cloudpickle",
    "cupy",
    "jax",
    "matplotlib",
    "ml_dtypes",
    "mpi4py",
    "nccl",
    "numba",
    "pandas",
    "scipy",
    "sklearn",
    "tkinter",
    "torch",
}


# These modules are nothing without their library, and are themselves loaded inside a function.
BUILT_ON = {
    "frontends/torch": "torch",
    "overlap/torch_module": "torch",
    "frontends/numba": "numba",
    "frontends/jax": "jax",
}


def room_of(module: str) -> str:
    """'rankwise.group.group' -> 'group'; 'rankwise' and names found in it -> 'rankwise'."""
    name = module.split(".")[1] if "." in module else ""
    if name == "__main__":
        return "tools"  # `python -m rankwise` is the command
    return name if name in MAY_IMPORT or name in EXTENSIONS else "rankwise"


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[ast.AST, str]]:
    """Every module that the code imports, with its node: statements, and import_module("...")."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:  # what is imported may be a name in `base`, or a module of its own
                yield node, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0] if node.args else None
            if called in ("import_module", "__import__") and isinstance(first, ast.Constant):
                yield node, str(first.value)


def run_when_loading(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module loads: not function bodies, not `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield other
                yield from run_when_loading(other)
            continue
        yield node
        yield from run_when_loading(node)


def python_faults(package: Path) -> Iterator[str]:
    """What is wrong with the imports of the package in folder `package`, a line each."""
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.pyi")]):
        inside = path.relative_to(package)
        is_package = inside.stem == "__init__"
        module = module_of(path, package)
        room = room_of(module)
        if room in EXTENSIONS:
            continue  # an extension's stub
        if inside.as_posix() in FRONT_DOORS:
            room = "frontends"
        if room in ("rankwise", "initialize", "rank_threads") and inside.as_posix() not in TOP:
            yield f"{inside}: belongs to no room"
            continue
        allowed = MAY_IMPORT[room] | {room}
        allowed = allowed.union(*(more for folder, more in LOADS.items() if inside.as_posix().startswith(folder)))

        tree = ast.parse(path.read_text(encoding="utf-8"), str(inside))
        when_loading = set(run_when_loading(tree))
        built_on = {library for folder, library in BUILT_ON.items() if inside.as_posix().startswith(folder)}
        for node, name in imports(tree, module, is_package):
            where = f"{inside}:{getattr(node, 'lineno', 0)}"
            top = name.split(".")[0]
            if top == "rankwise":
                helper = name.removeprefix("rankwise._native.") in NATIVE_HELPERS.get(room, ())
                helper = helper or (room == "tools" and name == BACKEND_NAMES)
                if room_of(name) not in allowed and not helper:
                    yield f"{where}: {room} imports {name}, against the arrows"
            elif room in STANDARD_LIBRARY_ONLY and top not in sys.stdlib_module_names:
                yield f"{where}: {room} imports {name}; it takes the standard library only"
            elif top in HEAVY and node in when_loading and top not in built_on:
                yield f"{where}: imports {name} when it loads; import it inside the function that needs it"


def privacy_faults(package: Path) -> Iterator[str]:
    """Where a room uses a private name, of an object or a module, that only other rooms define, a line each.

    Each front-end and each backend is a room of its own here.
    """
    defined: dict[str, set[str]] = {}
    used: list[tuple[str, str, str]] = []  # the place, its room, the name
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        room = "/".join(inside.parts[: 2 if inside.parts[0] in ("frontends", "backends") else 1])
        names = defined.setdefault(room, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{inside}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.id if isinstance(node, ast.Name) else node.attr)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls", "super()"):
                used.append((where, room, node.attr))
            elif isinstance(node, ast.ImportFrom) and (node.module or "rankwise").startswith("rankwise"):
                used += [(where, room, alias.name) for alias in node.names]
    for where, room, name in used:
        if re.match("_[^_]", name) and name not in defined[room] | EXTENSIONS | PRIVATE_ELSEWHERE:
            owners = [other for other, names in defined.items() if name in names]
            if owners:
                yield f"{where}: {name} is private to {', '.join(owners)}"


def module_of(path: Path, package: Path) -> str:
    """The module's name; for an __init__.py the name of its package."""
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(["rankwise", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def circles(package: Path) -> set[frozenset[str]]:
    """The files that import each other, directly or through others: a set of files for each circle.

    Imports inside functions and under TYPE_CHECKING count.
    """
    files = {module_of(path, package): path for path in package.rglob("*.py")}
    needs: dict[str, set[str]] = {}
    for module, path in files.items():
        found = set()
        for _, name in imports(ast.parse(path.read_text(encoding="utf-8")), module, path.stem == "__init__"):
            while name and name not in files and name not in {f"rankwise.{one}" for one in EXTENSIONS}:
                name = name.rpartition(".")[0]
            found.add(name)
        needs[module] = (found & files.keys()) - {module}

    reach = {module: reachable(needs, needs[module]) for module in files}
    found_circles = set()
    for module in files:
        if module in reach[module]:
            members = {module, *(other for other in reach[module] if module in reach[other])}
            found_circles.add(frozenset(files[one].relative_to(package).as_posix() for one in members))
    return found_circles


def native_faults(native: Path) -> Iterator[str]:
    """What is wrong with the includes of the core, a line each."""
    core = native / "core"
    needs: dict[str, set[str]] = {}  # by folder; the files above the folders are comm
    for path in sorted(core.rglob("*.[ch]pp")):
        inside = path.relative_to(core)
        folder = "comm" if inside.parent == Path() else inside.parts[0]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not (found := re.match(r"\s*#\s*include\s*([<\"])([^>\"]+)", line)):
                continue
            name = found[2]
            outside = (native / "bindings" / name).exists()
            if outside or name.startswith(("Python.h", "nanobind/", "pybind11/", "..")):
                yield f"core/{inside}:{number}: the core knows no Python: {line.strip()}"
            elif found[1] == '"':
                needs.setdefault(folder, set()).add(Path(name).parts[0] if "/" in name else "comm")
    for folder in sorted(needs):
        if others := needs[folder] - {folder}:
            if folder == "base":
                yield f"core/base includes {', '.join(sorted(others))}; it includes no other folder"
            elif folder in reachable(needs, others):
                yield f"core/{folder} includes itself through {', '.join(sorted(others))}"


def reachable(needs: dict[str, set[str]], first: set[str]) -> set[str]:
    """These folders, and what they include directly or through others."""
    seen: set[str] = set()
    left = set(first)
    while left:
        seen |= left
        left = set().union(*(needs.get(one, set()) for one in left)) - seen
    return seen


def length_faults(*folders: Path) -> Iterator[str]:
    """Source files that are too long to find one's way in, a line each."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in {".py", ".pyi", ".cpp", ".hpp", ".txt"} and "__pycache__" not in path.parts:
                lines = len(path.read_text(encoding="utf-8").splitlines())
                if lines > LONGEST_FILE:
                    yield f"{path.relative_to(folder.parent)}: {lines} lines, at most {LONGEST_FILE}"


def test_imports_follow_the_arrows() -> None:
    package = ROOT / "src" / "rankwise"
    rooms = {path.parent.name for path in package.glob("*/*.py")}
    assert {"contract", "backends", "arrays", "group", "tools", "testing"} <= rooms, (
        "the rooms are not where this test looks"
    )
    assert list(python_faults(package)) == []


def test_no_room_uses_private_names_of_another() -> None:
    assert list(privacy_faults(ROOT / "src" / "rankwise")) == []


@pytest.mark.parametrize(
    "code",
    [
        "def f(group):\n    return group._comm",
        "from rankwise.group.group import _comm",
    ],
)
def test_a_private_name_of_another_room_is_found(tmp_path: Path, code: str) -> None:
    for file, text in {
        "group/group.py": "class Group:\n    def __init__(self):\n        self._comm = 1",
        "group/mesh.py": "def f(group):\n    return group._comm",
        "tools/run.py": code,
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    assert list(privacy_faults(tmp_path)) == [f"tools/run.py:{1 + code.count(chr(10))}: _comm is private to group"]


def test_no_two_files_import_each_other() -> None:
    assert circles(ROOT / "src" / "rankwise") == set()


@pytest.mark.parametrize(
    "code",
    [
        "from rankwise.group import second",
        "from . import second",
        "def f():\n    from .second import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rankwise.group.second import Name",
        "import rankwise.group.second",
    ],
)
def test_a_circle_is_found(tmp_path: Path, code: str) -> None:
    room = tmp_path / "rankwise" / "group"
    room.mkdir(parents=True)
    (room / "__init__.py").write_text("")
    (room / "first.py").write_text(code)
    (room / "second.py").write_text("from rankwise.group.third import name")
    (room / "third.py").write_text("from rankwise import _native\nfrom rankwise.group.first import name")
    found = circles(tmp_path / "rankwise")
    assert found == {frozenset({"group/first.py", "group/second.py", "group/third.py"})}


def test_the_folders_of_the_core_form_layers() -> None:
    assert {path.parent.name for path in (ROOT / "native" / "core").rglob("*.hpp")} >= {"base", "sync", "transport"}
    assert list(native_faults(ROOT / "native")) == []


def test_files_are_short() -> None:
    folders = [ROOT / name for name in ("src", "native", "tests", "examples")]
    assert list(length_faults(*folders)) == []


@pytest.mark.parametrize(
    ("file", "code", "fault"),
    [
        ("contract/work.py", "import numpy", "standard library only"),
        ("meeting/store.py", "def f():\n    import torch", "standard library only"),
        ("meeting/store.py", "from rankwise.launch import nodes", "against the arrows"),
        ("contract/work.py", "from rankwise.group import mesh", "against the arrows"),
        ("contract/work.py", "def f():\n    from ..group.group import Group", "against the arrows"),
        ("group/group.py", "from rankwise.backends.native.shm import open", "against the arrows"),
        ("group/group.py", "from rankwise import _native", "against the arrows"),
        ("group/group.py", "from rankwise._native import Comm", "against the arrows"),
        ("group/group.py", "import rankwise", "against the arrows"),
        ("frontends/mpi4py/world.py", "from rankwise import _watch", "against the arrows"),
        (
            "group/group.py",
            "from importlib import import_module\nimport_module('rankwise.backends.native.shm')",
            "arrows",
        ),
        ("backends/native/shm.py", "from ...group import mesh", "against the arrows"),
        ("backends/native/shm.py", "from ... import group", "against the arrows"),
        ("backends/gloo.py", "import torch.distributed", "when it loads"),
        ("backends/mpi.py", "try:\n    from mpi4py import MPI\nexcept ImportError:\n    MPI = None", "when it loads"),
        ("tools/run.py", "import rankwise.frontends.tcl", "against the arrows"),
        ("tools/run.py", "from rankwise.backends.registry import opener", "against the arrows"),
        ("launch/local.py", "from rankwise.backends import registry", "against the arrows"),
        ("launch/local.py", "from rankwise.observe import spans", "against the arrows"),
        ("observe/jobs.py", "from rankwise.launch import local", "against the arrows"),
        ("overlap/plan.py", "from rankwise.tools import run", "against the arrows"),
        ("overlap/plan.py", "def f():\n    from rankwise.initialize import init", "against the arrows"),
        ("overlap/plan.py", "from rankwise import init", "against the arrows"),
        ("elastic/state.py", "import rankwise as rw", "against the arrows"),
        ("__init__.py", "from rankwise.backends import shm", "against the arrows"),
        ("helpers.py", "", "belongs to no room"),
        ("torch.py", "from rankwise.backends import shm", "against the arrows"),
        ("torch.py", "import torch", "when it loads"),
        ("group/base.py", "from rankwise.torch import register", "against the arrows"),
        ("frontends/torch/group.py", "import jax", "when it loads"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, file: str, code: str, fault: str) -> None:
    path = tmp_path / "rankwise" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    faults = list(python_faults(tmp_path / "rankwise"))
    assert len(faults) == 1, faults
    assert faults[0].startswith(file)
    assert fault in faults[0]


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("contract/work.py", "import dataclasses\nfrom rankwise.contract.types import DType"),
        ("initialize.py", "from rankwise.backends import registry\nimport rankwise._native"),
        ("arrays/buffers.py", "import numpy\nfrom rankwise.contract import types"),
        ("arrays/buffers.py", "from rankwise._native import describe"),
        ("group/streams.py", "from rankwise._native import HostEvents, HostStream"),
        ("backends/native/shm.py", "from rankwise._native import Comm\nfrom ...contract.types import DType"),
        ("backends/gloo.py", "def open_group():\n    import torch"),
        ("backends/gloo.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("tools/run.py", "from rankwise.launch import local\nimport rankwise as rw"),
        ("torch.py", "def open():\n    from rankwise.frontends.torch import group"),
        ("frontends/torch/group.py", "import torch\nfrom rankwise.group import work"),
        ("testing/ranks.py", "from rankwise.backends import threads\nfrom rankwise.launch.spawn import spawn"),
        ("__main__.py", "from rankwise.tools.cli import main"),
        ("_native.pyi", "from collections.abc import Sequence"),
    ],
)
def test_an_allowed_import_passes(tmp_path: Path, file: str, code: str) -> None:
    path = tmp_path / "rankwise" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    assert list(python_faults(tmp_path / "rankwise")) == []


@pytest.mark.parametrize(
    ("file", "include", "fault"),
    [
        ("collectives/all_reduce.cpp", "#include <Python.h>", "knows no Python"),
        ("collectives/all_reduce.cpp", '# include "nanobind/nanobind.h"', "knows no Python"),
        ("collectives/all_reduce.cpp", '#include "gil.hpp"', "knows no Python"),
        ("base/errors.cpp", '#include "sync/waiting.hpp"', "includes no other folder"),
        ("sync/waiting.cpp", '#include "memory/heap.hpp"', "includes itself"),
        ("sync/waiting.cpp", '#include "comm.hpp"', "includes itself"),
    ],
)
def test_a_forbidden_include_of_the_core_is_found(tmp_path: Path, file: str, include: str, fault: str) -> None:
    sources = {
        "bindings/gil.hpp": "",
        "core/comm.hpp": '#include "collectives/all_reduce.hpp"\n#include "memory/heap.hpp"',
        "core/memory/heap.hpp": '#include "sync/waiting.hpp"',
        f"core/{file}": f'#include <atomic>\n#include "{file.replace("cpp", "hpp")}"\n{include}\n',
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    faults = list(native_faults(tmp_path))
    assert faults, "nothing is found"
    assert all(fault in line for line in faults)


def test_a_long_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text("x = 1\n" * LONGEST_FILE)
    (tmp_path / "long.cpp").write_text("// x\n" * (LONGEST_FILE + 1))
    assert [line.split(":")[0] for line in length_faults(tmp_path)] == [f"{tmp_path.name}/long.cpp"]


def test_what_a_native_file_declares_by_another_name_is_used() -> None:
    """As clang-tidy's misc-unused-using-decls and misc-unused-alias-decls say of files that it takes one by one."""
    for folder in ("core", "capi"):
        for file in (ROOT / "native" / folder).rglob("*.cpp"):
            text = file.read_text(encoding="utf-8")
            for names in re.findall(r"^\s*(?:using (?:\w+::)+(\w+);|namespace (\w+) = )", text, re.MULTILINE):
                name = "".join(names)
                uses = len(re.findall(rf"\b{name}\b", text)) - 1
                assert uses, f"{file}: {name} is not used"
