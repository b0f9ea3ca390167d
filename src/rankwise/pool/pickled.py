"""Calls of ranks in other processes, and their outcomes: functions, arguments, results and errors as pickles."""

from __future__ import annotations

import pickle
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rankwise.contract.errors import as_exception, described
from rankwise.launch.spawn import module_path, raised_on, unpickled
from rankwise.launch.spawn_worker import pickler
from rankwise.pool import wire
from rankwise.pool.dealer import Outcome, Ranks


class Call(NamedTuple):
    """A function with its arguments. path: sys.path for the ranks, the same object as long as it is the same list."""

    parts: wire.Parts
    path: list[str]


def outcome(rank: int, kind: bytes, parts: wire.Parts) -> Outcome:
    """What came of a rank's call, from its reply."""

    def result() -> Any:
        return unpickled(partial(wire.unpacked, parts), f"the result of rank {rank}")

    error = as_exception(rank, raised_on(rank, parts[0])) if kind == wire.ERROR else None
    return Outcome(rank, result, error, group_failed=kind == wire.FAILED_GROUP)


class PickledRanks(Ranks):
    """n ranks in other processes."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._latest: tuple[object, list[str]] = (None, [])  # what the latest path was made for, and the path
        self._paths: list[list[str] | None] = [None] * n  # the sys.path that each rank has

    def call(self, call: Call) -> list[Outcome]:
        return self._call(wire.CALL, call)

    def meet(self, call: Call) -> list[Outcome]:
        return self._call(wire.MEET, Call([b""], call.path))

    @abstractmethod
    def _call(self, kind: bytes, call: Call) -> list[Outcome]:
        """Send all ranks, none of which is in a call, a message; return what came of it, in the order of arrival."""

    def _message(self, rank: int, call: Call) -> list[Any]:
        """The parts of the message to a rank that has this call."""
        new = b"" if self._paths[rank] is call.path else pickle.dumps(call.path)
        self._paths[rank] = call.path
        return [new, *call.parts]

    def packed(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: Callable[..., Any]
    ) -> Call:
        """The call. given: the user's function, which fn may be or call."""
        try:
            parts = wire.packed((fn, args, kwargs), pickler(given))
        except Exception as error:  # whatever their classes raise
            raise TypeError(f"fn and its arguments cannot be sent to other processes: {described(error)}") from error
        return Call(parts, self._path(given))

    def _path(self, fn: Callable[..., Any]) -> list[str]:
        """sys.path for the ranks, the same object as long as it is the same list."""
        key = (getattr(fn, "__module__", None), sys.path[:])
        if self._latest[0] != key:
            path = module_path(fn)
            self._latest = key, self._latest[1] if self._latest[1] == path else path
        return self._latest[1]
