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
from typing import Any

from rankwise.system.settings import Settings
from rankwise.system.shared_pages import take_pages, write_pages

_SECRET = 32  # bytes
_ACCEPT = b"\1"
_PATIENCE = 5.0  # seconds that one process may take to say the secret


class HostFile:
    """HostMemory in a file without a name, which each process maps."""

    def __init__(self, fd: int, size: int, server: DescriptorServer | None = None) -> None:
        self._fd, self._size, self._server = fd, size, server

    @classmethod
    def create(cls, size: int, available: int, user: str, filled: bool = False) -> HostFile:
        """New zeroed memory. Raises MemoryError as take_pages does; OSError: there is no descriptor.

        filled: see Communicator.host_memory.
        """
        fd = os.memfd_create("rankwise-shared", os.MFD_CLOEXEC)
        try:
            if filled:
                os.ftruncate(fd, size)
            else:
                take_pages(fd, size, available, user)
            return cls(fd, size, DescriptorServer(fd))
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def take(cls, ticket: tuple[str, str], size: int, deadline: float) -> HostFile:
        """The memory that another process of this host hands out; OSError if it does not until the deadline."""
        return cls(_take(ticket, deadline), size)

    @property
    def ticket(self) -> tuple[str, str]:
        assert self._server is not None
        return self._server.ticket

    def hand_out(self, ranks: int, deadline: float) -> None:
        assert self._server is not None
        self._server.serve(ranks, deadline)

    def fill(self, content: Any) -> None:
        write_pages(self._fd, 0, content)

    def view(self, *, writable: bool, own_writes: bool = False) -> mmap.mmap:
        if own_writes:
            return mmap.mmap(self._fd, self._size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return mmap.mmap(self._fd, self._size, mmap.MAP_SHARED, access)

    def close(self) -> None:
        os.close(self._fd)
        if self._server is not None:
            self._server.close()


class DescriptorServer:
    """Passes a descriptor to other processes of this host, until it is closed.

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


def _take(ticket: tuple[str, str], deadline: float) -> int:
    """The descriptor that another process of this host passes."""
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
