"""A text that identifies a process, so that another process of its host can check whether it is still alive."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rankwise.system.locality import boot_id, pid_namespace


@dataclass(frozen=True)
class ProcessIdentity:
    """A process. host: identifies this boot and its namespace of process ids. start: when it began."""

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
        """True if it was a process of this host and has ended; False if it is alive, or not visible from here."""
        if self.host != _host():
            return False
        try:
            state, start = _stat(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return True
        return start != self.start or state in "ZX"


def _host() -> str:
    return f"{boot_id()}/{pid_namespace()}"


def _stat(pid: int) -> tuple[str, str]:
    """State and start time. They follow the command, which is in parentheses and may contain anything."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]
