"""A connection that carries messages: lines of JSON."""

from __future__ import annotations

import json
import socket

TYPE_CHECKING = False  # typing would take time to import
if TYPE_CHECKING:
    from typing import Any

PATIENCE = 5.0  # seconds within which a message must be sent
LONGEST = 1 << 18  # bytes of a message
KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 6, "TCP_USER_TIMEOUT": 45_000}
"""Options of TCP: a host that vanishes without closing its connections counts as lost after 45 seconds."""


class Connection:
    """One end of a connection."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(PATIENCE)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._socket = connected
        self._line = b""  # the beginning of a line whose end has not arrived
        self.limit = LONGEST

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, **message: object) -> None:
        """Send a message. Reports no failure: `receive` notices if the other side is gone."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.shut()

    def receive(self) -> list[dict[str, Any]] | None:
        """The complete messages that have arrived; None if the connection has ended. Call it when data is there."""
        try:
            data = self._socket.recv(LONGEST)
        except OSError:
            return None
        *lines, self._line = (self._line + data).split(b"\n")
        if not data or max(map(len, (*lines, self._line))) > self.limit:
            return None
        try:
            messages = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            return None
        return messages if all(isinstance(message, dict) for message in messages) else None

    def shut(self) -> None:
        """Send nothing more."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it has ended already

    def close(self) -> None:
        self._socket.close()
