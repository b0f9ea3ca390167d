"""librankwise as users find it: its files, its symbols, its version, and a Python group's handle."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from compilers import compiled, compiler_for
from rankwise.contract.communicator import Communicator
from rankwise.testing import run_ranks

HEADER = Path(rw.get_include()) / "rankwise.h"
MAIN = "#include <rankwise.h>\nint main(void) { rankwise_comm c; return rankwise_init(&c) || rankwise_close(&c, 1); }\n"
DECLARED = set(re.findall(r"^\w[\w ]*?\*? ?(rankwise_\w+)\(", HEADER.read_text(), re.MULTILINE))


def loaded() -> ctypes.CDLL:
    return ctypes.CDLL(rw.get_library())


def test_this_process_has_loaded_that_library_once() -> None:
    loaded()
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert {line.split()[-1] for line in maps if "librankwise" in line} == {os.path.realpath(rw.get_library())}


def test_the_library_has_every_function_of_the_header() -> None:
    library = loaded()
    assert len(DECLARED) > 35
    for name in DECLARED:
        assert getattr(library, name)


def test_only_the_header_and_the_engine_are_exported() -> None:
    if shutil.which("nm") is None:
        pytest.skip("there is no nm; apt install binutils")
    command = ["nm", "-DC", "--defined-only", "--with-symbol-versions", rw.get_library()]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    symbols = [line.split(" ", 2)[2].rpartition("@@") for line in lines if "@@" in line]
    assert {name for name, _, node in symbols if node == "RANKWISE_1"} == DECLARED
    others = [name for name, _, node in symbols if node == f"RANKWISE_PRIVATE_{version('rankwise')}"]
    engine = re.compile(r"((typeinfo|typeinfo name|vtable) for )?rankwise::")
    assert [name for name in others if not engine.match(name)] == []
    nodes = {"RANKWISE_1", f"RANKWISE_PRIVATE_{version('rankwise')}"}
    assert {name for name, _, node in symbols if node not in nodes} <= nodes  # the nodes are symbols themselves


def test_pkg_config_and_cmake_find_it(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(MAIN)
    cmake_dir = rw.get_cmake_dir()
    if shutil.which("pkg-config") is None:
        pytest.skip("there is no pkg-config; apt install pkg-config")
    environment = {**os.environ, "PKG_CONFIG_PATH": f"{cmake_dir}/../../pkgconfig"}
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "rankwise"], env=environment, capture_output=True, text=True, check=True
    )
    build = [compiler_for(".c"), "main.c", "-o", "by-pkg-config", *flags.stdout.split()]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=60)
    subprocess.run([tmp_path / "by-pkg-config"], check=True, timeout=60)
    if shutil.which("cmake") is None:
        pytest.skip("there is no cmake; apt install cmake")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(user C)\n"
        f"find_package(rankwise {version('rankwise')} REQUIRED)\n"
        "add_executable(by-cmake main.c)\ntarget_link_libraries(by-cmake rankwise::rankwise)\n"
    )
    for command in (["cmake", "-S", ".", "-B", "build", f"-Drankwise_DIR={cmake_dir}"], ["cmake", "--build", "build"]):
        subprocess.run(command, cwd=tmp_path, check=True, timeout=100, capture_output=True)
    subprocess.run([tmp_path / "build" / "by-cmake"], check=True, timeout=60)


def test_the_header_without_call_sites(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(MAIN)
    program = compiled(tmp_path / "main.c", tmp_path, "-DRANKWISE_NO_SITES")
    subprocess.run([program], check=True, timeout=60)


def test_a_program_of_another_version_of_the_header_is_refused() -> None:
    library, comm = loaded(), ctypes.c_void_p()
    library.rankwise_error_message.restype = ctypes.c_char_p
    assert library.rankwise_init_version(99, ctypes.byref(comm)) == 5
    assert b"compiled with version 99 of rankwise.h" in library.rankwise_error_message()


def test_an_extension_of_another_release_is_refused(tmp_path: Path) -> None:
    package = Path(rw.get_library()).parents[1]
    (tmp_path / "lib").mkdir()
    own, other = f"RANKWISE_PRIVATE_{version('rankwise')}".encode(), b"RANKWISE_PRIVATE_"
    library = Path(rw.get_library()).read_bytes()
    assert own in library
    (tmp_path / "lib" / "librankwise.so").write_bytes(library.replace(own, other + b"x" * (len(own) - len(other))))
    for extension in package.glob("_native.*.so"):
        shutil.copy(extension, tmp_path)
        load = f"import ctypes; ctypes.CDLL({str(tmp_path / extension.name)!r})"
        done = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, timeout=60)
        assert f"version `{own.decode()}' not found (required by {tmp_path}" in done.stderr


def all_reduce_in_c(handle: int, x: np.ndarray) -> int:
    """What compiled code in this process does."""
    library = loaded()
    comm = ctypes.c_void_p(handle)
    address = x.ctypes.data_as(ctypes.c_void_p)
    return int(library.rankwise_all_reduce(comm, address, ctypes.c_uint64(x.size), ctypes.c_int(0), ctypes.c_int(0)))


def test_compiled_code_uses_the_group_of_a_python_rank() -> None:
    def body(group: rw.Group) -> None:
        x = np.full(3, group.rank + 1.0)
        assert all_reduce_in_c(group.handle, x) == 0
        assert list(group.all_reduce(x)) == [6.0] * 3  # the calls of both languages are in one order
        assert group.handle == group.handle
        part = group.split(0)
        assert part.handle != group.handle
        handle = part.handle
        part.close()
        assert all_reduce_in_c(handle, x) == 6  # RANKWISE_ERR_CLOSED

    run_ranks(body, 2)


def test_a_group_that_is_not_the_engines_has_no_handle() -> None:
    other: Any = SimpleNamespace(backend="gloo")
    handle: Any = Communicator.handle
    with pytest.raises(rw.UnsupportedError, match="handle is not supported by the gloo backend"):
        handle.fget(other)


@pytest.mark.parametrize("name", ["get_include", "get_library", "get_cmake_dir"])
def test_the_paths_are_known_without_loading_the_engine(name: str) -> None:
    program = f"import rankwise, sys; print(rankwise.{name}()); assert 'rankwise._native' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).exists()
