"""Messages between the ranks of a gloo group during a collective."""

from __future__ import annotations

from typing import Any

from rankwise.backends.gloo.transport import EXCHANGE_TAG, Transport


class GlooPeers:
    """The Peers of `composed.algorithms` over gloo's sends and receives."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.rank, self.world_size = transport.rank, transport.world_size

    def send(self, ptr: int, size: int, peer: int) -> Any:
        return self._transport.send(ptr, size, peer, EXCHANGE_TAG) if size else None

    def recv(self, ptr: int, size: int, peer: int) -> Any:
        return self._transport.recv(ptr, size, peer, EXCHANGE_TAG) if size else None

    def wait(self, pending: Any) -> None:
        if pending is not None:
            self._transport.wait(pending, self._transport.timeout)
