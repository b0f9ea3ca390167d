"""Which processes can share memory: those whose localities are equal.

Ranks in several containers of one host have equal localities if they can connect to one unix socket. A socket with an
abstract name exists in one network namespace; one in a directory that the containers share (RANKWISE_SOCKET_DIR) can
be reached from every network namespace. Their other namespaces (PID, IPC, mount, user) may differ.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankwise.system import proc
from rankwise.system.settings import Settings

# What two localities may differ in, and what to do about it.
REMEDIES = {
    "host": "use hierarchical, or start all ranks on one host",
    "user": "start all ranks as the same user of the host",
    "security label": "start the containers with one label, or without any: --security-opt label=disable",
    "socket directory": "mount one directory in all containers and set RANKWISE_SOCKET_DIR to it on all ranks",
    "network namespace": "start the containers with --network host, or the second with --network container:FIRST, or "
    "mount one directory in all of them and set RANKWISE_SOCKET_DIR to it on all ranks",
}


def locality() -> dict[str, str]:
    """The locality of this process. ValueError if RANKWISE_SOCKET_DIR cannot be trusted."""
    directory = Settings.read().socket_directory()
    marks = {
        "host": boot_id(),
        "user": str(user()),
        "security label": _security_label(),
    }
    if directory is None:
        return marks | {"network namespace": str(os.stat("/proc/self/ns/net").st_ino)}
    info = os.stat(directory)
    return marks | {"socket directory": f"{info.st_dev}:{info.st_ino}"}


def mark() -> bytes:
    """Equal in all processes that can share memory with this one, and in no others."""
    import hashlib  # most processes have one host, and do not ask

    return hashlib.sha256(repr(sorted(locality().items())).encode()).digest()


def difference(own: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """The first part in which two localities differ, a key of REMEDIES; None if they are equal in all these parts."""
    return next((part for part in REMEDIES if own.get(part) != other.get(part)), None)


def user() -> int:
    """The effective user of this process, as the processes outside its user namespace see it."""
    own = os.geteuid()
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, outside, count = map(int, line.split())
        if inside <= own < inside + count:
            return outside + own - inside
    return own


def boot_id() -> str:
    """Identifies this boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> int:
    """The inode of this process's PID namespace. A pid is valid only in its namespace."""
    return os.stat("/proc/self/ns/pid").st_ino


def _security_label() -> str:
    """This process's SELinux or AppArmor label. Between different labels, connections may be forbidden."""
    try:
        return Path("/proc/self/attr/current").read_text().strip("\0\n")
    except OSError:  # there is no such security module
        return ""


# ---- a text that identifies a process, so that another process of its host can check whether it is still alive ----


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
