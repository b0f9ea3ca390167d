"""The open communicators of this process: closed at interpreter exit, and after a fork usable in the parent only."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Sequence

from rankwise.contract.closing import ClosingOrder, close_at_exit
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import RankwiseError
from rankwise.contract.failure import Failure
from rankwise.contract.logger import logger
from rankwise.system.alive import Alive


class OpenCommunicator(Communicator):
    """One rank's communicator in one group, which is closed at interpreter exit if it is still open."""

    def __init__(self, rank: int, world_size: int) -> None:
        """Called last by a subclass's __init__, since the communicator may be closed from then on."""
        self._rank = rank
        self._world_size = world_size
        _open.add(self)

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<{self.backend} communicator, rank {self._rank} of {self._world_size}{state}>"

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    @abstractmethod
    def split(self, color: int, key: int = 0) -> OpenCommunicator | None: ...

    @abstractmethod
    def shrink(self, exclude: Sequence[int] = ()) -> OpenCommunicator: ...

    def abort(self, reason: str) -> None:
        self.fail(f"aborted the group: {reason}")

    @abstractmethod
    def fail(self, how: str) -> None:
        """Fail the group: the other ranks raise a PeerLostError that names this rank and says `how` it was lost."""

    # ---- as a part of a larger group ----

    def has_failed(self) -> bool:
        """Whether the group is known to have failed, or was closed; False where only its calls say so."""
        return False

    def become_part(self) -> None:
        """From now on each operation is a step of one of the larger group, which counts and compares the calls."""
        self.counted = False

    @abstractmethod
    def fail_as_part(self, failure: Failure) -> None:
        """Fail this group because the larger one has failed, so that the ranks of this one find the reason."""

    def explain_timeout(self, call: str, sequence: int) -> RankwiseError | None:
        """Which ranks are late, if this rank timed out in `call` of the larger group; None if the engine cannot tell.

        The other ranks that take part in the call must call this too, since each of them says where it is.
        """
        return None

    # ---- its end ----

    @abstractmethod
    def forked(self) -> None:
        """Called in a forked child of the process that opened it."""

    def process_ends(self) -> None:
        """The interpreter is about to end; `close` will follow."""

    def _warn(self, trouble: str) -> None:
        """Log what went wrong during closing."""
        logger().warning("closing rank %d of %d (%s): %s", self._rank, self._world_size, self.backend, trouble)

    def __del__(self) -> None:
        if not self.closed and hasattr(self, "_world_size"):  # absent where __init__ raised
            self.close()


_open: Alive[OpenCommunicator] = Alive()


def _close_all(left: Callable[[], float]) -> None:
    """Close what is still open, the newest first. left: returns the seconds that remain."""
    for opened in _open:
        opened.process_ends()
    for opened in reversed(list(_open)):
        opened.close(left())


def _forked() -> None:
    for opened in _open:
        opened.forked()
    _open.clear()


close_at_exit(ClosingOrder.COMMUNICATORS, _close_all)
os.register_at_fork(after_in_child=_forked)
