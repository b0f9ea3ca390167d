"""Calls of ranks in other processes, and their outcomes: functions, arguments, results and errors as pickles."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from rankwise.contract.errors import PeerLostError, as_exception
from rankwise.launch.spawn import module_path, raised_on, unpickled
from rankwise.launch.spawn_worker import CANNOT_TRAVEL, pickler
from rankwise.pool import wire


class Call(NamedTuple):
    """A function with its arguments. path: sys.path for the ranks, the same object as long as it is the same list."""

    parts: wire.Parts
    path: list[str]


@dataclass
class Outcome:
    """What came of a rank's call: its reply, or the loss of the rank. It is the dealer's Outcome."""

    rank: int
    kind: bytes = b""
    parts: Sequence[Any] = ()
    lost: PeerLostError | None = None

    @property
    def failed(self) -> bool:
        return self.lost is not None or self.kind == wire.ERROR

    @property
    def group_failed(self) -> bool:
        return self.kind == wire.FAILED_GROUP

    def error(self) -> Exception:
        if self.lost is not None:
            return self.lost
        return as_exception(self.rank, raised_on(self.rank, self.parts[0]))

    def result(self) -> Any:
        return unpickled(partial(wire.unpacked, self.parts), f"the result of rank {self.rank}")


class Packer:
    """Makes calls of functions and arguments."""

    def __init__(self) -> None:
        self._latest: tuple[object, list[str]] = (None, [])  # what the latest path was made for, and the path

    def packed(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: Callable[..., Any]
    ) -> Call:
        """The call. given: the user's function, which fn may be or call."""
        try:
            parts = wire.packed((fn, args, kwargs), pickler(given))
        except CANNOT_TRAVEL as error:
            raise TypeError(f"fn and its arguments cannot be sent to other processes: {error}") from error
        return Call(parts, self._path(given))

    def _path(self, fn: Callable[..., Any]) -> list[str]:
        """sys.path for the ranks, the same object as long as it is the same list."""
        key = (getattr(fn, "__module__", None), sys.path[:])
        if self._latest[0] != key:
            path = module_path(fn)
            self._latest = key, self._latest[1] if self._latest[1] == path else path
        return self._latest[1]
