"""Memory that processes of one host share. It has no name, and is freed with the last process that maps it.

One process creates it, and passes its descriptor over a unix socket to the others, which must run as the same user and
know a secret. The socket's name is abstract, or, for containers in several network namespaces, in RANKWISE_SOCKET_DIR.
"""

from __future__ import annotations

import hmac
import mmap
import os
import secrets
import socket
import struct
import time
from contextlib import suppress

from rankwise.contract.closing import Closeable
from rankwise.system.settings import Settings
from rankwise.system.shared_pages import take_pages

_SECRET = 32  # bytes
_ACCEPT = b"\1"
_PATIENCE = 5.0  # seconds that one process may take to say the secret


def create(size: int, available: int, user: str) -> int:
    """The descriptor of new zeroed memory. Raises MemoryError as take_pages does; OSError: there is no descriptor."""
    fd = os.memfd_create("rankwise-shared", os.MFD_CLOEXEC)
    try:
        take_pages(fd, size, available, user)
    except BaseException:
        os.close(fd)
        raise
    return fd


def mapped(fd: int, size: int, *, writable: bool, own_writes: bool = False) -> mmap.mmap:
    """The memory, which this process may read, and write if it is `writable`.

    own_writes: it may write too, but what it writes is copied first, and seen by this process alone.
    """
    if own_writes:
        return mmap.mmap(fd, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    return mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))


class DescriptorServer(Closeable):
    """Passes a descriptor to other processes of this host, within a `with` block.

    ticket: what the others need to `take` it. Whoever reads it and runs as this user gets the descriptor.
    """

    def __init__(self, fd: int) -> None:
        self._fd, self._secret = fd, secrets.token_bytes(_SECRET)
        name, directory = f"rankwise-shared-{secrets.token_hex(10)}", Settings.read().socket_directory()
        self._path = None if directory is None else os.path.join(directory, name)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(f"\0{name}" if self._path is None else self._path)
            self._listener.listen(socket.SOMAXCONN)
        except BaseException:
            self._listener.close()
            raise
        self.ticket = (self._path or f"\0{name}", self._secret.hex())

    def close(self) -> None:
        self._listener.close()
        if self._path is not None:
            with suppress(FileNotFoundError):  # someone has cleared the directory
                os.unlink(self._path)

    def serve(self, processes: int, deadline: float) -> None:
        """Return when so many processes have taken it. TimeoutError at the deadline (of time.monotonic)."""
        while processes:
            self._listener.settimeout(max(0.001, deadline - time.monotonic()))
            taker, _ = self._listener.accept()
            with taker:
                taker.settimeout(_PATIENCE)
                if user_of(taker) == os.geteuid() and hmac.compare_digest(_read(taker, _SECRET), self._secret):
                    socket.send_fds(taker, [_ACCEPT], [self._fd])
                    processes -= 1


def take(ticket: tuple[str, str], deadline: float) -> int:
    """The descriptor that another process of this host passes; OSError if it does not until the deadline."""
    address, secret = ticket
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as giver:
        giver.settimeout(max(0.001, deadline - time.monotonic()))
        giver.connect(address)
        if user_of(giver) != os.geteuid():
            raise PermissionError("another user's process listens there")
        giver.sendall(bytes.fromhex(secret))
        _, fds, _, _ = socket.recv_fds(giver, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not fds:
        raise ConnectionError("no descriptor came: too many open files?")
    return fds[0]


def user_of(connection: socket.socket) -> int:
    """The user of the process at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    with suppress(TimeoutError):
        while len(data) < size and (part := connection.recv(size - len(data))):
            data += part
    return data
