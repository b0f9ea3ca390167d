"""Who a process is, in a text that another process of its host can check: does that process still live?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessIdentity:
    """A process. host: tells this boot and its namespace of process ids from all others. start: when it began."""

    host: str
    pid: int
    start: str

    def text(self) -> str:
        return f"{self.host} {self.pid} {self.start}"

    @classmethod
    def own(cls) -> ProcessIdentity:
        pid = os.getpid()
        return cls(_host(), pid, _stat(pid)[1])

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity:
        host, pid, start = text.split()
        return cls(host, int(pid), start)

    @property
    def gone(self) -> bool:
        """True where it is a process of this host that has ended; False where it lives, or cannot be seen."""
        if self.host != _host():
            return False
        try:
            state, start = _stat(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return True
        return start != self.start or state in "ZX"


def _host() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def _stat(pid: int) -> tuple[str, str]:
    """State and start time. They stand behind the command, which is in parentheses and may contain anything."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]
