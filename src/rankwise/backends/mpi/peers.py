"""Messages between the ranks of an MPI communicator during a collective."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from rankwise.backends.mpi.transport import Transport


class MpiPeers:
    """Messages whose sizes are in bytes; one of 0 bytes is not sent. `wait` waits for what `send` and `recv` return.

    They travel over a duplicate of the communicator, so that no receive of the program can match them. The ranks make
    it together, in the first call that uses it.
    """

    def __init__(self, transport: Transport, duplicate: Callable[[], Any]) -> None:
        self._transport, self._duplicate = transport, duplicate
        self.rank, self.world_size = transport.rank, transport.world_size

    @cached_property
    def _comm(self) -> Any:
        return self._duplicate()

    def send(self, ptr: int, size: int, peer: int) -> Any:
        return self._comm.Isend(self._transport.bytes(ptr, size), peer) if size else None

    def recv(self, ptr: int, size: int, peer: int) -> Any:
        return self._comm.Irecv(self._transport.bytes(ptr, size), peer) if size else None

    def wait(self, pending: Any) -> None:
        if pending is not None:
            pending.Wait()

    def close(self) -> None:
        if "_comm" in vars(self):
            self._comm.Free()
