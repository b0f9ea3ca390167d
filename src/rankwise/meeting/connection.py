"""A connection that carries messages: lines of JSON, and over a unix socket also descriptors."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import time
from collections.abc import Sequence

TYPE_CHECKING = False  # typing would take time to import
if TYPE_CHECKING:
    from typing import Any

PATIENCE = 5.0  # seconds within which a message must be sent
LONGEST = 1 << 18  # bytes of a message
MOST_FDS = 250  # descriptors that are sent at once; the kernel takes at most 253
KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 6, "TCP_USER_TIMEOUT": 45_000}
"""Options of TCP: a host that vanishes without closing its connections counts as lost after 45 seconds."""


class Connection:
    """One end of a connection."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(PATIENCE)
        self._socket = connected
        self._line = b""  # the beginning of a line whose end has not arrived
        self._fds: list[int] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, fds: Sequence[int] = (), /, **message: object) -> None:
        """Send a message. Reports no failure: `receive` notices if the other side is gone."""
        self.write(json.dumps(message).encode() + b"\n", fds)

    def write(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send bytes that are no message, as `send` does."""
        try:
            for first in range(0, len(fds), MOST_FDS):
                data = data[self._send_fds(data[:1], fds[first : first + MOST_FDS]) :]
            self._socket.sendall(data)
        except OSError:
            self.shut()

    def read(self, most: int) -> bytes:
        """What has arrived, or b"" if the connection has ended. Call it when data is there."""
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, most, MOST_FDS, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return b""
        self._fds += fds
        return data

    def receive(self) -> dict[str, Any] | None:
        """The next message; an empty one if it has not arrived as a whole, None if the connection has ended.

        Call it when data is there. It leaves the data of later messages there.
        """
        try:
            ahead = self._socket.recv(LONGEST, socket.MSG_PEEK)
        except OSError:
            return None
        self._line += (data := self.read(ahead.find(b"\n") + 1 or len(ahead)))
        if not data or len(self._line) > LONGEST:
            return None
        if not data.endswith(b"\n"):
            return {}
        try:
            message = json.loads(self._line)
        except (ValueError, RecursionError):
            return None
        self._line = b""
        return message if isinstance(message, dict) else None

    def take_fds(self) -> list[int]:
        """The descriptors that have come with messages since the last call. The caller closes them."""
        taken, self._fds = self._fds, []
        return taken

    def arrives(self, deadline: float) -> bool:
        """Wait until data is there, or the connection has ended; False at the deadline."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))

    def shut(self) -> None:
        """Send nothing more."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it has ended already

    def close(self) -> None:
        close_all(self.take_fds())
        self._socket.close()

    def _send_fds(self, data: bytes, fds: Sequence[int]) -> int:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return socket.send_fds(self._socket, [data], fds)
            except OSError as error:
                # The kernel limits a user's descriptors in flight; the other ranks will soon have received theirs.
                if error.errno != errno.ETOOMANYREFS or time.monotonic() > end:
                    raise
            time.sleep(0.01)


def kept_alive(end: socket.socket) -> socket.socket:
    """The same socket of TCP, with KEEP_ALIVE. What a listening socket accepts inherits it."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return end


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
