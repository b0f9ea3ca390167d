"""Info objects: texts by key. rankwise takes no hint from them."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from rankwise.frontends.mpi4py.errors import error
from rankwise.frontends.mpi4py.handles import Handle
from rankwise.group.base import of_kind


class Info(Handle[dict[str, str]], MutableMapping[str, str], root=True):
    """An MPI info object, which is also a mapping; a null handle is an empty one."""

    _null = "ERR_INFO"
    _by_value = True

    @classmethod
    def Create(cls, items: Any = ()) -> Info:
        info = cls._of({})
        info.update(items or ())
        return info

    @classmethod
    def Create_env(cls, args: Any = None) -> Info:
        return cls.Create()

    def Dup(self) -> Info:
        return type(self).Create(self._live())

    def Get(self, key: str) -> str | None:
        return self._live().get(key)

    def Set(self, key: str, value: str) -> None:
        self._live()[_text(key, "key")] = _text(value, "value")

    def Delete(self, key: str) -> None:
        if self._live().pop(key, None) is None:
            raise error("ERR_INFO_NOKEY", f"no key {key!r}")

    def Get_nkeys(self) -> int:
        return len(self._live())

    def Get_nthkey(self, n: int) -> str:
        return list(self._live())[n]

    def __len__(self) -> int:
        return 0 if self._h is None else len(self._h)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._h or ()))

    def __getitem__(self, key: str) -> str:
        return (self._h or {})[key]

    def __setitem__(self, key: str, value: str) -> None:
        self.Set(key, value)

    def __delitem__(self, key: str) -> None:
        del (self._h or {})[key]

    def popitem(self) -> tuple[str, str]:
        return (self._h or {}).popitem()

    def keys(self) -> list[str]:  # type: ignore[override]  # here and below, lists as in mpi4py
        return list(self)

    def values(self) -> list[str]:  # type: ignore[override]
        return [self[key] for key in self]

    def items(self) -> list[tuple[str, str]]:  # type: ignore[override]
        return [(key, self[key]) for key in self]

    copy = Dup


def _text(given: str | bytes, name: str) -> str:
    return given.decode() if isinstance(given, bytes) else of_kind(given, name, str, "a str")


INFO_NULL = Info()._named("INFO_NULL")
INFO_ENV = Info.Create()._named("INFO_ENV")
