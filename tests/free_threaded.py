"""The tests on a Python without a GIL: `make test-all PART=free-threaded`.

    python tests/free_threaded.py FOLDER [--tsan] [ARGUMENT...]

The arguments are pytest's. --tsan: the stress tests of threads with ThreadSanitizer, in the bindings and in CPython.

It uses an installed python3.14t or python3.13t. If there is none, and always for --tsan, it builds CPython in FOLDER,
once, from Debian's source package. rankwise is installed in an environment in FOLDER and tested there, without
the packages that have no wheel for that Python. At the end it checks that the GIL is still off after the import of
rankwise, and prints Python's version.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
JOBS = str(len(os.sched_getaffinity(0)))
NAMES = ("python3.14t", "python3.13t")
RELEASE, PACKAGE = "trixie", "python3.13"  # of Debian
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRROR = "http://deb.debian.org/debian"
NEEDS = [
    "numpy",
    "ml_dtypes",
    "nanobind",
    "cmake",
    "ninja",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "pytest-repeat",
    "pytest-random-order",
    "hypothesis",
    "cloudpickle",
    "rich",
    "scikit-build-core",
]
TESTS = [
    "tests/arrays",
    "tests/backends/native",
    "tests/backends/test_threads.py",
    "tests/capi",
    "tests/backends/composed/test_checked.py",
    "tests/backends/composed/test_traced.py",
    "tests/conformance",
    "tests/contract",
    "tests/elastic",
    "tests/faults",
    "tests/group",
    "tests/launch",
    "tests/meeting",
    "tests/overlap",
    "tests/pool",
    "tests/properties",
    "tests/system",
    "tests/test_initialize.py",
]
WITH_WHEELS = ["-k", "not torch and not tensor and not gloo", "--ignore", "tests/group/test_async_memory.py"]
UNDER_TSAN = ["tests/stress/test_threads.py", "tests/pool/test_threads.py", "tests/launch/test_spawn_threads.py"]
ELSEWHERE = [
    "race:partial_vectorcall_fallback",  # CPython: functools.partial when it is first called
    "race_top:_PyVectorcall_FunctionInline",  # the same, read
    "race_top:generic_pycdata_new",  # CPython: ctypes when a type is first used
    "race:_dl_deallocate_tls",  # glibc frees an ended thread's thread-local storage, under locks that are not seen
]
QUIET = {"TSAN_OPTIONS": "report_bugs=0"}


def run(*command: object, where: Path = ROOT, variables: Mapping[str, str] = {}) -> str:
    """What a command prints. If it fails, show the end of that and exit."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=where,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{done.stdout[-4000:]}\n{' '.join(map(str, command))}: exit status {done.returncode}")
    return done.stdout


def source(folder: Path) -> Path:
    """CPython's source, from Debian's package."""
    found = sorted(folder.glob("Python-3*"))
    if found:
        return found[0]
    if not shutil.which("apt-get") or not Path(KEYRING).exists():
        sys.exit(f"no {' or '.join(NAMES)} is installed, and to build one this needs apt-get and {KEYRING}")
    print(f"== The source of {PACKAGE} from Debian {RELEASE}", flush=True)
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    sources = folder / "sources.list"
    sources.write_text(f"deb-src [signed-by={KEYRING}] {MIRROR} {RELEASE} main\n")
    options = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    run(*apt, "update", where=folder)
    run(*apt, "source", "--download-only", PACKAGE, where=folder)
    run("tar", "xf", next(folder.glob("*.orig.tar.xz")), where=folder)
    return next(folder.glob("Python-3*"))


def interpreter(folder: Path, tsan: bool) -> Path:
    """A Python without a GIL: one that is installed, or that this builds."""
    installed = next(filter(None, map(shutil.which, NAMES)), None)
    if installed and not tsan:
        return Path(installed)
    prefix = folder / ("python-tsan" if tsan else "python")
    made = prefix / "bin/python3"
    if not made.exists():
        tree = folder / f"{prefix.name}-build"
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(source(folder), tree, symlinks=True)
        print(f"== Building CPython in {prefix}: some minutes", flush=True)
        options = ["--disable-gil", "--disable-test-modules", *(["--with-thread-sanitizer"] if tsan else [])]
        run("./configure", "-q", f"--prefix={prefix}", *options, where=tree)
        run("make", "-s", "-j", JOBS, where=tree, variables=QUIET)
        # -l, no recursion: it would spend most of its time on the bytecode of modules that nobody imports.
        run("make", "-s", "install", "COMPILEALL_OPTS=-l", where=tree, variables=QUIET)
        shutil.rmtree(tree)
    return made


def environment(folder: Path, python: Path, tsan: bool) -> Path:
    """The Python of a virtual environment with what the tests need, as wheels."""
    venv = folder / ("env-tsan" if tsan else "env")
    if not (venv / ".made").exists():
        run(python, "-m", "venv", "--clear", venv, variables=QUIET)
        pip = (venv / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
        run(*pip, "--no-compile", "--only-binary", ":all:", *NEEDS, variables=QUIET)
        (venv / ".made").touch()
    return venv / "bin/python"


def install(folder: Path, python: Path, tsan: bool) -> None:
    """Build rankwise for this Python, and install it there."""
    print("== Building rankwise", flush=True)
    pip = (python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-build-isolation", "--no-deps")
    options = ["-C", f"build-dir={folder / ('rankwise-tsan' if tsan else 'rankwise')}"]
    if tsan:
        options += ["-C", "cmake.define.RANKWISE_SANITIZE=thread"]
    run(*pip, *options, ROOT, variables={"PATH": f"{python.parent}:{os.environ['PATH']}", **QUIET})


def suppressions(folder: Path) -> Path:
    """What ThreadSanitizer does not report: CPython's own list, and ELSEWHERE."""
    file = folder / "suppressions"
    known = (source(folder) / "Tools/tsan/suppressions_free_threading.txt").read_text()
    file.write_text(known + "\n".join(["", *ELSEWHERE, ""]))
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=lambda text: Path(text).resolve(), help="where everything is built and kept")
    parser.add_argument("--tsan", action="store_true", help="run the tests of threads with ThreadSanitizer instead")
    options, arguments = parser.parse_known_args()
    folder, tsan = options.folder, options.tsan
    folder.mkdir(parents=True, exist_ok=True)
    base = interpreter(folder, tsan)
    python = environment(folder, base, tsan)
    install(folder, python, tsan)
    command: list[str | Path] = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    if tsan:
        os.environ["TSAN_OPTIONS"] = f"exitcode=66 suppressions={suppressions(folder)}"
        command += ["-s", *UNDER_TSAN]
    else:
        command += ["-n", "3", "--dist", "loadfile", "--max-worker-restart", "0", *WITH_WHEELS, *TESTS]
        print("not tested: what needs torch, which has no wheel for this Python")
    status = subprocess.run([*command, *arguments], cwd=ROOT).returncode
    if status:
        sys.exit(status)
    check = "import sys, rankwise._watch; assert not sys._is_gil_enabled(); print(sys.version)"
    subprocess.run([python, "-c", check], check=True, env={**os.environ, **QUIET})


if __name__ == "__main__":
    main()
