"""The interface over a store of torch's. Only the names of its methods are needed here, and no import of torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from rankwise.meeting.store import Missing, Store

T = TypeVar("T")


class OnFirstUse:
    """One process's connection to a store of torch's, made when it is first called."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        """connect: raises RuntimeError, or an error of rankwise, if the store cannot be reached."""
        self._connect = connect
        self._store: Any = None
        self._lock = threading.Lock()

    def __call__(self) -> Any:
        with self._lock:
            if self._store is None:
                self._store = self._connect()
            return self._store


class TorchStore(Store):
    """The part of a store whose keys begin with a prefix."""

    def __init__(self, connection: Callable[[], Any], prefix: str = "") -> None:
        self.connection, self.prefix = connection, prefix

    def under(self, name: str) -> TorchStore:
        """A part of this part: its keys also begin with `name`."""
        return TorchStore(self.connection, f"{self.prefix}{name}/")

    def set(self, key: str, value: bytes) -> None:
        self._ask(lambda store: store.set(self.prefix + key, value))

    def get(self, key: str, deadline: float) -> bytes:
        """The value, once it is there."""
        return self.wait([key], deadline)[0]

    def add(self, key: str, n: int) -> int:
        """Add n to a number, which is 0 at first and whose decimal digits are the value. Returns the sum."""
        return self._ask(lambda store: int(store.add(self.prefix + key, n)))

    def wait(self, keys: Iterable[str], deadline: float) -> list[bytes]:
        awaited = list(keys)
        names = [self.prefix + key for key in awaited]
        limit = timedelta(seconds=max(0.001, deadline - time.monotonic()))
        try:
            self._ask(lambda store: store.wait(names, limit))
        except ConnectionError as error:  # torch's timeout too; it may end a little early
            # If the store is gone, a further request fails. It might also take forever, so there is none for one key.
            missing = awaited if len(awaited) == 1 else [key for key in awaited if not self.check([key])]
            if missing:
                raise Missing(missing, str(error)) from error
        return self._ask(lambda store: list(store.multi_get(names)))

    def exchange(self, values: Mapping[str, bytes], key: str, deadline: float) -> bytes:
        """Set these values, and get the one of `key`."""
        keys = [self.prefix + each for each in values]
        self._ask(lambda store: store.multi_set(keys, list(values.values())))
        return self.get(key, deadline)

    def check(self, keys: Iterable[str]) -> bool:
        """Whether all values are there now."""
        return self._ask(lambda store: bool(store.check([self.prefix + key for key in keys])))

    def find(self, key: str) -> bytes | None:
        """The value if it is there now."""
        return self._ask(lambda store: bytes(store.get(self.prefix + key))) if self.check([key]) else None

    def _ask(self, request: Callable[[Any], T]) -> T:
        try:
            return request(self.connection())
        except RuntimeError as error:
            raise ConnectionError(str(error).partition("\n")[0]) from error
