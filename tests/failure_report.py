"""What the report of a failed test shows besides its output: the stacks of its processes, and the machine's load."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from leftovers import started_processes

LONGEST_WAIT = 10.0  # seconds for the stacks of one process


def stacks() -> str:
    """The stacks of this process, whose threads may be ranks, and of every living process that the tests started."""
    processes = {os.getpid(): "the process of the tests", **started_processes()}
    return "\n".join(f"{pid} {command.strip()}\n{_stacks_of(pid)}" for pid, command in processes.items())


def _stacks_of(pid: int) -> str:
    # py-spy reads the stacks from outside: a process that hangs need not help, and any other is only paused briefly.
    program = _py_spy()
    if program is None:
        return "  no stacks: py-spy is not installed\n"
    command = [program, "dump", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LONGEST_WAIT)
    except subprocess.TimeoutExpired:
        return f"  no stacks: py-spy took more than {LONGEST_WAIT:.0f} s\n"
    if done.returncode:
        return f"  no stacks: {done.stderr.strip()}\n"
    threads = re.split(r"^(?=Thread )", done.stdout, flags=re.MULTILINE)[1:]  # what comes first names the process
    return "".join(thread for thread in threads if not thread.startswith(f"Thread {threading.get_native_id()} "))


def _py_spy() -> str | None:
    """The path of py-spy, which may be installed in another environment whose packages are visible in this one."""
    try:
        files = distribution("py-spy").files or []
    except PackageNotFoundError:
        return None
    return next((str(file.locate()) for file in files if file.name == "py-spy"), None)


def load() -> str:
    """How busy the machine is: the processes that run or wait for a core, and what memory is left."""
    lines = [f"{len(os.sched_getaffinity(0))} cores; load average of 1, 5 and 15 minutes: {_read('/proc/loadavg')}"]
    lines += [line for line in _read("/proc/meminfo").splitlines() if line.startswith(("MemAvailable", "Shmem:"))]
    for resource in ("cpu", "memory", "io"):  # a kernel may be built without it
        if pressure := _read(f"/proc/pressure/{resource}"):
            lines.append(f"waiting for {resource}: {pressure.splitlines()[0]}")
    return "\n".join(lines)


def _read(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    print(f"== The load of the machine\n{load()}")
