"""How files are opened for writing in folders to which other users may write: `opener` of the built-in `open`."""

from __future__ import annotations

import errno
import os
import stat


def no_link(path: str, flags: int, mode: int = 0o666) -> int:
    """An OSError for a symbolic link, which another user may have put there."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def own(path: str, flags: int) -> int:
    """As `no_link`, and a PermissionError for another user's file. Only this user can read the file."""
    fd = no_link(path, flags & ~os.O_TRUNC, 0o600)
    about = os.fstat(fd)
    if stat.S_ISREG(about.st_mode):  # and not, for example, /dev/null
        if about.st_uid != os.geteuid():
            os.close(fd)
            raise PermissionError(errno.EPERM, f"it belongs to user {about.st_uid}", path)
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, 0)
    return fd
