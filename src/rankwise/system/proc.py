"""What /proc shows of processes and of this machine. The readers raise OSError if there is no such process."""

from __future__ import annotations

import os

STATE, PARENT, CPU_TIMES, START_TIME = 0, 1, slice(11, 13), 19
"""Positions in `stat`. The CPU times are the user's and the system's, in clock ticks."""


def pids() -> list[int]:
    """All processes that this user may see."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command, which is in parentheses and may contain anything."""
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].decode().split()


def environment(pid: int) -> dict[str, str]:
    """The variables with which a process was started."""
    entries = _read(f"/proc/{pid}/environ").decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def fields(path: str, most: int = -1) -> dict[str, str]:
    """{name: value}, of a file with lines such as "name: value". most: how many bytes of it to read."""
    lines = _read(path, most).decode(errors="replace").splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _read(path: str, most: int = -1) -> bytes:
    with open(path, "rb") as file:
        return file.read(most)
