"""A store to which a process connects on first use, so that few processes connect while a job starts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Connection:
    """One process's connection to a store, made when it is first called."""

    def __init__(self, connect: Callable[[], Store]) -> None:
        """connect: raises RuntimeError, or an error of rankwise, if the store cannot be reached."""
        self._connect = connect
        self._store: Store | None = None
        self._lock = threading.Lock()

    def __call__(self) -> Store:
        with self._lock:
            if self._store is None:
                self._store = self._connect()
            return self._store


class LateStore:
    """The part of a store whose keys begin with a prefix. Its methods are named as in torch's Store."""

    def __init__(self, connection: Callable[[], Store], prefix: str = "") -> None:
        self._connection, self._prefix = connection, prefix

    def under(self, name: str) -> LateStore:
        """A part of this part: its keys also begin with `name`."""
        return LateStore(self._connection, self._key(f"{name}/"))

    def connect(self) -> None:
        """Connect now, or begin to serve the store."""
        self._connection()

    def set(self, key: str, value: str | bytes) -> None:
        self._connection().set(self._key(key), value)  # type: ignore[arg-type]  # torch takes bytes too

    def get(self, key: str) -> bytes:
        return self._connection().get(self._key(key))

    def check(self, keys: Sequence[str]) -> bool:
        return self._connection().check([self._key(key) for key in keys])

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        return self._connection().compare_set(self._key(key), expected, value)

    def wait(self, keys: Sequence[str], seconds: float) -> None:
        """Wait until all keys have been set; RuntimeError after `seconds`."""
        limit = timedelta(seconds=max(0.001, seconds))
        self._connection().wait([self._key(key) for key in keys], limit)

    def set_several(self, values: Mapping[str, bytes]) -> None:
        store = self._connection()
        store.multi_set([self._key(key) for key in values], list(values.values()))  # type: ignore[attr-defined]

    def get_several(self, keys: Sequence[str]) -> list[bytes]:
        return self._connection().multi_get([self._key(key) for key in keys])

    def _key(self, key: str) -> str:
        return self._prefix + key
