"""`rw.local`: what a rank keeps from one call of a pool to the next."""

from __future__ import annotations

import threading
from typing import Any

from rankwise.contract.public import public
from rankwise.group.default_group import thread_is_rank

_of_process: dict[str, Any] = {}
_of_thread = threading.local()


def _names() -> dict[str, Any]:
    """This rank's namespace: the process's, or the thread's if that is a rank of its own."""
    return vars(_of_thread) if thread_is_rank() else _of_process


@public
class Local:
    """A namespace of this rank: an attribute that one call of a pool sets is still there in the next.

    It lasts as long as the rank's process, or its thread if it is one. If a rank of a pool dies, the process that
    replaces it begins with an empty one. In a process that is not a rank of a pool, it is an ordinary namespace of that
    process.

    Example:
        >>> rw.local.steps = group.rank + 1
        >>> rw.local.steps == group.rank + 1
        True
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return _names()[name]
        except KeyError:
            raise AttributeError(
                f"rw.local has no attribute {name!r} on this rank; no function has left it there, or the rank's "
                "process was replaced since"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        _names()[name] = value

    def __delattr__(self, name: str) -> None:
        getattr(self, name)
        del _names()[name]

    def __dir__(self) -> list[str]:
        return sorted(_names())

    def __reduce__(self) -> str:
        return "local"  # the receiver's own


local = Local()
"""This rank's namespace."""
