"""What a container, if this is one, lets the ranks of a host do: share memory, copy directly, notice a death."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

from rankwise.system import proc
from rankwise.system.settings import Settings

LIMIT = 10.0  # seconds that a trial of two processes may take

HOSTS_OWN = {"pid": 0xEFFFFFFC, "user": 0xEFFFFFFD}  # the inodes of the host's namespaces: linux/proc_ns.h

# A process that waits until its input ends, and one that reads and writes eight bytes of its memory.
TARGET = """\
import ctypes, sys
word = ctypes.create_string_buffer(b"rankwise", 8)
print(ctypes.addressof(word), flush=True)
sys.stdin.read()
"""
READER = """\
import ctypes, sys
class Range(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
libc, size, ranges = ctypes.CDLL(None, use_errno=True), ctypes.c_ulong, ctypes.POINTER(Range)
room = ctypes.create_string_buffer(8)
here, there = Range(ctypes.addressof(room), 8), Range(int(sys.argv[2]), 8)
for call in (libc.process_vm_readv, libc.process_vm_writev):
    call.argtypes = [ctypes.c_int, ranges, size, ranges, size, size]
    call.restype = ctypes.c_ssize_t
    if call(int(sys.argv[1]), here, 1, there, 1, 0) != 8:
        sys.exit(ctypes.get_errno())
"""


NAMESPACES = {
    "net": "containers with the same number can share memory: start them with --network container:FIRST",
    "pid": "containers with the same number can copy directly: start them with --pid container:FIRST",
    "user": "other numbers may forbid direct copies",
}


def namespace(kind: str) -> tuple[str, str]:
    """The number of this process's namespace, and what its being the same in two containers makes possible."""
    inode = os.stat(f"/proc/self/ns/{kind}").st_ino
    return f"{inode}{' (host)' * (HOSTS_OWN.get(kind) == inode)}", NAMESPACES[kind]


def meeting_place() -> tuple[str, str]:
    """Where the ranks of a host meet if they inherit no segment."""
    try:
        directory = Settings.read().socket_directory()
    except ValueError as error:
        return "nothing", str(error)
    if directory is None:
        return "unix socket", "between containers: --network host, or RANKWISE_SOCKET_DIR on a shared volume"
    return "unix socket", f"RANKWISE_SOCKET_DIR={directory}: mount it in the containers of all ranks"


def direct_copies() -> tuple[str, str]:
    """Whether one process may read and write the memory of another that has the same parent, as ranks have."""
    python = [sys.executable, "-S", "-E", "-c"]
    with subprocess.Popen([*python, TARGET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as target:
        assert target.stdout is not None
        address = target.stdout.readline().strip()
        reader = [*python, READER, str(target.pid), address]
        code = subprocess.run(reader, stdin=subprocess.DEVNULL, timeout=LIMIT, check=False).returncode
        target.communicate(timeout=LIMIT)
    if code == 0:
        return "allowed", "a rank can read and write the memory of another"
    return "not allowed", f"{_why_not(code)}; large messages are copied twice, through shared memory"


def _why_not(code: int) -> str:
    """What forbids process_vm_readv or process_vm_writev, which failed with this errno, and what would allow it."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    mode = scope.read_text().strip() if scope.exists() else "0"
    if code == errno.ENOSYS:
        return "the system has no process_vm_readv, as under gVisor"
    if code != errno.EPERM:
        return f"process_vm_readv failed: {os.strerror(code)}"
    if mode == "3":
        return "kernel.yama.ptrace_scope is 3, which only a restart of the host changes"
    if mode != "0":
        return (
            f"kernel.yama.ptrace_scope is {mode}: start the container with --cap-add SYS_PTRACE, or run "
            "sysctl kernel.yama.ptrace_scope=0 on the host"
        )
    if proc.fields("/proc/self/status").get("Seccomp") == "2":
        return (
            "a seccomp filter forbids it: start the container with --cap-add SYS_PTRACE, with which the profile of "
            "docker and podman allows it, or with --security-opt seccomp=unconfined"
        )
    return "the kernel forbids it: start the container with --cap-add SYS_PTRACE, or the ranks as one user"


def watching() -> tuple[str, str]:
    """Whether ranks notice each other's deaths at once, which takes a pidfd."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        why = f"pidfd_open: {error.strerror}; in a container, use a newer docker or podman, or --security-opt seccomp=…"
        return "at the timeout", why
    return "at once", "when a rank ends, the others get an error immediately"
