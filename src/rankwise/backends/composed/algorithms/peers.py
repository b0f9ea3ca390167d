"""How an algorithm sends messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol


class Peers(Protocol):
    """Messages between the ranks of a group during one collective; each `send` has a `recv` of the same size.

    Messages from one rank to another arrive in the order in which they were sent. The memory at `ptr` must stay valid
    until `wait` has returned, and that of a send unchanged. Sizes are in bytes; a message of 0 bytes is not sent. An
    algorithm starts all its receives before its first send, because some engines transfer data only after the receiver
    has announced that it is ready: otherwise every message would take one more latency.

    The methods raise what the engine raises.
    """

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...

    def send(self, ptr: int, size: int, peer: int) -> Any:
        """Start to send a message; returns what `wait` waits for."""

    def recv(self, ptr: int, size: int, peer: int) -> Any:
        """Start to receive a message of exactly `size` bytes; returns what `wait` waits for."""

    def wait(self, pending: Any) -> None:
        """Wait until this send or receive is complete."""


def wait_all(peers: Peers, started: Iterable[Any]) -> None:
    """Wait until these sends and receives are complete."""
    for pending in started:
        peers.wait(pending)
