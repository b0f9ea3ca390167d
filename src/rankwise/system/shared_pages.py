"""Memory in a file without a name, whose pages are taken at once: so a lack of memory is an error, not a signal."""

from __future__ import annotations

import os
from typing import Any


def take_pages(fd: int, size: int, available: int, user: str) -> None:
    """Make the file `size` bytes long, all zero, with pages for them.

    Args:
        available: the bytes that can still be allocated.
        user: what needs the memory, for the error.

    Raises:
        MemoryError: there is no room; it says how much is needed and how much available.
    """
    if size > available:
        raise MemoryError(no_room(size, available, user))
    try:
        os.ftruncate(fd, 0)
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        raise MemoryError(f"{no_room(size, available, user)}: {error.strerror}") from error


def write_pages(fd: int, offset: int, content: Any) -> None:
    """Write an array of bytes into the file; what has no pages takes them, not zeroed first as by take_pages."""
    left = memoryview(content)
    while left:
        written = os.pwrite(fd, left, offset)
        left, offset = left[written:], offset + written


def no_room(size: int, available: int, user: str) -> str:
    """The text of that error."""
    return f"{user} needs {-(-size >> 20)} MiB of shared memory, {available >> 20} MiB are available"
