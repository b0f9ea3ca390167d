"""Calls of ranks in other processes, and their outcomes: functions, arguments, results and errors as pickles."""

from __future__ import annotations

import os
import pickle
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

from rankwise.contract.errors import as_exception, described
from rankwise.launch.spawn import module_path, raised_on, unpickled
from rankwise.launch.spawn_worker import pickler
from rankwise.pool import wire
from rankwise.pool.dealer import Outcome, Ranks, each_of

LONGEST = 1 << 15  # bytes of a function that is packed on its own
MARK = 8  # bytes, which tell functions apart that are packed alike
BY_NAME = FunctionType, BuiltinFunctionType  # what pickle packs as the name of a module and its own


class Call(NamedTuple):
    """A function with its arguments. path: sys.path for the ranks, the same object as long as it is the same list."""

    parts: wire.Parts
    path: list[str]


class _Packed:
    """A function of several calls that is packed only once, in these parts."""

    def __init__(self, parts: wire.Parts) -> None:
        self._parts = parts

    def __reduce__(self) -> Any:
        return wire.unpacked, ([pickle.PickleBuffer(part) for part in self._parts],)


def call_of(parts: wire.Parts) -> Callable[[], Any]:
    """The call of these parts of a message."""
    at = 2 + int.from_bytes(parts[0][:2], "little")
    packed, (data, *buffers) = bytes(parts[0][2:at]), (parts[0][at:], *parts[1:])
    if not packed:
        fn, args, kwargs, each = wire.unpacked([data, *buffers])
    else:
        args, kwargs, each = wire.unpacked([data, *buffers])
        fn = _function(packed)
    return partial(each_of, fn, *args) if each else partial(fn, *args, **kwargs)


@lru_cache(1)  # most calls are of the function that was received last
def _function(packed: bytes) -> Any:
    return pickle.loads(packed[MARK:])


def _packed(obj: object, fn: Callable[..., Any]) -> list[Any]:
    """The parts of an object of a call of fn."""
    try:
        if not _sent_by_value():
            parts = wire.packed(obj)
            if b"__main__" not in parts[0]:  # which the ranks cannot import
                return parts
    except Exception:  # noqa: BLE001 - whatever their classes raise
        pass  # cloudpickle may know how
    try:
        return wire.packed(obj, pickler(fn))
    except Exception as error:  # whatever their classes raise
        raise TypeError(f"fn and its arguments cannot be sent to other processes: {described(error)}") from error


def message_of(fn: Callable[..., Any], caller: Callable[..., Any], args: Sequence[Any]) -> tuple[bytes, int, list[Any]]:
    """The kind, the number and the parts of a message: a rank calls `caller(*args)`, which calls fn."""
    return wire.CALL.lower(), 0, [*_after(_head(b""), (caller, args, {}, False), fn), pickle.dumps(module_path(fn))]


def _after(head: bytes, obj: object, fn: Callable[..., Any]) -> list[Any]:
    """The parts of an object of a call of fn, which `head` precedes."""
    parts = _packed(obj, fn)
    parts[0] = head + parts[0]
    return parts


def _head(packed: bytes) -> bytes:
    """What precedes the parts of a call whose function is packed so; if it is b"", the parts have the function."""
    return len(packed).to_bytes(2, "little") + packed


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
        self._latest_fn: tuple[object, bytes] = (None, b"")  # what `_by_name` returned last
        self._latest: tuple[object, list[str]] = (None, [])  # what the latest path was made for, and the path
        self._paths: list[list[str] | None] = [None] * n  # the sys.path that each rank has

    def call(self, call: Call) -> list[Outcome]:
        return self._call(wire.CALL, call)

    def meet(self, call: Call) -> list[Outcome]:
        return self._call(wire.MEET, Call([], call.path))

    @abstractmethod
    def _call(self, kind: bytes, call: Call) -> list[Outcome]:
        """Send all ranks, none of which is in a call, a message; return what came of it, in the order of arrival."""

    def _message(self, rank: int, kind: bytes, call: Call) -> tuple[bytes, wire.Parts]:
        """The kind and the parts of the message to a rank that has this call."""
        if self._paths[rank] is call.path:
            return kind, call.parts
        self._paths[rank] = call.path
        return kind.lower(), [*call.parts, pickle.dumps(call.path)]

    def packed(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        packed = self._by_name(fn)
        what = (args, kwargs, False) if packed else (fn, args, kwargs, False)
        return Call(_after(_head(packed), what, fn), self._path(fn))

    def packer(self, fn: Callable[..., Any]) -> Callable[[Sequence[Any]], Call]:
        packed, sent = self._by_name(fn), None
        if not packed:
            parts = _packed(fn, fn)
            if len(parts) > 1 or len(parts[0]) > LONGEST:
                sent = _Packed(parts)
            else:
                packed = os.urandom(MARK) + parts[0]
        head, path = _head(packed), self._path(fn)

        def pack(columns: Sequence[Any]) -> Call:
            return Call(_after(head, (columns, {}, True) if sent is None else (sent, columns, {}, True), fn), path)

        return pack

    def _by_name(self, fn: Callable[..., Any]) -> bytes:
        """A function as it is packed if the ranks can import it, else b""."""
        if fn is not self._latest_fn[0]:
            packed = b""
            if isinstance(fn, BY_NAME) and not _sent_by_value():
                with suppress(Exception):  # it is no name of its module
                    packed = bytes(MARK) + pickle.dumps(fn)
            self._latest_fn = fn, b"" if b"__main__" in packed else packed
        return self._latest_fn[1]

    def _path(self, fn: Callable[..., Any]) -> list[str]:
        """sys.path for the ranks, the same object as long as it is the same list."""
        key, path = (getattr(fn, "__module__", None), sys.path), self._latest[1]
        if self._latest[0] != key:
            new = module_path(fn)
            path = path if path == new else new
            self._latest = (key[0], sys.path[:]), path
        return path
