"""Runs programs of torch, and of the frameworks that build on it, on gloo and on rankwise, and compares.

    make test-all PART=clients ARGS="[--clients NAME ...] [--tests SUBSTRING] [--output]"

table.py lists them. Each framework has an environment of its own under build/clients, which is kept; it
also sees the packages of this Python's environment, torch and rankwise among them. Each program asks for
gloo. It runs on gloo, then unchanged on rankwise with RANKWISE_TORCH_AS=gloo and, where the framework takes
the name of any backend, once more with "rankwise" in place of "gloo". A program that prints a line "time: ..." also
runs on torch's backend "fake", which moves nothing: the table then has what it takes in each way. Data sets are
synthetic and models small and new, so nothing but pip uses the network.

A test fails if its program fails, hangs, leaves processes or shared memory behind or, on rankwise, never
opens a group of rankwise, or if it prints another line "result: ..." than on gloo. Ends with status 1 if a
test passes on gloo and fails on rankwise.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from clients.table import CLIENTS, Client, ClientTest
from leftovers import MARK, in_use, shared_memory_files, started_processes
from rankwise.observe.jobs import jobs_of

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
BUILD = ROOT / "build" / "clients"
ON_FAKE = ROOT / "benchmarks" / "in_turns.py"
WAYS = GLOO, UNCHANGED, BY_NAME, FAKE = "gloo", "RANKWISE_TORCH_AS", "by name", "fake"
MEMORY = Path("/dev/shm")
GRACE = 10.0  # seconds for what a program started to end after it


@dataclass
class Outcome:
    """What became of a test run in one way. why: empty if it passed.

    result, time: what its lines "result: ..." and "time: ..." say.
    """

    why: str
    seconds: float
    result: str = ""
    time: str = ""
    output: str = ""

    def __str__(self) -> str:
        return f"{'FAILED' if self.why else 'passed'} {self.seconds:6.1f} s"


# ---- environments ----


class NotInstalled(Exception):
    """pip could not install a framework; says why."""


def environment(client: Client) -> Path:
    """The folder of the client's environment, which is made unless it is there in these versions."""
    folder = BUILD / client.name
    made_of = "\n".join([sys.executable, sys.version, *client.requirements])
    stamp = folder / ".made"
    if not stamp.exists() or stamp.read_text() != made_of:
        print(f"== {client.requirements[0]} in {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        packages = next(folder.glob("lib/python*/site-packages"))
        (packages / "base.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        pip = ["python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in [*pip, *client.requirements, f"torch=={version('torch')}"], shlex.split(client.prepare):
            if command:
                done = subprocess.run(command, env=variables(folder), capture_output=True, text=True)
                if done.returncode:
                    raise NotInstalled(
                        f"{shlex.join(command)}: {(done.stderr.strip() or 'no output').splitlines()[-1]}"
                    )
        stamp.write_text(made_of)
    return folder


def variables(folder: Path) -> dict[str, str]:
    """The environment variables of a program in the environment `folder`."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "DS_ACCELERATOR": "cpu",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TORCH_EXTENSIONS_DIR": str(folder / "torch_extensions"),
    }


# ---- one test ----


def run(test: ClientTest, way: str, home: Path) -> Outcome:
    """Run a test's command in the environment `home`, in a folder that is removed after it."""
    processes, files = started_processes(), shared_memory_files()
    with tempfile.TemporaryDirectory(prefix="client-", ignore_cleanup_errors=True) as folder:
        environ = variables(home) | {"HOME": folder, "TMPDIR": folder, "RAY_TMPDIR": folder}
        environ.update([MARK.split("=")])
        if way == UNCHANGED:
            environ["RANKWISE_TORCH_AS"] = "gloo"
        programs = Path(folder, "programs")
        shutil.copytree(PROGRAMS, programs)
        if way == BY_NAME:
            for program in programs.glob("*.py"):
                program.write_text(program.read_text().replace('"gloo"', '"rankwise"'))
        command = test.command.format(programs=programs)
        if way == FAKE:
            command = command.replace(f" {programs}/", f" {ON_FAKE} --on-fake {programs}/")
        used = way in (GLOO, FAKE)
        begin = time.monotonic()
        with Path(folder, "output").open("w") as output:
            process = subprocess.Popen(
                shlex.split(command),
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            while process.poll() is None and time.monotonic() < begin + test.seconds:
                used = used or uses_rankwise(process.pid)
                time.sleep(0.1)
            seconds, status = time.monotonic() - begin, process.returncode
        finally:
            left = end_all(processes, files, GRACE if process.returncode == 0 else 0.0, test.leaves)
            process.wait()
        text = Path(folder, "output").read_text(errors="replace")
    result, taken = (re.search(rf"\b{what}: (.*)$", text, re.MULTILINE) for what in ("result", "time"))
    if status is None:
        why = f"did not end within {test.seconds} s"
    elif status:
        why = f"exit status {status}"
    elif left:
        why = f"left behind: {', '.join(left)}"
    else:
        why = "" if used else "opened no group of rankwise"
    return Outcome(why, seconds, result[1] if result else "", taken[1] if taken else "", text)


def uses_rankwise(pid: int) -> bool:
    """Whether the process or one that it started is a rank of rankwise now."""
    try:
        return bool(jobs_of(pid))
    except ProcessLookupError:
        return False


def end_all(processes: dict[int, str], files: set[str], grace: float, leaves: str = "") -> list[str]:
    """End what was started since `processes` and `files` were found; what of it did not end within `grace` seconds.

    Files whose names begin with `leaves` are removed.
    """
    end = time.monotonic() + grace
    while True:
        for file in shared_memory_files() - files if leaves else ():
            if file.startswith(leaves) and not in_use(file):
                (MEMORY / file).unlink()
        running = {pid: command for pid, command in started_processes().items() if pid not in processes}
        left = [f"process {command}" for command in running.values()]
        left += [f"/dev/shm/{file}" for file in shared_memory_files() - files if not in_use(file)]
        if not left or time.monotonic() > end:
            break
        time.sleep(0.1)
    while running:
        for pid in running:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # ended meanwhile
        running = {pid: command for pid, command in started_processes().items() if pid not in processes}
    return left


# ---- all of them ----


@dataclass
class Row:
    client: Client
    test: ClientTest
    outcomes: dict[str, Outcome]  # by way

    @property
    def worse(self) -> list[str]:
        """The ways on rankwise that fail where gloo passes."""
        if self.outcomes[GLOO].why:
            return []
        return [way for way, outcome in self.outcomes.items() if outcome.why and way != FAKE]

    def __str__(self) -> str:
        columns = [f"{self.outcomes[way]!s:<17}" if way in self.outcomes else f"{'-':<17}" for way in WAYS[:3]]
        return f"{self.client.name:<13} {self.client.version:<8} {self.test.name:<27} {' '.join(columns)}".rstrip()

    @property
    def times(self) -> str:
        """What the program took in each way; empty if it does not say."""
        if not self.outcomes[GLOO].time:
            return ""
        columns = [f"{self.outcomes[way].time if way in self.outcomes else '-':<40}" for way in (GLOO, UNCHANGED, FAKE)]
        return f"{self.client.name:<13} {self.test.name:<27} {' '.join(columns)}".rstrip()


def run_all(test: ClientTest, folder: Path) -> dict[str, Outcome]:
    """What became of the test in each way that it can be run; another result than on gloo is a failure."""
    outcomes: dict[str, Outcome] = {}
    for way in WAYS:
        if (way == BY_NAME and not test.by_name) or (way == FAKE and not (test.fake and outcomes[GLOO].time)):
            continue
        outcome = outcomes[way] = run(test, way, folder)
        expected = outcomes[GLOO]
        if way != FAKE and not outcome.why and not expected.why and outcome.result != expected.result:
            outcome.why = f"its result is {outcome.result}, and {expected.result} on gloo"
    return outcomes


def report(rows: list[Row], not_installed: dict[str, str]) -> int:
    """Print the table, why tests failed and what was not tested; the exit status."""
    print(f"\n{'client':<13} {'version':<8} {'test':<27} {' '.join(f'{way:<17}' for way in WAYS[:3])}".rstrip())
    print(*rows, sep="\n")
    if times := [row.times for row in rows if row.times]:
        heads = " ".join(f"{way:<40}" for way in (GLOO, UNCHANGED, FAKE))
        print(f"\n{'client':<13} {'test':<27} {heads}".rstrip(), *times, "", sep="\n")
    for row in rows:
        for way, outcome in row.outcomes.items():
            if outcome.why:
                print(f"{row.client.name} {row.test.name}, {way}: {outcome.why}")
        if row.outcomes[GLOO].why:
            print(f"{row.client.name} {row.test.name} fails on gloo as well: {row.test.note or 'NOT EXPLAINED'}")
    for name, why in not_installed.items():
        print(f"not tested: {name} could not be installed: {why}")
    failed = sum(bool(row.worse) for row in rows)
    print(f"{failed} of {len(rows)} tests pass on gloo and fail on rankwise")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [client.name for client in CLIENTS]
    parser.add_argument("--clients", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--tests", default="", help="only tests whose name contains this")
    parser.add_argument("--output", action="store_true", help="print what the programs print, not only if they fail")
    args = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # run() then ends what it has started
    rows: list[Row] = []
    not_installed: dict[str, str] = {}
    for client in CLIENTS:
        tests = [test for test in client.tests if args.tests in test.name]
        if client.name not in args.clients or not tests:
            continue
        try:
            folder = environment(client)
        except NotInstalled as error:
            not_installed[client.name] = str(error)
            continue
        for test in tests:
            row = Row(client, test, run_all(test, folder))
            rows.append(row)
            for way, outcome in row.outcomes.items():
                if outcome.why or args.output:
                    print(f"== {client.name} {test.name}, {way}: {outcome.why}", outcome.output, sep="\n")
            print(row, flush=True)
    return report(rows, not_installed)


if __name__ == "__main__":
    sys.exit(main())
