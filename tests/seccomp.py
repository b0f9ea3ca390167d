"""Forbids system calls to this process and its children by a seccomp filter, as a container's profile does."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

_NUMBERS = {
    "x86_64": {"process_vm_readv": 310, "process_vm_writev": 311, "seccomp": 317, "pidfd_open": 434},
    "aarch64": {"process_vm_readv": 270, "process_vm_writev": 271, "seccomp": 277, "pidfd_open": 434},
}
NUMBERS = _NUMBERS.get(platform.machine(), {})  # of this machine's system calls; empty where they are not known here

_LOAD_NUMBER, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # instructions of a filter: linux/bpf_common.h
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000  # linux/seccomp.h
_NO_NEW_PRIVILEGES, _SET_FILTER, _ALL_THREADS = 38, 1, 1


def forbid(*calls: str, kills: bool = False) -> None:
    """From now on these calls fail with EPERM, or kill the process, in all its threads."""
    program = [(_LOAD_NUMBER, 0, 0, 0)]
    for call in calls:
        program += [(_IF_EQUAL, 0, 1, NUMBERS[call]), (_RETURN, 0, 0, _KILL if kills else _FAIL | errno.EPERM)]
    program.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.syscall(
        NUMBERS["seccomp"], _SET_FILTER, _ALL_THREADS, header
    ):
        raise OSError(ctypes.get_errno(), "seccomp")
