"""Runs the tests of the front-end of torch or jax on several releases of that library, and prints a table.

    python tests/library_versions.py torch|jax FOLDER VERSION...

VERSION is a release such as 2.13.0, or of torch "newest" for the one that requirements-torch.txt names. Each release
gets an environment of its own, FOLDER/VERSION, which is kept; it sees what is installed in the environment of
the Python that runs this. A release that is installed there already gets none. Ends with status 1 if a test
failed on one of the releases.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
NEWEST = ROOT / "tests" / "requirements-torch.txt"


@dataclass
class Result:
    """What became of the tests on one release."""

    passed: int
    failed: int
    skipped: int
    seconds: float


def python_with(library: str, wanted: str, folder: Path) -> Path:
    """A Python with this release of the library, which is installed if it is not there."""
    if installed(library) == wanted:
        return Path(sys.executable)
    where = folder / wanted
    python = where / "bin" / "python"
    made = where / ".made"
    if not made.exists():
        print(f"== {library} {wanted} in {where}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(where)], check=True)
        install = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            f"{library}=={wanted}",
        ]
        if subprocess.run([*install, "numpy"], check=False).returncode:
            sys.exit(f"{library} {wanted} cannot be tested: pip could not install it, for the reason above")
        query = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        packages = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
        outer = sysconfig.get_path("purelib")  # the library is found first, in the new environment
        Path(packages, "rankwise.pth").write_text(f"import site; site.addsitedir({outer!r})\n")
        made.touch()
    return python


def release(name: str) -> str:
    """The release that a VERSION of the command line names."""
    if name != "newest":
        return name
    (found,) = re.findall(r"^torch==(\S+)", NEWEST.read_text(), re.MULTILINE)
    return str(found)


def installed(library: str) -> str:
    """The release of the library beside this Python, without the build's label; empty if there is none."""
    try:
        return version(library).partition("+")[0]
    except PackageNotFoundError:
        return ""


def run(python: Path, tests: str, arguments: list[str]) -> Result:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [
            str(python),
            "-m",
            "pytest",
            "-q",
            tests,
            "-n",
            "2",
            "--dist",
            "loadscope",
            f"--junitxml={report}",
            *arguments,
        ]
        subprocess.run(command, cwd=ROOT, check=False)
        seconds = time.monotonic() - begin
        if not report.exists():  # pytest itself did not run
            return Result(0, 1, 0, seconds)
        (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    skipped = int(suite.attrib["skipped"])
    return Result(int(suite.attrib["tests"]) - failed - skipped, failed, skipped, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=["torch", "jax"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("versions", nargs="+")
    options, arguments = parser.parse_known_args()
    releases = [release(name) for name in options.versions]
    folder, tests = options.folder.resolve(), f"tests/frontends/{options.library}"
    results = {name: run(python_with(options.library, name, folder), tests, arguments) for name in releases}
    print(f"\n{options.library:<9}  passed  failed  skipped  seconds")
    for name, result in results.items():
        print(f"{name:<9}  {result.passed:>6}  {result.failed:>6}  {result.skipped:>7}  {result.seconds:>7.0f}")
    return any(result.failed or not result.passed for result in results.values())


if __name__ == "__main__":
    sys.exit(main())
