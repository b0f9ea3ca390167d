"""Installs the wheel and the source distribution as users do, on each Python: `make test-all PART=package`.

    python tests/package.py FOLDER [PYTHON ...]

By default, the Pythons are those on the PATH and of pyenv. On each, `make wheel` makes both and tries the wheel in an
empty environment without a compiler; packaging/smoke.py tries it again with torch and cloudpickle.
The source distribution is installed in another empty environment. It must hold what the repository holds: tests that
read the project's files run in it. The last lines are a table of results.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from free_threaded import run

ROOT = Path(__file__).resolve().parents[1]
SMOKE = ROOT / "packaging" / "smoke.py"
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
IN_THE_SDIST = ["tests/docs", "tests/benchmarks", *(f"tests/test_{name}.py" for name in ("layers", "package", "parts"))]
NEITHER = {"PKG-INFO", ".gitignore", ".git-blame-ignore-revs"}


def pythons() -> list[Path]:
    """One of each version that rankwise supports."""
    places = [*os.environ["PATH"].split(os.pathsep), *map(str, Path.home().glob(".pyenv/versions/*/bin"))]
    found = {}
    for place in places:
        for path in sorted(Path(place).glob("python3.*")):
            if not re.fullmatch(r"python3\.\d\d+t?", path.name) or path.name in found or "shims" in path.parts:
                continue
            supported = (
                "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10) or sys.prefix != sys.base_prefix)"
            )
            if subprocess.run([path, "-c", supported], stderr=subprocess.DEVNULL).returncode == 0:
                found[path.name] = path
    return [found[name] for name in sorted(found)]


def made_by_the_oldest(folder: Path) -> Path:
    """A source distribution, by the oldest scikit-build-core that pyproject.toml names, which reads the metadata."""
    named = re.search(r'"scikit-build-core>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert named is not None
    run(sys.executable, "-m", "venv", "--clear", folder / "oldest")
    python = folder / "oldest" / "bin" / "python"
    run(python, *PIP, f"scikit-build-core=={named[1]}")
    make = "import sys, scikit_build_core.build as build; print(build.build_sdist(sys.argv[1]))"
    made = folder / run(python, "-c", make, folder).splitlines()[-1]
    with tarfile.open(made) as archive:
        information = archive.extractfile(f"{made.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert information is not None
        text = information.read().decode()
    for line in ("License-Expression: Apache-2.0", "License-File: LICENSE", "Description-Content-Type: text/markdown"):
        assert f"\n{line}\n" in text, f"scikit-build-core {named[1]} gives no {line}"
    print(f"scikit-build-core {named[1]}, the oldest that is named, reads the metadata", flush=True)
    return made


def check_content(sdist: Path, folder: Path) -> None:
    """Unpack the source distribution, compare it with the repository, and run tests in it."""
    shutil.rmtree(folder / "sdist", ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "sdist")
    (top,) = (folder / "sdist").iterdir()
    held = {str(path.relative_to(top)) for path in top.rglob("*") if not path.is_dir()} - NEITHER
    if (ROOT / ".git").exists():
        tracked = set(run("git", "ls-files").splitlines()) - NEITHER
        assert not tracked - held, f"the source distribution lacks {sorted(tracked - held)[:20]}"
    run(sys.executable, "-m", "pytest", "-q", "-m", "not slow", *IN_THE_SDIST, where=top)
    print(f"the source distribution holds {len(held)} files, and its tests find what they read", flush=True)


def smoke(environment: Path, *words: str) -> None:
    path = f"{environment}/bin:/usr/bin:/bin"
    print(run(environment / "bin" / "python", SMOKE, *words, where=environment, variables={"PATH": path}), end="")


def try_on(python: Path, folder: Path) -> None:
    run("make", "--no-print-directory", "wheel", f"PYTHON={python}", variables={"MAKEFLAGS": ""})
    (wheel,), (sdist,) = (ROOT / "dist").glob("*.whl"), (ROOT / "dist").glob("*.tar.gz")
    assert re.search(r"-manylinux_\d+_\d+_\w+\.whl$", wheel.name), wheel.name
    environment = ROOT / "build" / "wheel-env"
    run(environment / "bin" / "python", *PIP, f"{wheel}[gloo,notebook]")
    smoke(environment, "--all")
    environment = folder / "sdist-env"
    run(python, "-m", "venv", "--clear", environment)
    run(environment / "bin" / "python", *PIP, sdist)
    smoke(environment)


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    check_content(made_by_the_oldest(folder), folder)
    rows = []
    for python in [Path(name) for name in sys.argv[2:]] or pythons():
        begun = time.monotonic()
        print(f"== {python}", flush=True)
        try_on(python, folder)
        rows.append(f"{python.name:<12} {time.monotonic() - begun:5.0f} s  the wheel and the source distribution work")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
