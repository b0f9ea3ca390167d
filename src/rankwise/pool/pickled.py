"""Calls of ranks in other processes, and their outcomes: functions, arguments, results and errors as pickles."""

from __future__ import annotations

import os
import pickle
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from rankwise.contract.errors import as_exception, described
from rankwise.launch.spawn import module_path, raised_on, unpickled
from rankwise.launch.spawn_worker import pickler
from rankwise.pool import wire
from rankwise.pool.dealer import Outcome, Ranks

SHORT = 256  # bytes of a function that are copied into each of its calls
KEPT = 1 << 16  # bytes of a function that a rank may keep although it makes no more calls of it


class Call(NamedTuple):
    """A function with its arguments. path: sys.path for the ranks, the same object as long as it is the same list."""

    parts: wire.Parts
    path: list[str]


class _SentOnce:
    """A function of several calls, which is packed once, and unpacked once on each rank if it is short.

    It is called on a rank only.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        parts = _packed(fn, fn, fn)
        mark = os.urandom(8) if sum(map(len, parts)) <= KEPT else b""
        plain = len(parts) == 1 and len(parts[0]) < SHORT and b"__main__" not in parts[0]
        self._sent = mark, parts if plain else [pickle.PickleBuffer(part) for part in parts]

    def __call__(self) -> None:
        raise NotImplementedError

    def __reduce__(self) -> Any:
        return _received, self._sent


_latest: tuple[bytes, Any] = b"", None  # the function that a rank received last, and its mark


def _received(mark: bytes, parts: wire.Parts) -> Callable[..., Any]:
    global _latest
    latest = _latest
    if latest[0] != mark or not mark:
        latest = mark, wire.unpacked(parts)
        if mark:
            _latest = latest
    fn: Callable[..., Any] = latest[1]
    return fn


def _packed(obj: object, fn: Callable[..., Any], given: Callable[..., Any]) -> list[Any]:
    """The parts of an object with this function in it. given: the user's function, for errors."""
    if getattr(fn, "__module__", None) != "__main__" and not _sent_by_value():
        with suppress(Exception):  # whatever their classes raise; cloudpickle may know how
            parts = wire.packed(obj)
            if b"__main__" not in parts[0]:  # which the ranks cannot import
                return parts
    try:
        return wire.packed(obj, pickler(given))
    except Exception as error:  # whatever their classes raise
        raise TypeError(f"fn and its arguments cannot be sent to other processes: {described(error)}") from error


def _sent_by_value() -> bool:
    """Whether the program has told cloudpickle to send the functions of some modules, not their names."""
    cloudpickle = sys.modules.get("cloudpickle")
    return bool(cloudpickle and cloudpickle.list_registry_pickle_by_value())


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
        return self._call(wire.MEET, Call([], call.path))

    @abstractmethod
    def _call(self, kind: bytes, call: Call) -> list[Outcome]:
        """Send all ranks, none of which is in a call, a message; return what came of it, in the order of arrival."""

    def _message(self, rank: int, call: Call) -> list[Any]:
        """The parts of the message to a rank that has this call. The last one is a new sys.path, or empty."""
        new = b"" if self._paths[rank] is call.path else pickle.dumps(call.path)
        self._paths[rank] = call.path
        return [*call.parts, new]

    def packed(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: Callable[..., Any]
    ) -> Call:
        """The call. given: the user's function, which fn may be or call."""
        return Call(_packed((fn, args, kwargs), fn, given), self._path(given))

    def sent_once(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        return _SentOnce(fn)

    def _path(self, fn: Callable[..., Any]) -> list[str]:
        """sys.path for the ranks, the same object as long as it is the same list."""
        key, path = (getattr(fn, "__module__", None), sys.path), self._latest[1]
        if self._latest[0] != key:
            new = module_path(fn)
            path = path if path == new else new
            self._latest = (key[0], sys.path[:]), path
        return path
