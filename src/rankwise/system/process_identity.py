"""A text that identifies a process, so that another process of its host can check whether it is still alive."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rankwise.system import proc
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
        return cls(_host(), pid, proc.stat(pid)[proc.START_TIME])

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
            fields = proc.stat(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return True
        except PermissionError:  # another user's (hidepid)
            return False
        return fields[proc.START_TIME] != self.start or fields[proc.STATE] in "ZX"


def _host() -> str:
    return f"{boot_id()}/{pid_namespace()}"
