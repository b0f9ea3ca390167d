"""Memory that the ranks of a host share."""

from __future__ import annotations

from typing import Any, Protocol


class HostMemory(Protocol):
    """One rank's access to the memory, which is freed with the last view of it on any rank."""

    @property
    def ticket(self) -> Any:
        """What the other ranks need to take the memory; a small object. Only the rank that has made it has this."""

    def hand_out(self, ranks: int, deadline: float) -> None:
        """Return when so many ranks that know the ticket have taken it; OSError at the deadline (time.monotonic)."""

    def fill(self, content: Any) -> None:
        """Copy an array of bytes to the memory's beginning, which nobody has viewed; OSError if there is no room."""

    def view(self, *, writable: bool, own_writes: bool = False) -> Any:
        """A buffer over it, which keeps it.

        own_writes: this rank may write to it, but what it writes is copied first, and seen by this rank alone.
        """

    def close(self) -> None:
        """Make no further view. Those that there are stay valid."""
